"""A fair lane with the rows that its channel keeps, and the trigger table that it fills. Every key has
more tasks than can run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fairlead.core.fair.keyed_lane import KeyedLane
from fairlead.core.fair.table import TriggerTable
from fairlead.model import Feed, LaneKey, Trigger, tenant_of
from tests import builders

PRIORITY = 5


class StoredLane:
    """A lane of a queue of the table. A read of its keys is under way from `choose` to `read`."""

    def __init__(
        self, keys: Collection[str], capacity: int, table: TriggerTable, queue: str = "q"
    ) -> None:
        self.keys = keys
        self.queue = queue
        self.core = KeyedLane(table.lane(LaneKey(queue, 0, PRIORITY)), table.column)
        self.core.capacity = capacity
        self.core.remember((), [Feed(key) for key in keys])
        self.reading: list[tuple[str, int]] = []
        """Keys that are being read, and how many tasks of each."""
        self._table = table
        self._number = 0

    def choose(self) -> bool:
        """Begin a read if the lane asks for one and none is under way."""
        if self.reading or not self.core.is_asking:
            return False
        chosen = self.core.choose(len({*map(tenant_of, self.keys)}), 0)
        self.reading = [(feed.key, most) for feed, most in chosen]
        return bool(self.reading)

    def read(self) -> None:
        """End the read under way."""
        read, self.reading = self.reading, []
        made = [self._make(key) for key, most in read for _ in range(self._count(key, most))]
        self.core.came(made)
        for trigger in made:
            self._table.push(trigger)
        self.core.remember((), [Feed(key) for key, _ in read if key in self.keys])

    def started(self, trigger: Trigger) -> None:
        """Take a trigger out of the lane, which runs now."""
        self.core.left([trigger])

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
