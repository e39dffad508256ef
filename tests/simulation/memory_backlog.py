"""The backlog store in memory, for tests and simulations."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from fairlead.model import (
    LaneKey,
    LaneRecord,
    Level,
    PartitionKey,
    Trigger,
    TriggerPath,
)
from fairlead.ports.backlog_store import Fenced, LastPass, LastPasses, OwnedBacklog


class MemoryBacklogStore:
    """A `fairlead.ports.backlog_store.BacklogStore` in memory.

    No method awaits anything, so each is atomic.
    """

    persist_seconds = 5.0
    delete_acks = 1000

    def __init__(self) -> None:
        self._owners: dict[PartitionKey, int] = {}
        """Range id of the current owner, by partition."""
        self._records: dict[LaneKey, LaneRecord] = {}
        self._rows: defaultdict[LaneKey, list[Trigger]] = defaultdict(list)
        """Stored triggers, ascending by level."""

    async def migrate(self) -> None:
        pass

    async def take_over(
        self, partitions: Sequence[PartitionKey]
    ) -> dict[PartitionKey, OwnedBacklog]:
        for partition in partitions:
            self._owners[partition] = self._owners.get(partition, 0) + 1
        return {partition: self._ownership(partition) for partition in partitions}

    async def write(
        self,
        lane: LaneKey,
        range_id: int,
        entries: Sequence[Trigger],
        record: LaneRecord,
    ) -> None:
        self._fence(lane, range_id)
        rows = self._rows[lane]
        for entry in entries:
            level = _level(entry)
            position = bisect_left(rows, level, key=_level)
            if position == len(rows) or rows[position].level != level:
                rows.insert(position, msgspec.structs.replace(entry, path=TriggerPath.SPILL))
        self._records[lane] = record

    async def read_above(self, lane: LaneKey, level: Level, limit: int) -> list[Trigger]:
        first = self._position_after(lane, level)
        return self._rows[lane][first : first + limit]

    async def delete_through(self, lane: LaneKey, range_id: int, level: Level) -> None:
        self._fence(lane, range_id)
        del self._rows[lane][: self._position_after(lane, level)]

    async def levelled(
        self, lane: LaneKey, above: Level, tasks: Sequence[tuple[str, int]]
    ) -> set[str]:
        wanted = set(tasks)
        rows = self._rows[lane][self._position_after(lane, above) :]
        return {row.id for row in rows if (row.id, row.version) in wanted}

    async def last_passes(self, lane: LaneKey, above: Level, limit: int) -> LastPasses:
        rows = await self.read_above(lane, above, limit)
        weights: defaultdict[str, list[float]] = defaultdict(list)
        for row in rows:
            weights[row.fairness_key].append(row.weight)
        last = {row.fairness_key: _level(row).pass_ for row in rows}
        through = _level(rows[-1]) if len(rows) == limit else None
        return LastPasses(
            [LastPass(key, pass_, min(weights[key])) for key, pass_ in last.items()], through
        )

    async def records(self) -> dict[PartitionKey, OwnedBacklog]:
        return {partition: self._ownership(partition) for partition in self._owners}

    async def ahead(
        self, lane: LaneKey, above: Level, through: Level, most: int | None = None
    ) -> tuple[int, int]:
        rows = [row for row in self._rows[lane] if above < _level(row) < through]
        rows = rows[:most]
        return len(rows), len({row.fairness_key for row in rows})

    async def entry(self, lane: LaneKey, task_id: str) -> Trigger | None:
        return next((row for row in reversed(self._rows[lane]) if row.id == task_id), None)

    async def count(self, lane: LaneKey, above: Level, most: int | None = None) -> int:
        return len(self._rows[lane][self._position_after(lane, above) :][:most])

    async def close(self) -> None:
        """Do nothing: there is no resource to close."""

    def rows(self, lane: LaneKey) -> Sequence[Trigger]:
        """Return the stored triggers, ascending by level, for tests."""
        return self._rows[lane]

    def record(self, lane: LaneKey) -> LaneRecord:
        """Return the stored record of the lane, for tests."""
        return self._records.get(lane) or LaneRecord()

    def _ownership(self, partition: PartitionKey) -> OwnedBacklog:
        lanes = {
            lane.priority: record for lane, record in self._records.items() if lane[:2] == partition
        }
        return OwnedBacklog(self._owners[partition], lanes)

    def _fence(self, lane: LaneKey, range_id: int) -> None:
        if self._owners.get(PartitionKey(lane.queue, lane.partition)) != range_id:
            raise Fenced(
                f"partition {lane.partition} of {lane.queue} was taken over: range id {range_id} is"
                " void"
            )

    def _position_after(self, lane: LaneKey, level: Level) -> int:
        return bisect_right(self._rows[lane], level, key=_level)


def _level(trigger: Trigger) -> Level:
    assert trigger.level is not None
    return trigger.level
