"""The look-ahead of a node as a budget in bytes: who gets how much."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.look_ahead import (
    LASTS_SECONDS,
    LEAST,
    RESERVE_SHARE,
    STEADY_SHARE,
    TRIGGER_BYTES,
    Budget,
    mean_size,
)
from tests.builders import trigger

MOST = 40_000
RATES = st.sampled_from([0.0, 0.1, 3.0, 50.0, 1000.0, 20_000.0])
BUDGETS = st.integers(10_000, 100_000_000)


@dataclass
class World:
    """Lanes that dispatch at constant rates and always have more triggers in the store."""

    budget: Budget[int]
    rates: list[float]
    now: float = 0.0

    def pass_seconds(self, count: int) -> list[dict[int, int]]:
        """Let time pass; return the capacities after each rebalance."""
        found = []
        for _ in range(count):
            self.now += 2.0
            for lane, rate in enumerate(self.rates):
                share = self.budget.refill(lane, MOST, self.now)
                share.taken += round(rate * 2)
                self.check()
            if self.budget.is_short:
                self.budget.rebalance(self.now, lambda lane: None)
                self.check()
            found.append(self.capacities)
        return found

    @property
    def capacities(self) -> dict[int, int]:
        return {lane: share.capacity for lane, share in self.budget.shares.items()}

    def check(self) -> None:
        shares = [share.granted for share in self.budget.shares.values()]
        assert sum(shares) == self.budget.granted <= self.budget.size
        assert all(share.capacity >= 1 for share in self.budget.shares.values())


@settings(deadline=None)
@given(BUDGETS, st.lists(RATES, min_size=1, max_size=60))
def test_a_constant_world_comes_to_rest_with_what_each_lane_needs_as_far_as_it_fits(
    size: int, rates: list[float]
) -> None:
    """If the needs do not fit, no lane starves, and one that dispatches more never has less."""
    world = World(Budget(size), rates)
    world.pass_seconds(60)
    found = world.pass_seconds(30)
    assert all(capacities == found[0] for capacities in found)
    room, steady = size - size // RESERVE_SHARE, 1 - 1 / STEADY_SHARE
    needs = [min(MOST, max(LEAST, rate * LASTS_SECONDS)) for rate in rates]
    even = room // len(rates) // TRIGGER_BYTES
    for lane, need in enumerate(needs):
        assert world.capacities[lane] >= min(even, LEAST) * steady - 1
        if sum(needs) * TRIGGER_BYTES <= room:
            assert not world.budget.is_short
            assert world.capacities[lane] >= need - 1
    if world.budget.is_short:
        ranked = sorted(range(len(rates)), key=rates.__getitem__)
        for slow, fast in zip(ranked, ranked[1:], strict=False):
            assert world.capacities[fast] >= int(world.capacities[slow] * steady) - 1


@settings(deadline=None)
@given(BUDGETS, st.integers(0, 2**32))
def test_shares_fit_the_budget_whatever_lanes_do(size: int, seed: int) -> None:
    chance = random.Random(seed)
    world = World(Budget(size), [])
    budget = world.budget
    for _ in range(300):
        world.now += chance.choice([0.0, 0.1, 3.0])
        lane = chance.randrange(30)
        most = chance.choice([1, 80, MOST])
        match chance.randrange(6):
            case 0:
                budget.refill(lane, most, world.now)
            case 1:
                count = chance.randrange(5000)
                share = budget.want(lane, count, most, world.now)
                assert budget.is_short or share.capacity >= min(count, most)
            case 2:
                budget.leave(lane)
            case 3:
                keys = ["k" * chance.randrange(1000) for _ in range(5)]
                budget.measure(lane, [trigger(n, key=key) for n, key in enumerate(keys)])
            case 4:
                for share in budget.shares.values():
                    share.taken += chance.randrange(10_000)
            case 5:
                budget.rebalance(world.now, lambda lane: chance.choice([None, 0, 10, 5000]))
        world.check()


def test_a_lane_whose_triggers_are_all_in_memory_gives_back_what_it_cannot_use() -> None:
    budget = Budget[str](10_000_000)
    for _ in range(30):
        budget.want("burst", 5000, MOST, 0.0)
    budget.refill("deep", MOST, 0.0)
    for _ in range(2):
        budget.rebalance(0.0, {"burst": 50, "deep": None}.__getitem__)
    assert budget.shares["burst"].capacity == 50
    assert budget.shares["deep"].granted > 8_000_000


def test_long_keys_lower_the_number_of_triggers() -> None:
    budget = Budget[str](900_000)
    for _ in range(100):
        budget.refill("q", MOST, 0.0)
    before = budget.shares["q"].capacity
    for _ in range(20):
        budget.measure("q", [trigger(n, key="k" * 900 + str(n)) for n in range(10)])
    assert budget.shares["q"].capacity == pytest.approx(before / 2, rel=0.05)


def test_equal_keys_count_once() -> None:
    same, other = "k" * 1000, [f"{n:01000}" for n in range(10)]
    assert mean_size([trigger(n, key=same) for n in range(10)]) < TRIGGER_BYTES + 150
    assert mean_size([trigger(n, key=key) for n, key in enumerate(other)]) > TRIGGER_BYTES + 1000
    assert (
        mean_size([trigger(n, ordering_key=key) for n, key in enumerate(other)])
        > TRIGGER_BYTES + 1000
    )
