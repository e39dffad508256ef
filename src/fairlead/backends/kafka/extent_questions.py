"""Questions to the log reader: how much there is in a partition."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException

from fairlead.backends.kafka.endpoint import (
    ADMIN_SECONDS,
    Extent,
    PartitionId,
    extents,
    reason,
)
from fairlead.clock import Clock
from fairlead.errors import StoreUnavailable


class _Question(NamedTuple):
    partitions: Collection[PartitionId]
    until: float
    """Monotonic seconds. The question is asked again until then: a coordinator that has moved is
    found in a moment."""
    answer: Future[dict[PartitionId, Extent]]


class ExtentQuestions:
    """Questions asked in any thread, answered in the consumer's: many with one request."""

    def __init__(self, location: str, clock: Clock) -> None:
        """`location`: of the server, for the errors."""
        self._location = location
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: list[_Question] = []
        self._is_closed = False

    def __bool__(self) -> bool:
        return bool(self._asked)

    def ask(self, partitions: Iterable[PartitionId]) -> Future[dict[PartitionId, Extent]]:
        """Return the future extents of these partitions; the future raises StoreUnavailable."""
        question = _Question(list(partitions), self._clock.monotonic() + ADMIN_SECONDS, Future())
        with self._lock:
            if self._is_closed:
                question.answer.set_exception(self._closed())
            else:
                self._asked.append(question)
        return question.answer

    def answer(self, consumer: Consumer, through: Callable[[], Mapping[PartitionId, int]]) -> None:
        """Answer all; `through` returns the offsets that are done here and not yet confirmed."""
        with self._lock:
            questions, self._asked = self._asked, []
        asked = {partition for question in questions for partition in question.partitions}
        try:
            found = extents(consumer, asked)
        except KafkaException as error:
            now = self._clock.monotonic()
            with self._lock:
                self._asked += [question for question in questions if question.until > now]
            unavailable = StoreUnavailable(f"{self._location}: {reason(error)}")
            unavailable.__cause__ = error
            _refuse([question for question in questions if question.until <= now], unavailable)
            return
        mine = through()
        known = {
            partition: Extent(max(done, mine.get(partition, 0)), end)
            for partition, (done, end) in found.items()
        }
        for question in questions:
            if question.answer.set_running_or_notify_cancel():
                question.answer.set_result(
                    {partition: known[partition] for partition in question.partitions}
                )

    def close(self) -> None:
        """Refuse all questions, from now on."""
        with self._lock:
            self._is_closed = True
            questions, self._asked = self._asked, []
        _refuse(questions, self._closed())

    def _closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._location}: the task log was closed")


def _refuse(questions: Iterable[_Question], error: StoreUnavailable) -> None:
    for question in questions:
        if question.answer.set_running_or_notify_cancel():
            question.answer.set_exception(error)
