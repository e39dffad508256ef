"""Reads partitions of the task log in a thread of its own: a consumer that is told what to read,
and joins no group.

Who owns a partition is the coordinator's to say; Kafka keeps only how far it was read. What has
arrived waits here until it is taken, within a budget that the partitions share: one that has used
up its part is paused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from fairlead.backends.kafka.client import ClientThread, next_page
from fairlead.backends.kafka.endpoint import (
    CLOSE_SECONDS,
    Endpoint,
    Extent,
    PartitionId,
    reason,
)
from fairlead.backends.kafka.extent_questions import ExtentQuestions
from fairlead.backends.kafka.offset_commits import OffsetCommits
from fairlead.backends.kafka.outage_log import OutageLog
from fairlead.backends.kafka.reading import Reading, Taken
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

UNWANTED_SECONDS = 60.0
"""A partition that nobody has wanted for so long is read no more."""

_POLL_SECONDS = 0.05
_WARN_EVERY = 30.0
_LAST_SECONDS = 5.0
"""For the last commit."""


class LogReader:
    """See the module. What is not the thread's may be called from one other thread, and does not
    wait."""

    def __init__(self, endpoint: Endpoint, arrived: Callable[[], None], clock: Clock) -> None:
        """`arrived`: called in the thread when there is something to take, and when it has
        failed."""
        self._endpoint = endpoint
        self._arrived = arrived
        self._clock = clock
        self._lock = threading.Lock()
        self._readings: dict[PartitionId, Reading] = {}
        self._is_changed = False
        """What is to be read may be another than what is read."""
        self._outages = OutageLog(
            "the task log in Kafka is in trouble", {"log": endpoint.location}, _WARN_EVERY
        )
        self._questions = ExtentQuestions(endpoint.location, clock)
        self._commits = OffsetCommits(self._outages, clock.monotonic())
        self.failure: BaseException | None = None
        """The error that broke the thread."""
        # The thread's own.
        self._assigned: dict[PartitionId, Reading] = {}
        self._paused: set[PartitionId] = set()
        settings = {
            "group.id": endpoint.group,
            "error_cb": lambda error: self._outages.report(error.str()),
            "on_commit": self._commits.confirmed,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # below what is kept, or beyond the end of a topic made anew
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            # Little is fetched ahead: what has arrived waits in a budget of our own.
            "queued.min.messages": 10_000,
            "queued.max.messages.kbytes": 8192,
            "fetch.max.bytes": 8 << 20,
            # not greater than that; a greater message comes all the same
            "message.max.bytes": 8 << 20,
            "fetch.queue.backoff.ms": 20,
        }
        consumer = Consumer(endpoint.settings(settings))
        self._thread = ClientThread("log", consumer, self, self._outages, CLOSE_SECONDS)

    def __contains__(self, partition: PartitionId) -> bool:
        """It was begun."""
        return partition in self._readings

    def ask(self, partitions: Iterable[PartitionId]) -> Future[dict[PartitionId, Extent]]:
        """Return how much is in each of these partitions. The future raises StoreUnavailable."""
        return self._questions.ask(partitions)

    def begin(self, partition: PartitionId, position: int) -> None:
        """Read this partition from here on, and forget what was read of it."""
        with self._lock:
            self._readings[partition] = Reading(partition, position, self._clock.monotonic())
            self._is_changed = True

    def take(self, wanted: Iterable[PartitionId], limit: int) -> list[tuple[PartitionId, Taken]]:
        """What has arrived, about `limit` messages in all; nothing of a partition of which
        something is out."""
        now = self._clock.monotonic()
        with self._lock:
            readings = [
                self._readings[partition] for partition in wanted if partition in self._readings
            ]
            for reading in readings:
                self._is_changed |= reading.wanted_at < now - UNWANTED_SECONDS
                reading.wanted_at = now
            ready = [reading for reading in readings if reading.waiting and reading.out is None]
            self._is_changed |= bool(ready)
            return [
                (reading.partition, reading.take(max(1, limit // len(ready)))) for reading in ready
            ]

    def commit(self, partition: PartitionId, through: int) -> None:
        """What was taken below this offset is done with. Kafka is told in the background."""
        with self._lock:
            reading = self._readings.get(partition)
            if reading is None:  # it was taken from a reader that failed since
                self._commits.add(partition, through)
                return
            if reading.out == through:
                reading.out = None
            self._done(reading, through)

    def is_done(self, partition: PartitionId, end: int) -> bool:
        """Nothing below this offset is left to arrive, to be taken or to be committed."""
        with self._lock:
            reading = self._readings[partition]
            return reading.out is None and not reading.waiting and reading.done >= end

    def end(self) -> None:
        """Tell Kafka what is committed, and stop. Blocks until then, but not for ever."""
        self._thread.close()

    def _done(self, reading: Reading, through: int) -> None:
        """With the lock."""
        if reading.finish(through):
            self._commits.add(reading.partition, reading.done)

    # in the thread --------------------------------------------------------------------------------

    def poll(self, thread: ClientThread[Consumer]) -> None:
        consumer = thread.client
        if self._commits.is_due(self._clock.monotonic()):
            self._tick(consumer)
        if self._questions:
            self._questions.answer(consumer, self._commits.unconfirmed)
        if self._is_changed:
            self._change(consumer)
        if messages := next_page(consumer, PAGE, _POLL_SECONDS):
            self._file(messages)

    def finish(self, thread: ClientThread[Consumer]) -> None:
        """Commit what is not confirmed."""
        consumer = thread.client
        consumer.unassign()
        until = self._clock.monotonic() + _LAST_SECONDS
        while self._commits and self._clock.monotonic() < until:
            try:
                self._commits.send(consumer)
                consumer.poll(_POLL_SECONDS)
            except KafkaException as error:
                self._outages.report(reason(error))
                time.sleep(_POLL_SECONDS)
        if self._commits:
            told = {"log": self._endpoint.location, "partitions": len(self._commits)}
            log.warning(
                "Kafka could not be told what was read last of the task log; it may be read again",
                extra=told,
            )

    def failed(self, error: BaseException) -> None:
        self.failure = error
        self._arrived()

    def release(self, thread: ClientThread[Consumer]) -> None:
        self._questions.close()
        thread.client.close()

    def _file(self, messages: Sequence[Message]) -> None:
        is_news = False
        with self._lock:
            for message in messages:
                partition: Any = (message.topic(), message.partition())
                reading, offset, error = (
                    self._assigned.get(partition),
                    message.offset(),
                    message.error(),
                )
                if reading is None or offset is None or self._readings[partition] is not reading:
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        self._outages.report(error.str())
                elif error is None:
                    reading.arrive(offset, message.value() or b"")
                    is_news = True
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading.end = offset
                    self._done(reading, reading.done)
                else:
                    self._outages.report(error.str())
        if is_news:
            self._is_changed = True
            self._arrived()

    def _change(self, consumer: Consumer) -> None:
        """Read what is to be read, and pause what has used up its part of the budget."""
        oldest = self._clock.monotonic() - UNWANTED_SECONDS
        with self._lock:
            self._is_changed = False
            wanted = {
                partition: reading
                for partition, reading in self._readings.items()
                if reading.wanted_at >= oldest
            }
            gone = [
                partition
                for partition, reading in self._assigned.items()
                if wanted.get(partition) is not reading
            ]
            for partition in gone:
                self._assigned.pop(partition).leave()
            new = {
                partition: reading
                for partition, reading in wanted.items()
                if partition not in self._assigned
            }
            begins = [
                TopicPartition(*partition, reading.position) for partition, reading in new.items()
            ]
            full = {
                partition
                for partition, reading in wanted.items()
                if self._is_full(partition, reading, len(wanted))
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

    def _is_full(self, partition: PartitionId, reading: Reading, sharing: int) -> bool:
        part = 0.5 if partition in self._paused else 1.0
        return len(reading.waiting) >= part * max(
            LEAST_MESSAGES, MOST_MESSAGES // sharing
        ) or reading.size >= part * max(LEAST_BYTES, MOST_BYTES // sharing)

    def _resume(self, consumer: Consumer, partitions: Collection[PartitionId]) -> None:
        if partitions:
            consumer.resume(_at(partitions))
            self._paused -= set(partitions)

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

    def _tick(self, consumer: Consumer) -> None:
        self._is_changed = True  # something may no longer be wanted
        if self._commits.is_renewal_due(self._clock.monotonic()):
            self._keep()
        self._commits.send(consumer)

    def _keep(self) -> None:
        with self._lock:
            done = {partition: reading.done for partition, reading in self._assigned.items()}
        quiet = self._commits.renew(done)
        try:
            self._endpoint.trim(quiet)
        except StoreUnavailable as error:
            self._outages.report(str(error))  # another time


def _at(partitions: Iterable[PartitionId]) -> list[TopicPartition]:
    return [TopicPartition(*partition) for partition in partitions]
