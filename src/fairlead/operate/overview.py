"""One queue as an operator sees it: the owners of its partitions, their backlogs, and the fairness
keys with the most waiting tasks."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from fairlead.engine.lease_names import owners_of
from fairlead.errors import UnknownQueue
from fairlead.model import LaneKey, Level, PartitionKey, RunTimesRecord
from fairlead.operate.context import OperateContext
from fairlead.operate.tasks import Management
from fairlead.ports.task_records import KeyLoad, QueueStatus


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


class PartitionView(msgspec.Struct, frozen=True):
    """One partition of a queue."""

    partition: int
    owner: str | None
    """Node that owns the partition; None if the partition has no owner."""
    range_id: int | None
    """Range id of the newest owner in the backlog store, which fences earlier owners; None if no
    node has served the partition in fair order."""
    lanes: list[LaneView]


class Overview(msgspec.Struct, frozen=True):
    """One queue, its partitions and its fairness keys with the most tasks."""

    status: QueueStatus
    partitions: list[PartitionView]
    heaviest: list[KeyLoad]
    """Fairness keys with the most tasks that may run now."""
    keys: int
    """Number of fairness keys that have tasks that may run now."""
    limits: dict[str, int]
    """Limits that `fairlead pipeline tune` has set, in tasks at once per node, by fairness key."""
    run_times: RunTimesRecord | None = None
    """Mean run times that the workers last saved; None without cost="runtime"."""


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


async def overview(context: OperateContext, queue: str, most_keys: int = 10) -> Overview:
    """Return the overview of a queue. Raise UnknownQueue."""
    management = Management(context)
    status = next((each for each in management.queues() if each.queue == queue), None)
    if status is None:
        raise UnknownQueue(
            f"no queue named {queue!r} is known to any node; `fairlead queues` lists them"
        )
    read_by = await owners(context, [queue])
    store = context.backlog
    records = await store.records()
    partitions = []
    for number in range(status.partitions):
        key = PartitionKey(queue, number)
        found = records.get(key)
        lanes = []
        for priority, record in sorted(found.lanes.items()) if found is not None else ():
            stored = await store.count(LaneKey(*key, priority), record.ack_level)
            lanes.append(
                LaneView(
                    priority,
                    record.ack_level,
                    record.read_level,
                    record.max_level,
                    record.buffered,
                    stored,
                )
            )
        partitions.append(
            PartitionView(
                number, read_by.get(key), None if found is None else found.range_id, lanes
            )
        )
    heaviest, keys = management.heaviest_keys(queue, most_keys)
    saved = [
        record.run_times
        for key, found in records.items()
        for record in found.lanes.values()
        if key.queue == queue and record.run_times is not None
    ]
    # Each node saves one record in all its lanes. Show the record with the most means.
    run_times = max(saved, key=lambda record: len(record.means), default=None)
    return Overview(status, partitions, heaviest, keys, management.limits(queue), run_times)
