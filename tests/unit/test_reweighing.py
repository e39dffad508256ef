"""New weights give tasks in memory new levels; what the store has keeps its levels."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from fairlead.core.fair.backlog import Backlog, BacklogWrite, Changes, Timing
from fairlead.core.fair.counters import Counters
from fairlead.core.fair.passes import Passes
from fairlead.model import LaneRecord, Trigger
from tests.builders import trigger
from tests.tiers import seeds


class Lane:
    """A new lane whose owner runs the lowest level first."""

    def __init__(self, capacity: int = 10_000) -> None:
        self.weights: dict[str, float] = {}
        self.ran: list[Trigger] = []
        self.passes = Passes(Counters(), self.weights)
        self.backlog = Backlog(1, LaneRecord(), self.passes, capacity, Timing(), is_new=True)
        self._seq = 0

    def submit(self, keys: list[str]) -> BacklogWrite | Changes:
        triggers = []
        for key in keys:
            self._seq += 1
            triggers.append(trigger(self._seq, key=key))
        return self.backlog.add(triggers)

    def weigh(self, **weights: float) -> list[Trigger]:
        """Set weights of keys; return the triggers with new levels."""
        self.weights.update(weights)
        return self.backlog.reweigh(weights.keys())[1]

    def run(self, most: int) -> None:
        for _ in range(most):
            waiting = self.backlog.loaded()[:1]
            self.backlog.take(waiting)
            self.backlog.ack(waiting)
            self.ran += waiting


@pytest.mark.parametrize("seed", seeds(60, few=8))
def test_tasks_of_a_key_run_in_order_whatever_weights_change_meanwhile(seed: int) -> None:
    chance, lane = Random(seed), Lane()
    for _ in range(100):
        lane.submit(chance.choices("abcd", k=chance.randint(1, 10)))
        lane.weigh(**{chance.choice("abc"): chance.choice((0.1, 0.5, 1.0, 3.0, 20.0))})
        lane.run(chance.randint(1, 5))
    lane.run(len(lane.backlog))
    assert len(lane.ran) == lane._seq == len({each.id for each in lane.ran})
    for key in "abcd":
        ran = [each.seq for each in lane.ran if each.fairness_key == key]
        assert ran == sorted(ran)


@pytest.mark.parametrize("weights", [{"a": 4.0}, {"a": 0.25}, {"a": 9.0, "b": 3.0}])
@pytest.mark.parametrize("flood", ["a", "b"])
def test_shares_of_waiting_tasks_follow_new_weights_at_once(
    weights: dict[str, float], flood: str
) -> None:
    lane = Lane()
    lane.submit([flood] * 200)
    lane.submit([*"abc"] * 400)
    lane.run(60)
    lane.ran.clear()
    lane.weigh(**weights)
    lane.run(200)
    served = Counter(each.fairness_key for each in lane.ran)
    due = {key: 1 / lane.weights.get(key, 1.0) for key in "abc"}
    for one in "abc":
        for other in "abc":
            apart = abs(served[one] * due[one] - served[other] * due[other])
            assert apart <= due[one] + due[other], (one, other, served)


def test_a_lane_with_stored_tasks_keeps_its_levels_and_gives_later_ones_at_the_new_weight() -> None:
    lane = Lane(capacity=10)
    write = lane.submit([*"ab"] * 20)
    assert isinstance(write, BacklogWrite)
    lane.backlog.written(write)
    assert lane.weigh(a=4.0) == []
    later = lane.submit(["a"] * 2)
    assert isinstance(later, BacklogWrite)
    first, second = (each.level for each in later.entries)
    assert first is not None and second is not None and second.pass_ - first.pass_ == 250_000


@pytest.mark.parametrize("by_key", [True, False])
def test_a_key_runs_soon_after_its_new_weight_beside_stored_levels(by_key: bool) -> None:
    lane = Lane(capacity=10)
    write = lane.submit([*"ab"] * 20)
    assert isinstance(write, BacklogWrite)
    lane.backlog.written(write)
    lane.backlog.is_read_by_key = by_key
    assert lane.weigh(a=1000.0) == []
    assert lane.passes.next_pass("a") <= lane.backlog.virtual_time + 1000
    assert lane.passes.next_pass("b") == 20 * 1_000_000 + 1
