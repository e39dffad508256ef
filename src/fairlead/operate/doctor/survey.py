"""The survey: everything that several checks look at, read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fairlead.clock import MICROS
from fairlead.engine.membership import SILENT_SECONDS
from fairlead.engine.ownership import owners_of
from fairlead.errors import NotSupported, StoreUnavailable
from fairlead.model import PartitionKey
from fairlead.operate.context import OperateContext
from fairlead.ports.cluster_state import NodeRecord
from fairlead.ports.coordinator import Lease
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.task_records import QueueStatus
from fairlead.ports.trigger_channel import ChannelStatus


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The cluster at one instant."""

    context: OperateContext
    now: int
    """Microseconds since the epoch."""
    sql: SqlStore | None
    """The store with what its tables add; None: it has no tables."""
    leases: Sequence[Lease] | StoreUnavailable
    """Every lease, or why the coordinator did not say."""
    channel: ChannelStatus | StoreUnavailable | None
    """The status of a channel with servers of its own, or why it has none to give; None: no such
    servers."""
    queues: Sequence[QueueStatus]
    nodes: Sequence[NodeRecord]
    silent: frozenset[str]
    """Nodes whose heartbeat has stopped."""

    @property
    def has_leases(self) -> bool:
        """Return whether the coordinator is there."""
        return not isinstance(self.leases, StoreUnavailable)

    @cached_property
    def lease_owners(self) -> Mapping[PartitionKey, str] | None:
        """The owner of each partition by the leases; None: unknown."""
        return None if isinstance(self.leases, StoreUnavailable) else owners_of(self.leases)

    @cached_property
    def owners(self) -> Mapping[PartitionKey, str] | None:
        """The owner of each partition, by whoever shares them out; None: unknown."""
        by_leases = self.lease_owners
        if self.channel is None or not self.context.channel.shares_partitions:
            return by_leases
        if isinstance(self.channel, StoreUnavailable):
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


async def take_survey(context: OperateContext) -> Survey:
    """Look at the cluster. Raises StoreUnavailable, SchemaMismatch when the task store cannot be
    looked at."""
    store = context.store
    database, records = store.database, store.records
    leases = await _leases(context)
    nodes = database.read_now(records.nodes())
    queues = database.read_now(records.queue_statuses())
    channel = await _channel(context, queues)
    now = context.clock.now()
    silent = await store.silent_nodes(now, round(SILENT_SECONDS * MICROS))
    return Survey(
        context=context,
        now=now,
        sql=_tables(context),
        leases=leases,
        channel=channel,
        queues=queues,
        nodes=nodes,
        silent=frozenset(silent),
    )


async def _leases(context: OperateContext) -> Sequence[Lease] | StoreUnavailable:
    try:
        return await context.coordinator.leases()
    except StoreUnavailable as error:
        return error


async def _channel(
    context: OperateContext, queues: Sequence[QueueStatus]
) -> ChannelStatus | StoreUnavailable | None:
    if not context.channel.carries_triggers:
        return None
    try:
        return await context.channel.status([queue.queue for queue in queues])
    except StoreUnavailable as error:
        return error


def _tables(context: OperateContext) -> SqlStore | None:
    try:
        return context.sql_store
    except NotSupported:
        return None
