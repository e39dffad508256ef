"""No tenant gains worker time from the control law of weights beyond a stated bound, whatever tasks it
sends and when: neither the known strategies nor random ones."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.pipeline.tuning.guard_rails import Guards
from tests.simulation.tuning_adversaries import (
    HONEST,
    STEPS,
    STRATEGIES,
    Contest,
    Kind,
    Mix,
    Strategy,
    few_heavy_tasks,
    honest,
    law,
    many_keys,
    no_law,
    one_heavy_task,
    random_strategy,
    short_heavy_flood,
)
from tests.tiers import NIGHTLY, examples

GUARDS = Guards()
BOUND = 1.1
"""Greatest worker time of a tenant over some days, as a multiple of that to which it is entitled, or
of that which it would have had under the declared weights, if that is more."""


def contest(strategy: Strategy, hours: int, is_tuned: bool = True) -> Contest:
    return Contest(honest, strategy, law(GUARDS) if is_tuned else no_law, GUARDS).run(hours)


@pytest.mark.parametrize("hours", [96, pytest.param(240, marks=NIGHTLY("a long run"))])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.__name__)
def test_no_strategy_gains_more_than_a_tenth(strategy: Strategy, hours: int) -> None:
    without = contest(strategy, hours, is_tuned=False).gain()
    assert contest(strategy, hours).gain() <= BOUND * max(1.0, without)


@pytest.mark.parametrize(
    "strategy",
    [one_heavy_task, few_heavy_tasks, short_heavy_flood, many_keys],
    ids=lambda strategy: strategy.__name__,
)
def test_no_tenant_gains_from_heavy_tasks_on_any_day(strategy: Strategy) -> None:
    assert contest(strategy, 72).gain_of_day() < 1.02


@settings(max_examples=examples(100))
@given(st.integers(0, 10**6))
def test_no_random_strategy_gains_more_than_the_bound(seed: int) -> None:
    strategy = random_strategy(seed)
    without, tuned = contest(strategy, 96, is_tuned=False), contest(strategy, 96)
    assert tuned.gain() <= BOUND * max(1.0, without.gain()), seed
    day = 24
    for key in tuned.weights:
        weights = [hour[key] for hour in tuned.history if key in hour]
        assert all(
            1 / GUARDS.step <= after / before * (1 + 1e-9) and after / before <= GUARDS.step + 1e-9
            for before, after in pairwise(weights)
        ), seed
        for first in range(len(weights)):
            window = weights[first : first + day + 1]
            assert max(window) <= GUARDS.daily * min(window) * (1 + 1e-9), seed


@pytest.mark.parametrize(
    "cause", [Kind(1.0, 1.0), Kind(3.0, 4.0)], ids=["short tasks", "heavy tasks"]
)
def test_a_weight_whose_cause_is_gone_falls_as_quickly_as_it_rose(cause: Kind) -> None:
    """The cause lasts from the sixth to the tenth day. Both ways of the ratio to another key are timed
    to their middle."""
    start, end, last = 120, 240, 360

    def strategy(step: int) -> Mapping[str, Mix]:
        return {"b": Mix((cause,)) if start <= step // STEPS < end else HONEST}

    history = contest(strategy, last).history
    weights = [hour.get("b", 1.0) / hour.get("a", 1.0) for hour in history]
    high = max(weights)
    middle = (1.0 + high) / 2
    rise = next(n for n, weight in enumerate(weights[start:]) if weight >= middle)
    fall = next(n for n, weight in enumerate(weights[end:]) if weight <= middle)
    assert high > 2.5 and weights[-1] < 1.25
    assert fall <= rise + 6
