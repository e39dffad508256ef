"""New weights give stored tasks new levels: order within a key, shares between keys, and owners that
change meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable
from random import Random

import pytest

from fairlead.backends.memory.backlog import MemoryBacklogStore
from fairlead.core.fair.backlog import Backlog
from fairlead.core.fair.counters import Counters
from fairlead.core.fair.passes import Passes
from fairlead.core.fair.steps import BacklogWrite, Timing
from fairlead.model import LaneKey, LaneRecord, PartitionKey, Trigger
from tests.builders import trigger
from tests.tiers import seeds

LANE = LaneKey("post", 0, 5)
CAPACITY = 20


class Lane:
    """A lane whose owner runs the lowest level first, over a store in memory."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.weights: dict[str, float] = {}
        self.ran: list[Trigger] = []
        self.store = MemoryBacklogStore()
        self.changed: set[str] = set()
        self._seq = 0
        self.take_over()

    def take_over(self) -> None:
        """Begin with a new owner, from what is stored."""
        owned = asyncio.run(self.store.take_over([PartitionKey(*LANE[:2])]))[
            PartitionKey(*LANE[:2])
        ]
        self.range_id = owned.range_id
        record = owned.lanes.get(LANE.priority, LaneRecord())
        self.backlog = Backlog(
            owned.range_id, record, Passes(Counters(), self.weights), CAPACITY, Timing()
        )
        self.changed = self.backlog.outweighed
        self._fill()

    def submit(self, keys: Iterable[str]) -> None:
        """Give new tasks of these keys their levels."""
        triggers = []
        for key in keys:
            self._seq += 1
            triggers.append(trigger(self._seq, key=key))
        self._write(self.backlog.add(triggers))

    def weigh(self, **weights: float) -> None:
        """Set weights of keys."""
        self.weights.update(weights)
        self.changed |= weights.keys()

    def reweigh(self) -> None:
        """Give the triggers in memory new levels."""
        if self.changed and self.backlog.can_reweigh:
            _, placed = self.backlog.reweigh(self.changed)
            self.changed = set()
            self._write(placed)

    def record(self) -> None:
        """Save the state for the next owner."""
        asyncio.run(self.store.write(LANE, self.range_id, [], self.backlog.record()))

    def renew(self, most: int) -> bool:
        """Give at most `most` stored entries new levels; return whether any may be left."""
        renewal = self.backlog.next_renewal(most)
        if renewal is None:
            return False
        found = asyncio.run(
            self.store.entries_of(LANE, renewal.above, renewal.tenants, renewal.limit)
        )
        write = self.backlog.renew(*found)
        if write is not None:
            self._write(write)
        return True

    def run(self, most: int) -> None:
        """Run tasks, lowest level first."""
        for _ in range(most):
            self._fill()
            waiting = self.backlog.loaded()
            if not waiting:
                return
            self.backlog.take(waiting[:1])
            self.backlog.ack(waiting[:1])
            self.ran += waiting[:1]

    def settle(self) -> None:
        """Finish all reweighing."""
        while self.changed or self.renew(50):
            self.reweigh()
            while self.renew(50):
                pass

    def _fill(self) -> None:
        while (read := self.backlog.next_read()) is not None:
            rows = asyncio.run(self.store.read_above(LANE, read.above, read.limit))
            self.backlog.read(rows)
            if not rows:
                return

    def _write(self, placed: object) -> None:
        if isinstance(placed, BacklogWrite):
            asyncio.run(
                self.store.write(LANE, self.range_id, placed.entries, placed.record, placed.moved)
            )
            self.backlog.written(placed)


@pytest.mark.parametrize("seed", seeds(60, few=8))
def test_tasks_of_a_key_run_in_order_whatever_weights_change_meanwhile(seed: int) -> None:
    chance = Random(seed)
    lane = Lane(chance)
    lane.submit(["a"] * chance.randint(30, 100) + ["b"] * 30 + ["c"] * 10)
    for _ in range(150):
        match chance.randint(0, 9):
            case 0:
                lane.weigh(**{chance.choice("abc"): chance.choice((0.1, 0.5, 1.0, 3.0, 20.0))})
            case 1 | 2:
                lane.submit(chance.choices("abcd", k=chance.randint(1, 10)))
            case 3 | 4 | 5:
                lane.reweigh()
                lane.renew(chance.choice((1, 3, 10)))
            case _:
                lane.run(chance.randint(1, 5))
    lane.settle()
    lane.run(10_000)
    by_key: defaultdict[str, list[int]] = defaultdict(list)
    for each in lane.ran:
        by_key[each.fairness_key].append(each.seq)
    assert sum(map(len, by_key.values())) == lane._seq, "not each task ran once"
    assert {key: seqs == sorted(seqs) for key, seqs in by_key.items()} == dict.fromkeys(
        by_key, True
    )


@pytest.mark.parametrize("weights", [{"a": 4.0}, {"a": 0.25}, {"a": 9.0, "b": 3.0}])
@pytest.mark.parametrize("flood", ["a", "b"])
def test_shares_of_a_long_backlog_follow_new_weights_at_once(
    weights: dict[str, float], flood: str
) -> None:
    lane = Lane(Random(0))
    lane.submit([flood] * 200)
    lane.submit([*"abc"] * 400)
    lane.run(60)
    lane.ran.clear()
    lane.weigh(**weights)
    lane.settle()
    lane.run(200)
    served = Counter(trigger.fairness_key for trigger in lane.ran)
    due = {key: 1 / lane.weights.get(key, 1.0) for key in "abc"}
    for one in "abc":
        for other in "abc":
            apart = abs(served[one] * due[one] - served[other] * due[other])
            assert apart <= due[one] + due[other], (one, other, served)


def test_a_new_owner_finishes_a_reweighing() -> None:
    lane = Lane(Random(0))
    lane.submit([*"ab"] * 300)
    lane.weigh(a=0.2, b=2.0)
    lane.reweigh()
    for _ in range(10):
        lane.renew(7)
    lane.take_over()
    lane.settle()
    lane.run(330)
    served = Counter(trigger.fairness_key for trigger in lane.ran)
    assert served["b"] == pytest.approx(300, abs=2)
    lane.run(1000)
    assert [t.seq for t in lane.ran if t.fairness_key == "a"] == [*range(1, 601, 2)]


@pytest.mark.parametrize("is_owner_told", [False, True])
def test_a_new_owner_follows_weights_that_changed_before_it_came(is_owner_told: bool) -> None:
    lane = Lane(Random(0))
    lane.weigh(a=2.0, c=3.0)
    lane.reweigh()
    lane.submit([*"abc"] * 200)
    del lane.weights["c"]
    lane.weigh(a=1.0, b=4.0)
    if is_owner_told:  # but it ends before it gives stored triggers new levels
        lane.record()
    lane.take_over()
    assert lane.changed == set("abc")
    lane.settle()
    lane.run(180)
    served = Counter(trigger.fairness_key for trigger in lane.ran)
    assert served == {
        "a": pytest.approx(30, abs=2),
        "b": pytest.approx(120, abs=2),
        "c": pytest.approx(30, abs=2),
    }
    lane.record()
    lane.take_over()
    assert not lane.changed
