"""A random world of many fair lanes that are read by fairness key, with very little memory each,
over one trigger table. Each lane has more tasks than can run. Now and then a task of a new key
comes, alone: the next one comes after it has started."""

from __future__ import annotations

import random

from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.slot_ledger import SlotLedger
from tests.simulation.stored_lane import StoredLane


class ReadLane(StoredLane):
    """One lane, with reads that take some time. `ready_at`: number of starts, in all lanes, after which
    the read under way ends."""

    ready_at = 0

    def come(self, key: str) -> None:
        """Let a task of a new key come."""
        self.core.remember([key], ())

    def work(self, now: int, latency: int) -> None:
        """Begin a read, or end the one under way, if it is time. `now`: number of starts."""
        if self.choose():
            self.ready_at = now + latency
        if self.reading and now >= self.ready_at:
            self.read()


class QueuesWorld:
    """One world; `run` returns the longest wait of a new key."""

    def __init__(self, seed: int) -> None:
        self._chance = chance = random.Random(f"queues world {seed}")
        self.latency = chance.choice([0, 1, 3, 10])
        self._table = TriggerTable(SlotLedger(1_000_000))
        capacity, most_keys = chance.choice([2, 4, 8, 20]), chance.choice([3, 10, 30])
        self.lanes: dict[str, ReadLane] = {}
        for number in range(chance.choice([2, 5, 20])):
            queue = f"q{number}"
            keys = [f"k{n}" for n in range(chance.randint(1, most_keys))]
            self._table.weigh(queue, {})
            self.lanes[queue] = ReadLane(keys, capacity, self._table, queue)
        self._newcomers = 0
        self._has_paths = chance.random() < 0.3

    def run(self, count: int) -> int:
        """Start tasks one by one; return the most starts for which a new key waited beyond the end
        of the read under way and of its own."""
        worst, now = 0, 0
        waiting: tuple[str, int] | None = None
        while now < count:
            if waiting is None and now > 50 and self._chance.random() < 0.2:
                queue = self._chance.choice([*self.lanes])
                self._newcomers += 1
                key = f"new {self._newcomers}" + ("/a" if self._has_paths else "")
                self.lanes[queue].come(key)
                waiting = (key, now)
            for lane in self.lanes.values():
                lane.work(now, self.latency)
            taken, _ = self._table.take(1, 0.0)
            now += 1
            for trigger in taken:
                lane = self.lanes[trigger.queue]
                lane.started(trigger)
                if waiting is not None and trigger.fairness_key == waiting[0]:
                    worst = max(worst, now - 1 - waiting[1] - 2 * self.latency)
                    waiting = None
        if waiting is not None:
            worst = max(worst, now - waiting[1] - 2 * self.latency)
        return worst
