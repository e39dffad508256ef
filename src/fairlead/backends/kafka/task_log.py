"""The task log on Kafka: a topic for each queue, a partition for each of its partitions, an entry a
message.

Partitions are owned by the coordinator's leases, as everywhere; Kafka assigns none. It keeps the
entries, and how far each partition was read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress

from fairlead.backends.kafka.appender import TOPIC, Appender
from fairlead.backends.kafka.endpoint import Endpoint, Extent, PartitionId
from fairlead.backends.kafka.log_reader import LogReader
from fairlead.backends.kafka.reading import Taken
from fairlead.backends.kafka.sender import Outgoing
from fairlead.backends.memory.notifier import drop_when_forked
from fairlead.clock import Clock
from fairlead.errors import FairleadError, NotSupported
from fairlead.model import PartitionKey
from fairlead.ports.statements import Steps
from fairlead.ports.task_log import Batch, Entry, Submit, decode, encode, partition_of

log = logging.getLogger("fairlead.task_log")

WAIT_SECONDS = 2.0
"""`receive` answers nothing after so long without anything."""


class KafkaTaskLog:
    """See `fairlead.ports.task_log.TaskLog`."""

    joins_transactions = False

    def __init__(
        self,
        url: str,
        partitions: Mapping[str, int],
        counted: Callable[[str, int], None],
        clock: Clock,
    ) -> None:
        """`url`: as of the trigger channel; `reset` has no meaning here. `partitions`: how many a
        queue has. `counted` is told of entries that were not appended (`failed_appends`). Raises
        ConfigurationError for a bad URL."""
        self._endpoint = Endpoint.of(url).log
        self._partitions = partitions
        self._clock = clock
        self._appender = Appender(self._endpoint, partitions, counted)
        self.after_fork()
        drop_when_forked(self)

    def after_fork(self) -> None:
        # The threads and sockets of librdkafka stay with the parent.
        self._reader: LogReader | None = None
        self._settling: dict[str, asyncio.Future[None]] = {}
        """Topics that are being looked at, or have been, to be read; by queue."""
        self._look = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def location(self) -> str:
        return self._endpoint.location

    # the submitter's side -------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> Future[None]:
        return self._appender.append([_message(entry) for entry in entries])

    def appending(self, entries: Sequence[Entry]) -> Steps[None]:
        raise NotSupported(
            f"the task log is {self.location}, which joins no transaction; use one in SQLite or"
            " PostgreSQL"
        )

    def close_sender(self) -> None:
        """Append what is on its way; it may be used again. Blocks until every future of `append`
        has ended."""
        self._appender.close()

    # the node's side ------------------------------------------------------------------------------

    async def receive(self, wanted: Collection[PartitionKey], limit: int) -> Sequence[Batch]:
        self._look.clear()
        reader = self._running()
        partitions = [self._at(key) for key in wanted]
        for key in wanted:
            if self._at(key) not in reader:
                await self.rewind(key)
        taken = reader.take(partitions, limit)
        if not taken:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._look.wait()
            taken = reader.take(partitions, limit)
        return tuple(self._batch(at, messages) for at, messages in taken)

    def _batch(self, at: PartitionId, messages: Taken) -> Batch:
        topic, partition = at
        entries, unreadable = [], 0
        for offset, message in messages:
            if (entry := decode(message)) is None:
                unreadable += 1
                told = {"topic": topic, "partition": partition, "offset": offset}
                log.error("an entry of the task log cannot be read; it is passed over", extra=told)
            else:
                entries.append(entry)
        return Batch(
            PartitionKey(self._endpoint.queue(topic), partition),
            entries,
            messages[-1][0] + 1,
            unreadable,
        )

    async def commit(self, batch: Batch) -> None:
        self._running().commit(self._at(batch.partition), batch.mark)
        self._look.set()

    async def is_behind(self, partition: PartitionKey) -> bool:
        at = self._at(partition)
        extent = (await self._extents(partition.queue, [at]))[at]
        reader = self._running()
        return not reader.is_done(at, extent.end) if at in reader else extent.done < extent.end

    async def rewind(self, partition: PartitionKey) -> None:
        at = self._at(partition)
        extent = (await self._extents(partition.queue, [at]))[at]
        self._running().begin(at, extent.done)
        self._look.set()

    def poke(self) -> None:
        self._look.set()

    async def lag(self, queue: str) -> dict[int, int]:
        partitions = [
            (self._endpoint.topic(queue), number) for number in range(self._partitions[queue])
        ]
        found = await self._extents(queue, partitions)
        return {number: end - done for (_, number), (done, end) in found.items() if end > done}

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await asyncio.to_thread(reader.end)
        await asyncio.to_thread(self._appender.close)

    def _at(self, key: PartitionKey) -> PartitionId:
        return self._endpoint.topic(key.queue), key.partition

    async def _settle(self, queue: str) -> None:
        """Once for all partitions that are begun at the same time."""
        if (settling := self._settling.get(queue)) is None:
            looking = asyncio.to_thread(
                self._endpoint.settle, queue, self._partitions[queue], TOPIC
            )
            settling = self._settling[queue] = asyncio.ensure_future(looking)
        try:
            await asyncio.shield(settling)
        except FairleadError:
            self._settling.pop(queue, None)
            raise

    async def _extents(
        self, queue: str, partitions: Collection[PartitionId]
    ) -> dict[PartitionId, Extent]:
        await self._settle(queue)
        return await asyncio.wrap_future(self._running().ask(partitions))

    def _running(self) -> LogReader:
        """Raises what broke the last one: the next one is another."""
        self._loop = asyncio.get_running_loop()
        if self._reader is None:
            self._reader = LogReader(self._endpoint, self._arrived, self._clock)
        if self._reader.failure is not None:
            failure, self._reader = self._reader.failure, None
            raise failure
        return self._reader

    def _arrived(self) -> None:
        """In the reader's thread."""
        with suppress(RuntimeError):  # the loop was closed without us
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._look.set)


def _message(entry: Entry) -> Outgoing:
    about = entry.task if isinstance(entry, Submit) else entry.key
    key = about.ordering_key
    return Outgoing(*partition_of(entry), None if key is None else key.encode(), encode(entry))
