"""The reader of the task log, with a thread of its own: a consumer that joins no group and reads
the partitions that it is given.

The coordinator's leases decide who owns a partition; Kafka only keeps how far it was read. Messages
that have arrived wait here until they are taken, within a budget shared by the partitions: a
partition that has used up its share is paused.
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
    Extent,
    KafkaEndpoint,
    PartitionId,
    reason,
)
from fairlead.backends.kafka.extent_requests import ExtentRequests
from fairlead.backends.kafka.failures import is_refused, translate
from fairlead.backends.kafka.offset_commits import OffsetCommits
from fairlead.backends.kafka.outage_log import KafkaOutageLog
from fairlead.backends.kafka.reading import PartitionReading, Taken
from fairlead.clock import Clock
from fairlead.errors import FairleadError

log = logging.getLogger("fairlead.kafka")

PAGE = 1000
"""Messages taken from the consumer at once."""

MOST_BYTES, LEAST_BYTES = 16 << 20, 64 << 10
"""Bytes of waiting messages: of all partitions together, and the least share of one partition."""

MOST_MESSAGES, LEAST_MESSAGES = 20_000, 200
"""Number of waiting messages: of all partitions together, and the least share of one partition."""

UNWANTED_SECONDS = 60.0
"""Seconds without a request after which the reader stops reading a partition."""

_POLL_SECONDS = 0.05
_WARN_EVERY = 30.0
_LAST_SECONDS = 5.0
"""Seconds for the last commit."""


class LogReader:
    """A reader of leased partitions. Its methods, except those of the thread, may be called from
    one other thread, and do not wait."""

    def __init__(
        self, endpoint: KafkaEndpoint, on_arrival: Callable[[], None], clock: Clock
    ) -> None:
        """`on_arrival`: called in the thread when there is something to take, and after a
        failure."""
        self._endpoint = endpoint
        self._on_arrival = on_arrival
        self._clock = clock
        self._lock = threading.Lock()
        self._readings: dict[PartitionId, PartitionReading] = {}
        self._is_changed = False
        """True if the set of partitions to be read may have changed."""
        self._outages = KafkaOutageLog(
            "Kafka reports errors of the task log", {"log": endpoint.location}, _WARN_EVERY
        )
        self._refusals = endpoint.new_refusals()
        self._requests = ExtentRequests(endpoint.location, clock, self._refusals)
        self._commits = OffsetCommits(self._outages, clock.monotonic())
        self.failure: BaseException | None = None
        """The error that broke the thread."""
        # Used by the thread alone.
        self._assigned: dict[PartitionId, PartitionReading] = {}
        self._paused: set[PartitionId] = set()
        settings = {
            "group.id": endpoint.group,
            "error_cb": self._on_error,
            "on_commit": self._commits.on_commit,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # where to read if the position is below the kept messages, or beyond the end of a
            # topic that was created again
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            # Fetch little ahead: arrived messages wait in our own budget.
            "queued.min.messages": 10_000,
            "queued.max.messages.kbytes": 8192,
            "fetch.max.bytes": 8 << 20,
            # A message above this limit is fetched all the same.
            "message.max.bytes": 8 << 20,
            "fetch.queue.backoff.ms": 20,
        }
        consumer = Consumer(endpoint.settings(settings))
        self._thread = ClientThread("log", consumer, self, self._outages, CLOSE_SECONDS)

    def __contains__(self, partition: PartitionId) -> bool:
        """Return whether `begin` was called for the partition."""
        return partition in self._readings

    def ask(self, partitions: Iterable[PartitionId]) -> Future[dict[PartitionId, Extent]]:
        """Return a future of the extents of these partitions. The future raises StoreUnavailable
        while Kafka is unavailable."""
        return self._requests.ask(partitions)

    def begin(self, partition: PartitionId, position: int) -> None:
        """Read this partition from this position on, and drop what was read of it."""
        with self._lock:
            self._readings[partition] = PartitionReading(
                partition, position, self._clock.monotonic()
            )
            self._is_changed = True

    def take(
        self, wanted: Iterable[PartitionId], limit: int, most_bytes: int
    ) -> list[tuple[PartitionId, Taken]]:
        """Take messages that have arrived, about `limit` in all, and of each partition at most
        `most_bytes` bytes or one message; none of a partition with a batch that is not committed
        yet."""
        now = self._clock.monotonic()
        with self._lock:
            readings = [
                self._readings[partition] for partition in wanted if partition in self._readings
            ]
            for reading in readings:
                self._is_changed |= reading.wanted_at < now - UNWANTED_SECONDS
                reading.wanted_at = now
            ready = [
                reading for reading in readings if reading.waiting and reading.taken_end is None
            ]
            self._is_changed |= bool(ready)
            return [
                (reading.partition, reading.take(max(1, limit // len(ready)), most_bytes))
                for reading in ready
            ]

    def commit(self, partition: PartitionId, through: int) -> None:
        """Mark taken messages below this offset as done, and commit the offset in the
        background."""
        with self._lock:
            reading = self._readings.get(partition)
            if reading is None:  # the messages came from a reader that failed since
                self._commits.add(partition, through)
                return
            if reading.taken_end == through:
                reading.taken_end = None
            self._done(reading, through)

    def is_done(self, partition: PartitionId, end: int) -> bool:
        """Return whether every message below this offset has arrived, was taken and committed."""
        with self._lock:
            reading = self._readings[partition]
            return reading.taken_end is None and not reading.waiting and reading.done >= end

    def close(self) -> None:
        """Commit what is done, and stop. Blocks until then, but not for ever."""
        self._thread.close()

    def _done(self, reading: PartitionReading, through: int) -> None:
        """Finish the messages of a reading up to `through`. The caller holds the lock."""
        if reading.finish(through):
            self._commits.add(reading.partition, reading.done)

    # in the thread --------------------------------------------------------------------------------

    def poll(self, thread: ClientThread[Consumer]) -> None:
        consumer = thread.client
        if self._commits.is_due(self._clock.monotonic()):
            self._tick(consumer)
        if self._requests:
            self._requests.serve(consumer, self._commits.unconfirmed)
        if self._is_changed:
            self._update_assignment(consumer)
        if messages := next_page(consumer, PAGE, _POLL_SECONDS):
            self._add(messages)

    def finish(self, thread: ClientThread[Consumer]) -> None:
        """Commit the offsets that are not confirmed."""
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
            fields = {"log": self._endpoint.location, "partitions": len(self._commits)}
            log.warning(
                "the last offsets of the task log were not committed; entries may be read again",
                extra=fields,
            )

    def on_failure(self, error: BaseException) -> None:
        self.failure = error
        self._on_arrival()

    def close_client(self, thread: ClientThread[Consumer]) -> None:
        self._requests.close()
        thread.client.close()

    def _on_error(self, error: KafkaError) -> None:
        self._refusals(error)
        self._outages.report(error.str())

    def _add(self, messages: Sequence[Message]) -> None:
        have_arrived = False
        with self._lock:
            for message in messages:
                partition: Any = (message.topic(), message.partition())
                reading, offset, error = (
                    self._assigned.get(partition),
                    message.offset(),
                    message.error(),
                )
                if error is not None and is_refused(error):
                    raise translate(error, self._endpoint.location)
                if reading is None or offset is None or self._readings[partition] is not reading:
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        self._outages.report(error.str())
                elif error is None:
                    reading.arrive(offset, message.value() or b"")
                    have_arrived = True
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading.end = offset
                    self._done(reading, reading.done)
                else:
                    self._outages.report(error.str())
        if have_arrived:
            self._is_changed = True
            self._on_arrival()

    def _update_assignment(self, consumer: Consumer) -> None:
        """Assign and unassign partitions of the consumer, and pause those that have used up their
        share of the budget."""
        oldest = self._clock.monotonic() - UNWANTED_SECONDS
        with self._lock:
            self._is_changed = False
            wanted = {
                partition: reading
                for partition, reading in self._readings.items()
                if reading.wanted_at >= oldest
            }
            unwanted = [
                partition
                for partition, reading in self._assigned.items()
                if wanted.get(partition) is not reading
            ]
            for partition in unwanted:
                self._assigned.pop(partition).drop_waiting()
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
            self._resume(consumer, self._paused.intersection(unwanted))
            if unwanted:
                consumer.incremental_unassign(_at(unwanted))
            if begins:
                consumer.incremental_assign(begins)
            self._assigned |= new
            self._resume(consumer, self._paused - full)
            if more := full - self._paused:
                consumer.pause(_at(more))
                self._paused |= more
        except KafkaException:
            self._unassign_all(consumer)
            raise

    def _is_full(self, partition: PartitionId, reading: PartitionReading, sharing: int) -> bool:
        part = 0.5 if partition in self._paused else 1.0
        return len(reading.waiting) >= part * max(
            LEAST_MESSAGES, MOST_MESSAGES // sharing
        ) or reading.size >= part * max(LEAST_BYTES, MOST_BYTES // sharing)

    def _resume(self, consumer: Consumer, partitions: Collection[PartitionId]) -> None:
        if partitions:
            consumer.resume(_at(partitions))
            self._paused -= set(partitions)

    def _unassign_all(self, consumer: Consumer) -> None:
        """Unassign everything after an error, since it is unknown what the consumer reads."""
        with self._lock:
            for reading in self._assigned.values():
                reading.drop_waiting()
            self._assigned.clear()
            self._paused.clear()
            self._is_changed = True
        consumer.unassign()

    # offsets --------------------------------------------------------------------------------------

    def _tick(self, consumer: Consumer) -> None:
        self._is_changed = True  # a partition may no longer be wanted
        if self._commits.is_renewal_due(self._clock.monotonic()):
            self._renew_offsets()
        self._commits.send(consumer)

    def _renew_offsets(self) -> None:
        with self._lock:
            done = {partition: reading.done for partition, reading in self._assigned.items()}
        quiet = self._commits.renew(done)
        try:
            self._endpoint.trim(quiet)
        except FairleadError as error:  # such as a missing right to delete
            self._outages.report(str(error))  # tried again later


def _at(partitions: Iterable[PartitionId]) -> list[TopicPartition]:
    return [TopicPartition(*partition) for partition in partitions]
