"""One queue as an operator sees it: who reads its partitions, how far their backlogs are, and whose
work waits."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from fairlead.engine.ownership import owners_of
from fairlead.errors import UnknownQueue
from fairlead.model import LaneKey, Level, PartitionKey, RunTimesRecord
from fairlead.operate.context import OperateContext
from fairlead.operate.tasks import Management
from fairlead.ports.task_records import KeyLoad, QueueStatus


class LaneView(msgspec.Struct, frozen=True):
    """The fair backlog of one priority of one partition. The levels are as its owner last kept
    them, seconds ago."""

    priority: int
    ack_level: Level
    read_level: Level
    max_level: Level
    buffered: int
    """Triggers in the owner's memory."""
    stored: int
    """Triggers in the backlog store above the ack level."""


class PartitionView(msgspec.Struct, frozen=True):
    """One partition."""

    partition: int
    owner: str | None
    """The node that it was given to; None: nobody reads it now."""
    range_id: int | None
    """Of the backlog's owner; every write of an earlier one is refused. None: never owned as a fair
    partition."""
    lanes: list[LaneView]


class Overview(msgspec.Struct, frozen=True):
    """A queue."""

    status: QueueStatus
    partitions: list[PartitionView]
    heaviest: list[KeyLoad]
    """The fairness keys with most tasks that may run."""
    keys: int
    """How many fairness keys have such tasks."""
    limits: dict[str, int]
    """By fairness key, how many of its tasks may run at once on each node, where that was set at
    run time."""
    run_times: RunTimesRecord | None = None
    """Of a queue that charges run time: what its workers last kept of what they have learnt."""


async def owners(context: OperateContext, queues: Collection[str]) -> dict[PartitionKey, str]:
    """Which node reads which partition of these queues. Raises StoreUnavailable."""
    if not context.channel.shares_partitions:
        return owners_of(await context.coordinator.leases())
    status = await context.channel.status(queues)
    partitions = [] if status is None else status.partitions
    return {
        PartitionKey(found.queue, found.partition): found.owner
        for found in partitions
        if found.owner is not None
    }


async def overview(context: OperateContext, queue: str, most_keys: int = 10) -> Overview:
    """Look at a queue. Raises UnknownQueue."""
    management = Management(context)
    status = next((found for found in management.queues() if found.queue == queue), None)
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
    learnt = [
        record.run_times
        for key, found in records.items()
        for record in found.lanes.values()
        if key.queue == queue and record.run_times is not None
    ]
    # Every lane of a node keeps the same; that of the node which knows most is shown.
    run_times = max(learnt, key=lambda record: len(record.means), default=None)
    return Overview(status, partitions, heaviest, keys, management.limits(queue), run_times)
