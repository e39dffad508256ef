"""A fair lane with the rows that its channel keeps, and the trigger table that it fills. Every key of
a lane that is read by fairness key has more tasks than can run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fairlead.core.fair.backlog import Backlog, BacklogWrite, Changes, Timing
from fairlead.core.fair.passes import Passes
from fairlead.core.triggers.table import TriggerTable
from fairlead.model import LaneKey, LaneRecord, Level, Trigger, tenant_of
from tests import builders

PRIORITY = 5


class StoredLane:
    """A lane whose writes end at once. A read of its keys is under way from `choose` to `read`."""

    def __init__(
        self,
        keys: Collection[str],
        passes: Passes,
        capacity: int,
        table: TriggerTable,
        queue: str = "q",
        start: int = 0,
    ) -> None:
        """`start`: virtual time from an earlier owner."""
        self.keys = keys
        self.queue = queue
        record = LaneRecord(virtual_time=start)
        self.backlog = Backlog(1, record, passes, capacity, Timing(), is_new=True)
        self.backlog.is_read_by_key = True
        self.backlog.remember((), keys)
        table.spread(LaneKey(queue, 0, PRIORITY), self.backlog.turns_taken)
        self.reading: list[tuple[str, int]] = []
        """Keys that are being read, and how many tasks of each."""
        self._table = table
        self._rows: dict[Level, Trigger] = {}
        self._number = 0

    @property
    def stored(self) -> int:
        """Number of triggers that were written to the store."""
        return len(self._rows)

    def choose(self) -> bool:
        """Begin a read if the backlog asks for one and none is under way."""
        if self.reading or not self.backlog.is_asking:
            return False
        self.reading = self.backlog.choose_keys(len({*map(tenant_of, self.keys)}), 0)
        return bool(self.reading)

    def read(self) -> None:
        """End the read under way."""
        read, self.reading = self.reading, []
        made = [self._make(key) for key, most in read for _ in range(self._count(key, most))]
        self._apply(self.backlog.add(made))
        self.backlog.remember((), [key for key, _ in read if key in self.keys])

    def started(self, trigger: Trigger) -> None:
        """Take a trigger out of the lane, which runs now."""
        self.backlog.take([trigger])
        self.backlog.ack([trigger])

    def tidy(self) -> None:
        """Move triggers between memory and store until the backlog asks for nothing more."""
        self._apply(self.backlog.shrink())
        while (read := self.backlog.next_read()) is not None:
            above = [row for level, row in sorted(self._rows.items()) if level > read.above]
            self._apply(self.backlog.read(above[: read.limit]))

    def weight_of(self, key: str) -> float:
        """Return the weight of the next task of a key."""
        return 1.0

    def _count(self, key: str, most: int) -> int:
        """Return how many tasks of a key there are, of `most` that are wanted."""
        return most if key in self.keys else 1

    def _make(self, key: str) -> Trigger:
        self._number = number = self._number + 1
        id, weight = f"{self.queue} {number}", self.weight_of(key)
        return builders.trigger(
            id, key=key, queue=self.queue, priority=PRIORITY, weight=weight, seq=number
        )

    def _apply(self, changes: BacklogWrite | Changes) -> None:
        """Write what the backlog writes, and give the table what it adds and drops."""
        if isinstance(changes, BacklogWrite):
            self._rows |= {row.level: row for row in changes.entries if row.level is not None}
            changes = self.backlog.written(changes)
        self._table.remove(changes.dropped)
        for trigger in changes.added:
            self._table.push(trigger)


def shortfall(
    got: Mapping[str, float], sharers: Collection[str], weights: Mapping[str, float]
) -> float:
    """Return how much the share of a sharer is below its due by weight at most."""
    due, total = sum(weights[each] for each in sharers), sum(got.get(each, 0) for each in sharers)
    return max(weights[each] / due - got.get(each, 0) / total for each in sharers)


def by_tenant(keys: Collection[str]) -> dict[str, set[str]]:
    """Return the keys of each tenant."""
    found: dict[str, set[str]] = {}
    for key in sorted(keys):
        found.setdefault(tenant_of(key), set()).add(key)
    return found
