"""Reads partitions of the task log in a thread of its own: a consumer that is told what to read,
and joins no group.

Who owns a partition is the coordinator's to say; Kafka keeps only how far it was read. What has
arrived waits here until it is taken, within a budget that the partitions share: one that has used
up its part is paused.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from fairlead.backends.kafka.endpoint import (
    ADMIN_SECONDS,
    CLOSE_SECONDS,
    Extent,
    Place,
    TopicPlace,
    extents,
    reason,
)
from fairlead.clock import Clock
from fairlead.errors import StoreUnavailable

log = logging.getLogger("fairlead.kafka")

PAGE = 1000
"""Messages taken from the consumer at once."""

MOST_BYTES, LEAST_BYTES = 16 << 20, 64 << 10
"""Of the messages that wait to be taken: of all partitions, and the part of each however many there
are."""

MOST_MESSAGES, LEAST_MESSAGES = 20_000, 200
"""The same for their number."""

COMMIT_EVERY = 1.0
"""Seconds between two commits of offsets."""

KEEP_EVERY = 1800.0
"""Seconds between two commits of the offset of a quiet partition, since brokers forget old ones;
and between two deletions of what is done with."""

UNWANTED_SECONDS = 60.0
"""A partition that nobody has wanted for so long is read no more."""

_POLL_SECONDS = 0.05
_AGAIN_SECONDS = 1.0
_SAY_EVERY = 30.0
_LAST_SECONDS = 5.0
"""For the last commit."""

Taken = list[tuple[int, bytes]]
"""Messages with their offsets."""


class _Reading:
    """One partition, from where it was begun. With the reader's lock."""

    def __init__(self, place: TopicPlace, position: int, now: float) -> None:
        self.place = place
        self.position = position
        """What is to arrive next."""
        self.done = position
        """Everything below is committed, or was no message."""
        self.end = position
        """Where the partition ended when its end was last reached: above the last message there may
        be what is none, as the end of a transaction."""
        self.out: int | None = None
        """What was taken and is not committed ends below this offset."""
        self.waiting: deque[tuple[int, bytes]] = deque()
        """What has arrived and was not taken yet."""
        self.size = 0
        """Bytes of that."""
        self.wanted_at = now

    def arrive(self, offset: int, message: bytes) -> None:
        """It comes next."""
        if offset < self.position:  # the topic was made anew, or has lost its end
            self.done = self.end = offset
        self.waiting.append((offset, message))
        self.size += len(message)
        self.position = offset + 1

    def take(self, count: int) -> Taken:
        """The next messages, at most so many."""
        taken = [self.waiting.popleft() for _ in range(min(count, len(self.waiting)))]
        self.size -= sum(len(message) for _, message in taken)
        self.out = taken[-1][0] + 1
        return taken

    def leave(self) -> None:
        """What was not taken is to arrive again, when it is read again."""
        if self.waiting:
            self.position = self.waiting[0][0]
        self.waiting.clear()
        self.size = 0


class _Question(NamedTuple):
    """About these partitions."""

    places: Collection[TopicPlace]
    until: float
    """It is asked again until then: a coordinator that has moved is found in a moment."""
    answer: Future[dict[TopicPlace, Extent]]


class LogReader:
    """See the module. What is not the thread's may be called from one other thread, and does not
    wait."""

    def __init__(self, place: Place, arrived: Callable[[], None], clock: Clock) -> None:
        """`arrived`: called in the thread when there is something to take, and when it has
        failed."""
        self._place = place
        self._arrived = arrived
        self._clock = clock
        self._lock = threading.Lock()
        self._readings: dict[TopicPlace, _Reading] = {}
        self._commits: dict[TopicPlace, int] = {}
        """Offsets that Kafka has not confirmed."""
        self._questions: list[_Question] = []
        self._is_changed = False
        """What is to be read may be another than what is read."""
        self._is_ending = threading.Event()
        self._is_ended = False
        self.failure: BaseException | None = None
        """What broke the thread."""
        # The thread's own.
        self._assigned: dict[TopicPlace, _Reading] = {}
        self._paused: set[TopicPlace] = set()
        self._is_committing = False
        """A commit is on its way; librdkafka sends it until it has an answer."""
        self._tick_at = clock.monotonic()
        self._keep_at = clock.monotonic() + KEEP_EVERY
        self._said_at = float("-inf")
        self._consumer = Consumer(
            place.settings(
                {
                    "group.id": place.group,
                    "error_cb": self._troubled,
                    "on_commit": self._confirmed,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    # below what is kept, or beyond the end of a topic made anew
                    "auto.offset.reset": "earliest",
                    "enable.partition.eof": True,
                    # Little is fetched ahead: what has arrived waits in a budget of our own.
                    "queued.min.messages": 10_000,
                    "queued.max.messages.kbytes": 8192,
                    "fetch.max.bytes": 8 << 20,
                    "message.max.bytes": 8
                    << 20,  # not greater than that; a greater message comes all the same
                    "fetch.queue.backoff.ms": 20,
                }
            )
        )
        self._thread = threading.Thread(target=self._run, name="fairlead-kafka-log", daemon=True)
        self._thread.start()
        # Python must not end while a thread of its own is inside librdkafka.
        weakref.finalize(self, _end, weakref.ref(self))

    def __contains__(self, place: TopicPlace) -> bool:
        """It was begun."""
        return place in self._readings

    def ask(self, places: Iterable[TopicPlace]) -> Future[dict[TopicPlace, Extent]]:
        """How much is in each of these partitions. Raises StoreUnavailable."""
        question = _Question(list(places), self._clock.monotonic() + ADMIN_SECONDS, Future())
        with self._lock:
            if self._is_ended:
                question.answer.set_exception(
                    StoreUnavailable(f"{self._place.location}: the task log was closed")
                )
            else:
                self._questions.append(question)
        return question.answer

    def begin(self, place: TopicPlace, position: int) -> None:
        """Read this partition from here on, and forget what was read of it."""
        with self._lock:
            self._readings[place] = _Reading(place, position, self._clock.monotonic())
            self._is_changed = True

    def take(self, wanted: Iterable[TopicPlace], limit: int) -> list[tuple[TopicPlace, Taken]]:
        """What has arrived, about `limit` messages in all; nothing of a partition of which
        something is out."""
        now = self._clock.monotonic()
        with self._lock:
            readings = [self._readings[place] for place in wanted if place in self._readings]
            for reading in readings:
                self._is_changed |= reading.wanted_at < now - UNWANTED_SECONDS
                reading.wanted_at = now
            ready = [reading for reading in readings if reading.waiting and reading.out is None]
            self._is_changed |= bool(ready)
            return [(reading.place, reading.take(max(1, limit // len(ready)))) for reading in ready]

    def commit(self, place: TopicPlace, through: int) -> None:
        """What was taken below this offset is done with. Kafka is told in the background."""
        with self._lock:
            reading = self._readings.get(place)
            if reading is None:  # it was taken from a reader that failed since
                self._commits[place] = through
                return
            if reading.out == through:
                reading.out = None
            self._done(reading, through)

    def is_done(self, place: TopicPlace, end: int) -> bool:
        """Nothing below this offset is left to arrive, to be taken or to be committed."""
        with self._lock:
            reading = self._readings[place]
            return reading.out is None and not reading.waiting and reading.done >= end

    def end(self) -> None:
        """Tell Kafka what is committed, and stop. Blocks until then, but not for ever: while Kafka
        is away, a consumer of librdkafka with a commit on its way cannot be closed. Its thread goes
        on trying."""
        self._is_ending.set()
        self._thread.join(CLOSE_SECONDS)

    def _done(self, reading: _Reading, through: int) -> None:
        """With the lock."""
        if reading.out is None and not reading.waiting:
            through = max(through, reading.end)
        if through > reading.done:
            reading.done = self._commits[reading.place] = through

    # in the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        consumer = self._consumer
        try:
            while not self._is_ending.is_set():
                try:
                    self._turn(consumer)
                except KafkaException as error:
                    self._said(reason(error))
                    self._is_ending.wait(_AGAIN_SECONDS)
            self._commit_last(consumer)
        except BaseException as error:
            self.failure = error
            self._arrived()
        finally:
            self._refuse(StoreUnavailable(f"{self._place.location}: the task log was closed"))
            consumer.close()

    def _turn(self, consumer: Consumer) -> None:
        if self._clock.monotonic() >= self._tick_at:
            self._tick(consumer)
        if self._questions:
            self._answer(consumer)
        if self._is_changed:
            self._change(consumer)
        # One is waited for; `consume` alone would wait until it has all it may take.
        first = consumer.poll(_POLL_SECONDS)
        if first is not None:
            self._file([first, *consumer.consume(PAGE - 1, 0)])

    def _file(self, messages: Sequence[Message]) -> None:
        is_news = False
        with self._lock:
            for message in messages:
                place: Any = (message.topic(), message.partition())
                reading, offset, error = (
                    self._assigned.get(place),
                    message.offset(),
                    message.error(),
                )
                if reading is None or offset is None or self._readings[place] is not reading:
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        self._said(error.str())
                elif error is None:
                    reading.arrive(offset, message.value() or b"")
                    is_news = True
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading.end = offset
                    self._done(reading, reading.done)
                else:
                    self._said(error.str())
        if is_news:
            self._is_changed = True
            self._arrived()

    def _change(self, consumer: Consumer) -> None:
        """Read what is to be read, and pause what has used up its part of the budget."""
        oldest = self._clock.monotonic() - UNWANTED_SECONDS
        with self._lock:
            self._is_changed = False
            wanted = {
                place: reading
                for place, reading in self._readings.items()
                if reading.wanted_at >= oldest
            }
            gone = [
                place
                for place, reading in self._assigned.items()
                if wanted.get(place) is not reading
            ]
            for place in gone:
                self._assigned.pop(place).leave()
            new = {
                place: reading for place, reading in wanted.items() if place not in self._assigned
            }
            begins = [TopicPartition(*place, reading.position) for place, reading in new.items()]
            full = {
                place
                for place, reading in wanted.items()
                if self._is_full(place, reading, len(wanted))
            }
        try:
            self._resume(consumer, self._paused.intersection(gone))
            if gone:
                consumer.incremental_unassign(_at(gone))
            if begins:
                consumer.incremental_assign(begins)
            self._assigned |= new
            self._resume(consumer, self._paused - full)
            if more := full - self._paused:
                consumer.pause(_at(more))
                self._paused |= more
        except KafkaException:
            self._begin_anew(consumer)
            raise

    def _is_full(self, place: TopicPlace, reading: _Reading, sharing: int) -> bool:
        part = 0.5 if place in self._paused else 1.0
        return len(reading.waiting) >= part * max(
            LEAST_MESSAGES, MOST_MESSAGES // sharing
        ) or reading.size >= part * max(LEAST_BYTES, MOST_BYTES // sharing)

    def _resume(self, consumer: Consumer, places: Collection[TopicPlace]) -> None:
        if places:
            consumer.resume(_at(places))
            self._paused -= set(places)

    def _begin_anew(self, consumer: Consumer) -> None:
        """It is not known what the consumer reads."""
        with self._lock:
            for reading in self._assigned.values():
                reading.leave()
            self._assigned.clear()
            self._paused.clear()
            self._is_changed = True
        consumer.unassign()

    # offsets --------------------------------------------------------------------------------------

    def _answer(self, consumer: Consumer) -> None:
        with self._lock:
            questions, self._questions = self._questions, []
        asked = {place for question in questions for place in question.places}
        try:
            found = extents(consumer, asked)
        except KafkaException as error:
            told = StoreUnavailable(f"{self._place.location}: {reason(error)}")
            told.__cause__ = error
            now = self._clock.monotonic()
            with self._lock:
                self._questions += [question for question in questions if question.until > now]
            _refuse([question for question in questions if question.until <= now], told)
            return
        with self._lock:
            mine = {
                place: max(done, self._commits.get(place, 0)) for place, (done, _) in found.items()
            }
        for question in questions:
            if question.answer.set_running_or_notify_cancel():
                question.answer.set_result(
                    {at: Extent(mine[at], found[at].end) for at in question.places}
                )

    def _refuse(self, error: StoreUnavailable) -> None:
        with self._lock:
            self._is_ended = True
            questions, self._questions = self._questions, []
        _refuse(questions, error)

    def _tick(self, consumer: Consumer) -> None:
        now = self._clock.monotonic()
        self._tick_at = now + COMMIT_EVERY
        self._is_changed = True  # something may no longer be wanted
        if now >= self._keep_at:
            self._keep_at = now + KEEP_EVERY
            self._keep()
        self._commit(consumer)

    def _keep(self) -> None:
        with self._lock:
            quiet = {
                place: r.done for place, r in self._assigned.items() if place not in self._commits
            }
            self._commits |= quiet
        try:
            self._place.trim(quiet)
        except StoreUnavailable as error:
            self._said(str(error))  # another time

    def _commit(self, consumer: Consumer) -> None:
        with self._lock:
            offsets = [TopicPartition(*place, offset) for place, offset in self._commits.items()]
        if offsets and not self._is_committing:
            consumer.commit(offsets=offsets, asynchronous=True)
            self._is_committing = True

    def _confirmed(self, error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        """By the consumer, when it is polled."""
        self._is_committing = False
        with self._lock:
            for at in offsets:
                place = (at.topic, at.partition)
                if error is None and at.error is None and self._commits.get(place) == at.offset:
                    del self._commits[place]
        if why := error or next((at.error for at in offsets if at.error is not None), None):
            self._said(why.str())

    def _commit_last(self, consumer: Consumer) -> None:
        consumer.unassign()
        until = self._clock.monotonic() + _LAST_SECONDS
        while self._commits and self._clock.monotonic() < until:
            try:
                self._commit(consumer)
                consumer.poll(_POLL_SECONDS)
            except KafkaException as error:
                self._said(reason(error))
                self._is_ending.wait(_POLL_SECONDS)
        if self._commits:
            told = {"log": self._place.location, "partitions": len(self._commits)}
            log.warning(
                "Kafka could not be told what was read last of the task log; it may be read again",
                extra=told,
            )

    # trouble --------------------------------------------------------------------------------------

    def _troubled(self, error: KafkaError) -> None:
        self._said(error.str())

    def _said(self, why: str) -> None:
        now = self._clock.monotonic()
        if (
            now - self._said_at >= _SAY_EVERY
        ):  # brokers that are away are told of many times a second, in turns
            self._said_at = now
            log.warning(
                "the task log in Kafka is in trouble",
                extra={"log": self._place.location, "error": why},
            )


def _end(reader: weakref.ref[LogReader]) -> None:
    if (
        found := reader()
    ) is not None and not found._is_ending.is_set():  # its thread keeps it alive
        found.end()


def _refuse(questions: Iterable[_Question], error: StoreUnavailable) -> None:
    for question in questions:
        if question.answer.set_running_or_notify_cancel():
            question.answer.set_exception(error)


def _at(places: Iterable[TopicPlace]) -> list[TopicPartition]:
    return [TopicPartition(*place) for place in places]
