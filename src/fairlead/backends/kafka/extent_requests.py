"""Requests to the log reader for the extents of partitions, the ranges of uncommitted offsets."""

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
)
from fairlead.backends.kafka.failures import Refusals
from fairlead.clock import Clock
from fairlead.errors import FairleadError, StoreUnavailable


class _ExtentRequest(NamedTuple):
    partitions: Collection[PartitionId]
    until: float
    """Monotonic seconds until which a failed request is repeated. Kafka fails briefly while the
    coordinator of the group moves to another broker."""
    extents: Future[dict[PartitionId, Extent]]


class ExtentRequests:
    """Requests from any thread. The consumer's thread serves all waiting requests by one call of
    Kafka."""

    def __init__(self, location: str, clock: Clock, refusals: Refusals) -> None:
        """`location`: the server, for the errors. `refusals`: those of the consumer."""
        self._location = location
        self._clock = clock
        self._refusals = refusals
        self._lock = threading.Lock()
        self._asked: list[_ExtentRequest] = []
        self._is_closed = False

    def __bool__(self) -> bool:
        return bool(self._asked)

    def ask(self, partitions: Iterable[PartitionId]) -> Future[dict[PartitionId, Extent]]:
        """Return the future extents of these partitions. The future raises StoreUnavailable while
        Kafka is unavailable, ConfigurationError if it refuses."""
        request = _ExtentRequest(
            list(partitions), self._clock.monotonic() + ADMIN_SECONDS, Future()
        )
        with self._lock:
            if self._is_closed:
                request.extents.set_exception(self._closed())
            else:
                self._asked.append(request)
        return request.extents

    def serve(self, consumer: Consumer, through: Callable[[], Mapping[PartitionId, int]]) -> None:
        """Serve all requests. `through` returns the offsets of processed messages that Kafka has
        not confirmed yet."""
        with self._lock:
            requests, self._asked = self._asked, []
        asked = {partition for request in requests for partition in request.partitions}
        try:
            found = extents(consumer, asked)
        except KafkaException as error:
            found_error = self._refusals.translate(error, self._location)
            found_error.__cause__ = error
            passes = isinstance(found_error, StoreUnavailable)
            now = self._clock.monotonic()
            again = [request for request in requests if passes and request.until > now]
            with self._lock:
                self._asked += again
            _refuse([request for request in requests if request not in again], found_error)
            return
        mine = through()
        known = {
            partition: Extent(max(done, mine.get(partition, 0)), end)
            for partition, (done, end) in found.items()
        }
        for request in requests:
            if request.extents.set_running_or_notify_cancel():
                request.extents.set_result(
                    {partition: known[partition] for partition in request.partitions}
                )

    def close(self) -> None:
        """Refuse all requests from now on."""
        with self._lock:
            self._is_closed = True
            requests, self._asked = self._asked, []
        _refuse(requests, self._closed())

    def _closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._location}: the task log was closed")


def _refuse(requests: Iterable[_ExtentRequest], error: FairleadError) -> None:
    for request in requests:
        if request.extents.set_running_or_notify_cancel():
            request.extents.set_exception(error)
