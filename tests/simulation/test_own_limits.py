"""No task starts after its fair position, apart from starts that pass its key while the key's own
limit is full, however long runs take and however late the node notes their ends."""

from __future__ import annotations

import random
from heapq import heappop, heappush

import pytest

from bench.lcg_limits import Lateness, WatchedTree
from fairlead.core.fair.flows import Flow
from fairlead.core.fair.strides import STRIDE_SCALE
from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.model import Trigger
from tests import builders, tiers
from tests.tiers import block, seeds

RUN = 2.0
WORLDS = 4
"""Worlds in one test."""


class World:
    """A node that runs the tasks of some keys, all pushed first, under a tree of limits."""

    def __init__(self, seed: int, stretch: float, is_stalled: bool) -> None:
        """`stretch`: factor by which a tenth of the runs take longer; with 1, all take the same
        time. `is_stalled`: whether the node has too little processor time, and notes many ends at
        once."""
        self._chance = chance = random.Random(f"own limits {seed}")
        self._stretch, self._is_stalled = stretch, is_stalled
        skew = chance.uniform(0.3, 1.5)
        counts = [max(1, round(300 / (n + 1) ** skew)) for n in range(chance.randint(2, 12))]
        keys = [f"key {n}" for n, count in enumerate(counts) for _ in range(count)]
        chance.shuffle(keys)
        total = chance.choice([3, 20, 50])
        tree = WatchedTree(keys, total, chance.randint(1, total))
        self.lateness: Lateness = tree.lateness
        self._ledger = SlotLedger(chance.choice([2, 30, 200]))
        self._ledger.register_queue("q", tree)
        self._table = TriggerTable(self._ledger)
        self._table.weigh("q", {})
        for n, key in enumerate(keys, 1):
            self._table.push(builders.trigger(f"{n:09}", "work", key, seq=n))
        self._tasks = len(keys)

    def run(self) -> Lateness:
        """Run all tasks; return how late they came."""
        chance, now, runs = self._chance, 0.0, list[tuple[float, int, Trigger]]()
        while True:
            while taken := self._table.take(chance.choice([1, 3, 500]), now)[0]:
                for trigger in taken:
                    heappush(runs, (now + self._seconds(), trigger.seq, trigger))
            if not runs:
                assert self.lateness.starts == self._tasks
                return self.lateness
            now = runs[0][0] + (chance.choice([0.0, 5.0, 50.0]) if self._is_stalled else 0.0)
            ended = list[Trigger]()
            while runs and runs[0][0] <= now:
                ended.append(heappop(runs)[2])
            if self._is_stalled:
                chance.shuffle(ended)
            for trigger in ended:
                self._table.freed(self._ledger.release(trigger, now))

    def _seconds(self) -> float:
        if self._stretch == 1:
            return RUN
        is_long = self._chance.random() < 0.1
        return RUN * self._chance.uniform(0.5, 1.5) * (self._stretch if is_long else 1)


@pytest.mark.parametrize("is_stalled", [False, True])
@pytest.mark.parametrize("stretch", [1, 1.01, 100])
@pytest.mark.parametrize("number", seeds(20, 1))
def test_no_task_is_late_but_by_starts_that_pass_a_key_at_its_own_limit(
    number: int, stretch: float, is_stalled: bool
) -> None:
    worlds = [World(seed, stretch, is_stalled) for seed in block(number, WORLDS)]
    found = [world.run() for world in worlds]
    assert [each.worst for each in found] == [0] * WORLDS
    # Runs of different lengths fill the own limits of some keys for longer than those of others.
    assert (max(each.worst_of_all for each in found) > 0) == (stretch > 1)


@pytest.mark.parametrize("stretch", [1, 100])
def test_the_tasks_of_a_key_are_late_if_each_moves_it_two_strides_on(
    monkeypatch: pytest.MonkeyPatch, stretch: float
) -> None:
    ran = Flow.ran

    def run_twice_as_far(flow: Flow, trigger: Trigger) -> None:
        ran(flow, trigger)
        flow.rank += STRIDE_SCALE * (flow.key == "key 1")

    monkeypatch.setattr(Flow, "ran", run_twice_as_far)
    assert World(tiers.seed(), stretch, False).run().worst > 0
