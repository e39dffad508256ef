"""The bound of start-time fair queueing holds between any two keys that are runnable at the same
time, whatever limits hold others back, and a mutation of the rule breaks it."""

from __future__ import annotations

from collections.abc import Iterable
from sys import maxsize

import pytest

from fairlead.core.triggers import table
from fairlead.core.triggers.fair_entries import FairLane, VirtualTime
from fairlead.model import Trigger
from tests import tiers
from tests.simulation.fair_world import FairWorld
from tests.tiers import seeds

WORLDS = 8
"""Worlds in one test."""

ROUNDING = 1e-9

FIRST = tiers.seed()


def worlds(number: int) -> Iterable[int]:
    return range(FIRST + number * WORLDS, FIRST + (number + 1) * WORLDS)


@pytest.mark.parametrize("capacity", [maxsize, 30, 8])
@pytest.mark.parametrize("number", seeds(50, 2))
def test_runnable_keys_are_served_within_the_bound_whatever_the_limits(
    number: int, capacity: int
) -> None:
    for seed in worlds(number):
        worst = FairWorld(seed, capacity=capacity).run()
        assert worst <= 1 + ROUNDING, f"seed {seed}: {worst:.3f} times the bound"


@pytest.mark.parametrize("number", seeds(50, 2))
def test_a_key_that_waits_in_several_columns_gains_or_loses_one_stride_for_each(
    number: int,
) -> None:
    """Tasks of a key have several names and ordering keys."""
    for seed in worlds(number):
        worst = FairWorld(seed, is_mixed=True).run()
        assert worst <= 1 + ROUNDING, f"seed {seed}: {worst:.3f} times the bound"


class ByLevel(FairWorld):
    """Give each trigger its rank on arrival, by its level."""

    def push(self, trigger: Trigger) -> None:
        assert trigger.level is not None
        self.table.push(trigger, trigger.level.pass_)


def test_the_bound_breaks_if_tasks_get_their_ranks_on_arrival() -> None:
    assert any(ByLevel(seed).run() > 1.5 for seed in range(50))


class StandingTime(VirtualTime):
    """A virtual time before every rank."""

    __slots__ = ()
    now = property(lambda self: -1, lambda self, now: None)  # type: ignore[assignment]


def test_the_bound_breaks_if_a_key_that_was_held_back_does_not_restart_at_the_virtual_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "FairLane", lambda _, weights: FairLane(StandingTime(), weights))
    assert any(FairWorld(seed).run() > 1.5 for seed in range(50))
