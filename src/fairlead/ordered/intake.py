"""The intake of a node's ordered queues: read the task log for all partitions, and route the
entries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from fairlead.errors import ConfigurationError, InvalidTask, StoreUnavailable
from fairlead.model import PartitionKey
from fairlead.ordered.accept import check
from fairlead.ordered.context import OrderedContext
from fairlead.ordered.layout import moved_entry
from fairlead.ordered.partition import OrderedPartition, pause_after
from fairlead.ports.task_log import Batch, Entry

log = logging.getLogger("fairlead.ordered")

PAGE = 5000
"""Entries of the log in one read, of all partitions together."""

CHECK_SECONDS = 10.0
"""Seconds between two checks for partitions that queues no longer have."""

_PART = 4
"""Part of the bytes of a partition's tasks in memory that a batch of the log may have in addition:
one fourth."""


class OrderedIntake:
    """Reader of the task log. The intake takes one batch of a partition at a time; entries without
    room stay in the log."""

    def __init__(
        self, partitions: Mapping[PartitionKey, OrderedPartition], context: OrderedContext
    ) -> None:
        self._partitions = partitions
        self._context = context
        self._without_room: set[PartitionKey] = set()
        """Partitions that failed, or were leaving, when a batch came for them. The log delivers the
        batch again after a rewind."""
        self._check_at = 0.0
        """Monotonic seconds of the next check for partitions that queues no longer have."""

    async def run(self) -> None:
        """Read until cancelled. Retry a failing log with growing pauses; the partitions continue.
        Raise ConfigurationError from a log that needs a person."""
        failures = 0
        while True:
            try:
                await self._receive()
                failures = 0
            except ConfigurationError:
                raise
            except Exception as error:
                failures += 1
                logged_error = None if isinstance(error, StoreUnavailable) else error
                log.warning(
                    "the task log cannot be read",
                    exc_info=logged_error,
                    extra={"failures": failures, "error": str(error)},
                )
                self._context.observer.counted("task_log_failures")
                await self._context.clock.sleep(pause_after(failures))

    async def _receive(self) -> None:
        for key in list(self._without_room):
            await self._context.log.rewind(key)
            self._without_room.discard(key)
        wanted = [key for key, partition in self._partitions.items() if partition.has_room]
        most_bytes = self._context.bytes_of_each(max(1, len(self._partitions))) // _PART
        beyond = await self._beyond()
        for batch in await self._context.log.receive([*wanted, *beyond], PAGE, most_bytes):
            if batch.partition in beyond:
                await self._passed_on(self._checked(batch), beyond[batch.partition])
                await self._context.log.commit(batch)
                continue
            partition = self._partitions.get(batch.partition)
            if partition is None:
                continue  # the next owner rewinds the log
            if partition.has_room:
                partition.accept(await self._passed_on(self._checked(batch), partition.partitions))
            else:
                self._without_room.add(batch.partition)

    async def _beyond(self) -> Mapping[PartitionKey, int]:
        """Return the partitions with entries that a queue no longer has, each with the number of
        partitions that the queue has: a submitter that cannot reach the task store uses the old
        number. The owner of a queue's first partition looks for them."""
        log, now = self._context.log, self._context.clock.monotonic()
        found: dict[PartitionKey, int] = {}
        if log.joins_transactions or now < self._check_at:
            return found
        for key, partition in list(self._partitions.items()):
            if key.partition == 0 and partition.has_room:
                count = partition.partitions
                lags = await log.lag(key.queue)
                found |= {PartitionKey(key.queue, n): count for n in lags if n >= count}
        if not found:
            self._check_at = now + CHECK_SECONDS
        return found

    async def _passed_on(self, batch: Batch, partitions: int) -> Batch:
        """Append the entries that belong to another partition there, and return the batch without
        them: a submitter may not have read yet that the queue was moved to another number of
        partitions."""
        kept, misplaced = list[Entry](), list[Entry]()
        for entry in batch.entries:
            moved = moved_entry(entry, partitions)
            (kept if moved is entry else misplaced).append(moved)
        if misplaced:
            self._without_room.add(batch.partition)  # in case the append fails
            appended = await asyncio.to_thread(self._context.log.append, misplaced)
            await asyncio.wrap_future(appended)
            self._without_room.discard(batch.partition)
        return batch._replace(entries=kept)

    def _checked(self, batch: Batch) -> Batch:
        """Return the batch without entries that no schedule can hold."""
        fit: list[Entry] = []
        for entry in batch.entries:
            try:
                check(entry, batch.partition)
                fit.append(entry)
            except InvalidTask as error:
                log.error(
                    "an entry of the task log is left out",
                    extra={"partition": batch.partition, "error": str(error)},
                )
        if left_out := batch.unreadable + len(batch.entries) - len(fit):
            self._context.observer.counted("corrupt_log_entries", left_out)
        return batch._replace(entries=fit)
