"""Queues that charge run time, simulated from the level to the end of the run, with adverse run
times.

The simulation uses the whole core: levels by expected run time, a memory smaller than the backlog, the
trigger table, and several workers. Every run is drawn from a seed. FAIRLEAD_SEED repeats a run.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import pytest

from fairlead.core.fair.backlog import Backlog
from fairlead.core.fair.counters import Counters
from fairlead.core.fair.run_times import RunTimes
from fairlead.core.fair.steps import BacklogWrite, Changes, Timing
from fairlead.core.fair.time_passes import TimePasses
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.core.triggers.table import TriggerTable
from fairlead.lab.list_store import ListStore
from fairlead.model import LaneRecord, Trigger
from tests import tiers
from tests.fairness_gap import jain

SEED = tiers.seed()
SECOND = 1_000_000
WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 0.5}

Costs = Callable[[str, int, random.Random], int]
"""Run time of the n-th run of a key in microseconds."""


def constant(key: str, n: int, chance: random.Random) -> int:
    return {"a": 50, "b": 100, "c": 1000, "d": 3000}[key] * SECOND // 1000


def changing(key: str, n: int, chance: random.Random) -> int:
    """Return run times that change a hundredfold between windows of tasks, at different times for
    each key."""
    return SECOND // 100 * (100 if (n // 40 + ord(key)) % 2 else 1)


def heavy_tailed(key: str, n: int, chance: random.Random) -> int:
    return round(min(50.0, chance.paretovariate(1.1)) * SECOND / 10)


def deceiving(key: str, n: int, chance: random.Random) -> int:
    """Return run times of key a that are short while they are learnt, and long afterwards."""
    return SECOND if key == "a" and n % 31 == 30 else SECOND // 100 if key == "a" else SECOND // 10


class Lane:
    """One lane on several workers; each key always has `depth` waiting tasks. Time is in
    microseconds."""

    def __init__(
        self, costs: Costs, chance: random.Random, workers: int, depth: int, memory: int
    ) -> None:
        self.costs, self.chance, self.depth = costs, chance, depth
        self.run_times = RunTimes()
        passes = TimePasses(Counters(), WEIGHTS, self.run_times)
        self.backlog = Backlog(1, LaneRecord(), passes, memory, Timing(), is_new=True)
        self.ledger = SlotLedger(workers)
        self.ledger.register_task("q", "pay")
        self.table = TriggerTable(self.ledger)
        self.table.weigh("q", WEIGHTS)
        self.table.share_run_time("q", self.run_times)
        self.store = ListStore()
        self.running: list[tuple[int, int, Trigger]] = []
        self.cost: dict[str, int] = {}
        self.submitted: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.ran: Counter[str] = Counter()
        self.now = 0

    def feed(self) -> None:
        new = []
        for key in WEIGHTS:
            while self.waiting[key] < self.depth:
                number = self.submitted.total() + 1
                one = Trigger(f"t{number}", 1, "q", 0, "pay", 5, key, 1.0, None, seq=number)
                self.cost[one.id] = self.costs(key, self.submitted[key], self.chance)
                self.submitted[key] += 1
                self.waiting[key] += 1
                new.append(one)
        if new:
            self.chance.shuffle(new)
            placed = self.backlog.add(new)
            if isinstance(placed, BacklogWrite):
                self.store.write(placed.entries)
                placed = self.backlog.written(placed)
            self.apply(placed)
        self.settle()

    def settle(self) -> None:
        while (read := self.backlog.next_read()) is not None:
            self.apply(self.backlog.read(self.store.read_above(read.above, read.limit)))
        if (through := self.backlog.next_delete(0.0)) is not None:
            self.store.delete_through(through)
            self.backlog.deleted(through, 0.0)

    def apply(self, changes: Changes) -> None:
        self.table.remove(changes.dropped)
        for one in changes.added:
            self.table.push(one)

    def served(self, until: int) -> Iterator[tuple[str, int]]:
        """Yield (key, run time) of each task as it starts."""
        while self.now < until:
            self.feed()
            while taken := self.table.take(1, self.now / 1e6)[0]:
                [one] = taken
                self.backlog.take([one])
                self.backlog.ack([one])
                self.ran[one.id] += 1
                self.waiting[one.fairness_key] -= 1
                heappush(self.running, (self.now + self.cost[one.id], one.seq, one))
                yield one.fairness_key, self.cost[one.id]
                self.feed()
            self.now, _, ended = heappop(self.running)
            self.table.freed(self.ledger.release(ended, self.now / 1e6))
            cost = self.cost[ended.id]
            self.table.ended(ended, cost)
            self.run_times.ended(ended.name, ended.fairness_key, cost)


def index(lane: Lane, learnt: int, until: int) -> float:
    """Return Jain's index of the run times of keys by weight, from `learnt` to `until`."""
    got: Counter[str] = Counter()
    for key, cost in lane.served(until):
        if lane.now > learnt:
            got[key] += cost
    assert max(lane.ran.values()) == 1
    return jain([got[key] / weight for key, weight in WEIGHTS.items()])


@pytest.mark.parametrize("costs", [constant, changing, heavy_tailed, deceiving])
@pytest.mark.parametrize("workers", [1, 8])
def test_keys_that_wait_all_the_time_get_the_same_run_time_by_weight(
    costs: Costs, workers: int
) -> None:
    lane = Lane(costs, random.Random(SEED), workers, depth=50, memory=10_000)
    found = index(lane, 60 * SECOND // workers, 300 * SECOND // workers)
    assert found > 0.99, f"FAIRLEAD_SEED={SEED}"


@pytest.mark.parametrize("costs", [constant, changing, heavy_tailed])
def test_with_more_waiting_tasks_than_fit_in_memory_run_times_are_still_nearly_the_same(
    costs: Costs,
) -> None:
    lane = Lane(costs, random.Random(SEED), 4, depth=100, memory=100)
    found = index(
        lane, 200 * SECOND, 400 * SECOND
    )  # tasks levelled before any run time was known have run by then
    assert found > 0.9, f"FAIRLEAD_SEED={SEED}"


def test_the_simulation_detects_a_lane_that_ignores_the_ends_of_runs() -> None:
    lane = Lane(constant, random.Random(SEED), 1, depth=50, memory=10_000)
    lane.table.ended = lambda *_: None  # type: ignore[method-assign]
    lane.run_times.ended = lambda *_: None  # type: ignore[method-assign]
    assert index(lane, 0, 60 * SECOND) < 0.9
