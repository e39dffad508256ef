"""The task log on Kafka: each queue has a topic, each of its partitions a partition of the topic,
and each entry is a message.

As in other queues, the coordinator's leases decide who owns a partition; Kafka only keeps the
entries, and how far each partition was read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from fairlead.backends.kafka.endpoint import Extent, KafkaEndpoint, PartitionId
from fairlead.backends.kafka.log_reader import LogReader
from fairlead.backends.kafka.log_topics import LogTopics
from fairlead.backends.kafka.outage_log import KafkaOutageLog
from fairlead.backends.kafka.prefix_owner import PrefixOwner
from fairlead.backends.kafka.reading import Taken
from fairlead.backends.kafka.sender import KafkaSender, Outgoing
from fairlead.clock import Clock
from fairlead.errors import FairleadError, NotSupported, StoreUnavailable
from fairlead.forks import drop_when_forked
from fairlead.model import PartitionKey
from fairlead.ports.cluster import Cluster
from fairlead.ports.statements import Steps
from fairlead.ports.task_log import (
    MOST_BYTES,
    Batch,
    Entry,
    Submit,
    decode,
    encode,
    partition_of,
)

log = logging.getLogger("fairlead.task_log")

APPEND_SECONDS = 30.0
"""Seconds after which an append that is not confirmed has failed; `message.timeout.ms` in the URL
sets another time."""

MARGIN_SECONDS = 5.0
"""Seconds that an append may take beyond the time after which it has failed."""

WAIT_SECONDS = 2.0
"""Seconds after which `receive` returns nothing."""


class KafkaTaskLog:
    """A log with a topic for each queue. See `fairlead.ports.task_log.TaskLog`."""

    joins_transactions = False

    def __init__(
        self,
        url: str,
        partitions: Mapping[str, int],
        counted: Callable[[str, int], None],
        clock: Clock,
        store: Cluster | None = None,
    ) -> None:
        """`url`: as for the trigger channel; `reset` has no meaning here. `partitions`: number of
        partitions of each queue. `counted`: called with the number of entries that were not
        appended (`failed_appends`). `store`: task store that the log must belong to; None checks
        nothing. Raise ConfigurationError for a bad URL."""
        endpoint = KafkaEndpoint.of(url)
        self._endpoint = endpoint.log
        self._topics = LogTopics(self._endpoint, PrefixOwner(endpoint, store), partitions)
        self._clock = clock
        self._sender = KafkaSender(
            self._endpoint,
            self._topics,
            float(endpoint.client.get("message.timeout.ms", APPEND_SECONDS * 1000)) / 1000,
            partial(counted, "failed_appends", 1),
            KafkaOutageLog(
                "tasks were not appended to their log; their futures raise the error",
                {"log": endpoint.location},
            ),
        )
        self.after_fork()
        drop_when_forked(self)

    def after_fork(self) -> None:
        # The threads and sockets of librdkafka stay with the parent process.
        self._reader: LogReader | None = None
        self._topic_checks: dict[str, asyncio.Future[Sequence[str]]] = {}
        """Checks of topics before the first read, under way or done, by queue."""
        self._has_news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def location(self) -> str:
        return self._endpoint.location

    # the submitter's side -------------------------------------------------------------------------

    def room(self) -> Future[None] | None:
        return self._sender.room()

    def append(self, entries: Sequence[Entry]) -> Future[None]:
        return self._sender.send([_message(entry) for entry in entries])

    def appending(self, entries: Sequence[Entry]) -> Steps[None]:
        raise NotSupported(
            f"the task log is {self.location}, which joins no transaction; use a log in SQLite or"
            " PostgreSQL"
        )

    def close_sender(self) -> None:
        """Append what is on its way; the log may be used again. Block until every future of
        `append` has ended."""
        self._sender.close()

    # the node's side ------------------------------------------------------------------------------

    async def prepare(self, queue: str) -> Sequence[str]:
        warnings = await self._ensure_topic(queue)
        await self.lag(queue)  # which needs the right to read offsets
        return warnings

    async def check(self, queue: str) -> Sequence[str]:
        return await asyncio.to_thread(self._topics.check, queue)

    async def ensure_partitions(self, queue: str, partitions: int) -> None:
        await asyncio.to_thread(self._topics.widen, queue, partitions)
        # A client that has asked for the topic before knows the old number for minutes.
        reader, self._reader = self._reader, None
        if reader is not None:
            await asyncio.to_thread(reader.close)
        until = self._clock.monotonic() + MARGIN_SECONDS
        while True:
            try:
                await self.lag(queue)  # the brokers learn of new partitions one after the other
                return
            except StoreUnavailable:
                if self._clock.monotonic() >= until:
                    raise
            await self._clock.sleep(WAIT_SECONDS / 4)

    async def await_appends(self, queue: str) -> None:
        # Other processes tell nobody what they have begun to send.
        await self._clock.sleep(self._sender.seconds + MARGIN_SECONDS)

    async def receive(
        self, wanted: Collection[PartitionKey], limit: int, most_bytes: int = MOST_BYTES
    ) -> Sequence[Batch]:
        self._has_news.clear()
        reader = self._running()
        partitions = [self._at(key) for key in wanted]
        for key in wanted:
            if self._at(key) not in reader:
                await self.rewind(key)
        taken = reader.take(partitions, limit, most_bytes)
        if not taken:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._has_news.wait()
            taken = reader.take(partitions, limit, most_bytes)
        return tuple(self._batch(at, messages) for at, messages in taken)

    def _batch(self, at: PartitionId, messages: Taken) -> Batch:
        topic, partition = at
        entries, unreadable = [], 0
        for offset, message in messages:
            if (entry := decode(message)) is None:
                unreadable += 1
                fields = {"topic": topic, "partition": partition, "offset": offset}
                log.error("an entry of the task log cannot be read; it is skipped", extra=fields)
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
        self._has_news.set()

    async def is_behind(self, partition: PartitionKey) -> bool:
        at = self._at(partition)
        extent = (await self._extents(partition.queue, [at]))[at]
        reader = self._running()
        return not reader.is_done(at, extent.end) if at in reader else extent.done < extent.end

    async def rewind(self, partition: PartitionKey) -> None:
        at = self._at(partition)
        extent = (await self._extents(partition.queue, [at]))[at]
        self._running().begin(at, extent.done)
        self._has_news.set()

    def poke(self) -> None:
        self._has_news.set()

    async def lag(self, queue: str) -> dict[int, int]:
        count = await asyncio.to_thread(self._topics.count, queue)
        partitions = [(self._endpoint.topic(queue), number) for number in range(count or 0)]
        if not partitions:
            return {}
        found = await asyncio.wrap_future(self._running().ask(partitions))
        return {number: end - done for (_, number), (done, end) in found.items() if end > done}

    async def has_entries(self, queue: str) -> bool:
        return bool(await self.lag(queue))

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await asyncio.to_thread(reader.close)
        await asyncio.to_thread(self._sender.close)

    def _at(self, key: PartitionKey) -> PartitionId:
        return self._endpoint.topic(key.queue), key.partition

    async def _ensure_topic(self, queue: str) -> Sequence[str]:
        """Ensure the queue's topic, once for all partitions that begin at the same time. Return
        what people should know about it."""
        if (check := self._topic_checks.get(queue)) is None:
            check = asyncio.ensure_future(asyncio.to_thread(self._topics.ensure, queue))
            self._topic_checks[queue] = check
        try:
            return await asyncio.shield(check)
        except FairleadError:
            self._topic_checks.pop(queue, None)
            raise

    async def _extents(
        self, queue: str, partitions: Collection[PartitionId]
    ) -> dict[PartitionId, Extent]:
        await self._ensure_topic(queue)
        return await asyncio.wrap_future(self._running().ask(partitions))

    def _running(self) -> LogReader:
        """Return the reader, and start one if there is none. Raise the error that broke the last
        one; the next call starts another."""
        self._loop = asyncio.get_running_loop()
        if self._reader is None:
            self._reader = LogReader(self._endpoint, self._on_arrival, self._clock)
        if self._reader.failure is not None:
            failure, self._reader = self._reader.failure, None
            raise failure
        return self._reader

    def _on_arrival(self) -> None:
        """Wake `receive`, from the reader's thread."""
        with suppress(RuntimeError):  # the loop is closed already
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._has_news.set)


def _message(entry: Entry) -> Outgoing:
    about = entry.task if isinstance(entry, Submit) else entry.key
    key = about.ordering_key
    return Outgoing(*partition_of(entry), None if key is None else key.encode(), encode(entry))
