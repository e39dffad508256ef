"""The survey: the facts that several checks need, read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from fairlead.clock import MICROS
from fairlead.engine.leases import owners_of
from fairlead.engine.liveness import SILENT_SECONDS
from fairlead.errors import BatchTooLarge, ConfigurationError, NotSupported, StoreUnavailable
from fairlead.model import PartitionKey
from fairlead.operate.context import OperateContext
from fairlead.operate.facts import Facts, read_facts
from fairlead.operate.queues import bare_queues
from fairlead.operate.summary import QueueNumbers, queue_numbers
from fairlead.ports.cluster import NodeRecord
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.trigger_channel import ChannelStatus

Failure = StoreUnavailable | ConfigurationError
"""Failure of a server: unavailable, or it refuses what we ask."""

_FAILURES = (StoreUnavailable, ConfigurationError)


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The cluster at one instant."""

    context: OperateContext
    now: int
    """Microseconds since the epoch."""
    sql: SqlStore | None
    """The store with the queries of SQL tables; None without tables."""
    leases: Mapping[str, str] | Failure
    """All leases, or the reason why the coordinator did not return them."""
    channel: ChannelStatus | Failure | None
    """Status of a channel with its own servers, or the reason why it is unknown; None without
    servers."""
    queues: Sequence[QueueNumbers]
    nodes: Sequence[NodeRecord]
    silent: frozenset[str]
    """Nodes whose heartbeat has stopped."""
    facts: Facts | None = None
    """Facts of bounded reads, from which the numbers of tasks are; None without tables."""

    @property
    def about(self) -> str:
        """Word before a number of tasks."""
        return "about " if self.facts is not None and self.facts.is_sample else ""

    @property
    def has_leases(self) -> bool:
        """Return whether the coordinator returned the leases."""
        return not isinstance(self.leases, Failure)

    @cached_property
    def lease_owners(self) -> Mapping[PartitionKey, str] | None:
        """Return the owner of each partition by the leases; None if unknown."""
        return None if isinstance(self.leases, Failure) else owners_of(self.leases)

    @cached_property
    def owners(self) -> Mapping[PartitionKey, str] | None:
        """Return the owner of each partition, by leases or by the channel; None if unknown."""
        by_leases = self.lease_owners
        if self.channel is None or not self.context.channel.shares_partitions:
            return by_leases
        if isinstance(self.channel, Failure):
            return None
        by_channel = {
            PartitionKey(found.queue, found.partition): found.owner
            for found in self.channel.partitions
            if found.owner is not None
        }
        return {**(by_leases or {}), **by_channel}

    def serving(self, queue: str) -> list[NodeRecord]:
        """Return the living nodes that serve this queue."""
        return [n for n in self.nodes if n.node not in self.silent and queue in n.queues]


async def take_survey(context: OperateContext, facts: Facts | None = None) -> Survey:
    """Read the state of the cluster, and facts unless they are given. Raise StoreUnavailable,
    SchemaMismatch when the task store cannot be read."""
    store, tables = context.cluster, _tables(context)
    leases = await _leases(context)
    if facts is None and tables is not None:
        with suppress(BatchTooLarge):  # a check names the limit of the server
            facts = read_facts(context)
    if facts is None:
        nodes = store.database.read_now(store.nodes())
        queues = bare_queues(context)
    else:
        nodes, queues = facts.nodes, queue_numbers(facts)
    channel = await _channel(context, queues)
    now = context.clock.now()
    silent = await store.silent_nodes(now, round(SILENT_SECONDS * MICROS))
    return Survey(
        context=context,
        now=now,
        sql=tables,
        leases=leases,
        channel=channel,
        queues=queues,
        nodes=nodes,
        silent=frozenset(silent),
        facts=facts,
    )


async def _leases(context: OperateContext) -> Mapping[str, str] | Failure:
    try:
        return await context.coordinator.owners()
    except _FAILURES as error:
        return error


async def _channel(
    context: OperateContext, queues: Sequence[QueueNumbers]
) -> ChannelStatus | Failure | None:
    try:
        return await context.channel.status([queue.queue for queue in queues])
    except _FAILURES as error:
        return error


def _tables(context: OperateContext) -> SqlStore | None:
    try:
        return context.sql_store
    except NotSupported:
        return None
