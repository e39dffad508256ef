"""One queue as an operator sees it: its numbers, tenants, limits, and the owners of its partitions
with their backlogs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from fairlead.core import values
from fairlead.engine.leases import owners_of
from fairlead.errors import InvalidTask
from fairlead.model import LaneKey, Level, PartitionKey
from fairlead.model.task_facts import KeySetting
from fairlead.operate.context import OperateContext, unknown_queue
from fairlead.operate.facts import Facts, facts_of
from fairlead.operate.limits import LimitView, limits_of_queue
from fairlead.operate.summary import Attention, QueueNumbers, summary
from fairlead.operate.tasks import Management
from fairlead.operate.tenants import TenantPage, TenantSearch
from fairlead.operate.tenants import tenants as tenants_of
from fairlead.ports.backlog_store import OwnedBacklog

MOST_SETTINGS = 200
"""Greatest number of fairness keys whose settings `queue_view` shows."""
MOST_STORED = 10_000
"""Number up to which `queue_view` counts the stored triggers of a lane."""


class LaneView(msgspec.Struct, frozen=True):
    """Fair backlog of one priority of one partition. The levels are the last that the
    partition's owner saved, usually some seconds ago."""

    priority: int
    ack_level: Level
    read_level: Level
    max_level: Level
    buffered: int
    """Triggers in the owner's memory."""
    stored: int
    """Triggers in the backlog store above the ack level."""
    is_stored_cut: bool = False
    """Whether `stored` was counted up to a bound only."""


class PartitionView(msgspec.Struct, frozen=True):
    """One partition of a queue."""

    partition: int
    owner: str | None
    """Node that owns the partition; None if the partition has no owner."""
    range_id: int | None
    """Range id of the newest owner in the backlog store, which fences earlier owners; None if no
    node has served the partition in fair order."""
    lanes: list[LaneView]


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """One queue as its page shows it."""

    numbers: QueueNumbers
    attention: list[Attention]
    """Conditions that need a person."""
    tenants: TenantPage
    """Tenants with the longest backlogs."""
    partitions: list[PartitionView] = []
    limits: list[LimitView] = []
    """Limits that the application declares."""
    keys: list[KeySetting] = []
    """Fairness keys with weights and limits that people and policies have set, at most
    MOST_SETTINGS."""


async def owners(context: OperateContext, queues: Collection[str]) -> dict[PartitionKey, str]:
    """Return the node that reads each partition of these queues. Raise StoreUnavailable."""
    if not context.channel.shares_partitions:
        return owners_of(await context.coordinator.owners())
    status = await context.channel.status(queues)
    partitions = [] if status is None else status.partitions
    return {
        PartitionKey(each.queue, each.partition): each.owner
        for each in partitions
        if each.owner is not None
    }


async def queue_view(
    context: OperateContext,
    queue: str,
    *,
    tenants: Collection[str] | None = None,
    facts: Facts | None = None,
) -> QueueView:
    """Return one queue for its page. Reads what `tenants` of operate/tenants.py reads, the
    records of the partitions with at most 10,000 stored triggers of each lane, and the ledgers of
    cluster-wide limits. With `tenants`, the numbers are of these tenants only, and partitions and
    limits are left out. Raise UnknownQueue, InvalidTask, NotSupported."""
    values.name("queue", queue, InvalidTask)
    facts = facts_of(context, facts)
    found = summary(context, queue=queue, tenants=tenants, facts=facts)
    if not found.queues:
        raise unknown_queue(queue)
    page = tenants_of(context, TenantSearch(queue=queue), tenants=tenants, facts=facts)
    numbers, attention = found.queues[0], found.attention
    if tenants is not None:
        return QueueView(numbers=numbers, attention=attention, tenants=page)
    records = await _records(context)
    return QueueView(
        numbers=numbers,
        attention=attention,
        tenants=page,
        partitions=await _partitions(context, queue, numbers.partitions, records),
        limits=await limits_of_queue(context, queue, facts=facts),
        keys=_settings(Management(context), queue),
    )


def _settings(management: Management, queue: str) -> list[KeySetting]:
    weights, limits = management.weights(queue), management.limits(queue)
    return [
        KeySetting(queue, key, weights.get(key), limits.get(key))
        for key in sorted({*weights, *limits})[:MOST_SETTINGS]
    ]


async def _records(context: OperateContext) -> Mapping[PartitionKey, OwnedBacklog]:
    """Return the records of level lanes."""
    return {} if context.backlog is None else await context.backlog.records()


async def _partitions(
    context: OperateContext,
    queue: str,
    partitions: int,
    records: Mapping[PartitionKey, OwnedBacklog],
) -> list[PartitionView]:
    """Return the partitions of a queue."""
    read_by = await owners(context, [queue])
    views = []
    for number in range(partitions):
        key = PartitionKey(queue, number)
        found = records.get(key)
        lanes = []
        for priority, record in sorted(found.lanes.items()) if found is not None else ():
            assert context.backlog is not None  # it has given the record
            stored, _ = await context.backlog.ahead(
                LaneKey(*key, priority), record.ack_level, most=MOST_STORED
            )
            lanes.append(
                LaneView(
                    priority,
                    record.ack_level,
                    record.read_level,
                    record.max_level,
                    record.buffered,
                    stored,
                    stored == MOST_STORED,
                )
            )
        views.append(
            PartitionView(
                number, read_by.get(key), None if found is None else found.range_id, lanes
            )
        )
    return views
