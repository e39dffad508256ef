"""Limits in a closed loop over the real table and slot ledger settle soon at the right values, and rise
again; under any constant load, limits and weights come to rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlead.pipeline.tuning.guard_rails import Guards
from tests.simulation.tuning_flow import Flow, FlowLoop
from tests.simulation.tuning_loop import HOUR, Load, Loop, Round
from tests.tiers import examples, seeds

FAST = Guards(half_life=2 * HOUR)
SLOTS = 10
SOON = 10
WEIGHTS = {"long": 0.05}
"""Weight that `tune` gives a key whose tasks run this much longer, so that others get a free slot
first."""

CALM = {"long": Load(240.0, 99.0), "a": Load(6.0, 1.5), "b": Load(6.0, 1.5), "c": Load(6.0, 1.5)}
"""Load in which the other keys ask for 4.5 slots, so that 5.5 are due to `long`: a limit of 7 with
headroom."""
EXPECTED_LIMIT = 1.25 * 5.5


def alone(hour: float) -> dict[str, Load]:
    """Return a load in which the other keys have almost no tasks for some hours."""
    if not 24 <= hour < 48:
        return CALM
    return {key: load if key == "long" else load._replace(asks=0.05) for key, load in CALM.items()}


def mean(rounds: Sequence[Round], key: str) -> float:
    return sum(round.wait[key] for round in rounds) / len(rounds)


def settled(rounds: Sequence[Round]) -> bool:
    return len({tuple(round.limits.items()) for round in rounds}) == 1


def test_without_limits_long_runs_hold_nearly_all_slots_and_the_others_wait_for_their_end() -> None:
    rounds = Loop(lambda hour: CALM, FAST, SLOTS, weights=WEIGHTS, limits=False).run(SOON)
    assert max(round.peak["long"] for round in rounds) > 9
    assert not any(round.published for round in rounds)


@pytest.mark.parametrize("seed", seeds(1))
def test_the_feedback_settles_within_ten_rounds_without_overshoot(seed: int) -> None:
    rounds = Loop(lambda hour: CALM, FAST, SLOTS, seed, WEIGHTS).run(24)
    limits = [round.limits.get("long", SLOTS) for round in rounds]
    assert set(limits[SOON:]) == {7} and settled(rounds[SOON:])
    assert min(limits) > EXPECTED_LIMIT * 0.9
    assert not any(round.published for round in rounds[SOON:])
    assert max(round.peak["long"] for round in rounds[SOON:]) <= 7 + 1e-6
    # No other key is limited, and no slot is free while the others have tasks.
    assert all(round.limits.keys() <= {"long"} for round in rounds)
    assert min(round.busy for round in rounds[SOON:]) > 0.95


@pytest.mark.nightly("a long run")
def test_other_keys_wait_less_with_the_limit() -> None:
    without, limited = (
        Loop(lambda hour: CALM, FAST, SLOTS, weights=WEIGHTS, limits=limits).run(20)[SOON:]
        for limits in (False, True)
    )
    for key in ("a", "b", "c"):
        assert mean(limited, key) < 0.9 * mean(without, key)


@pytest.mark.nightly("a long run")
def test_a_limit_rises_while_other_keys_are_idle_and_comes_back() -> None:
    """Otherwise a limit would tighten by itself, because a key at its limit never shows more use than
    the limit."""
    rounds = Loop(alone, FAST, SLOTS, weights=WEIGHTS).run(80)
    assert rounds[23].limits == {"long": 7} and rounds[24].busy < 0.95
    assert (
        rounds[24 + SOON].limits == {}
        and min(round.busy for round in rounds[25 + SOON : 48]) > 0.99
    )
    assert rounds[48 + SOON].limits == {"long": 7}
    assert settled(rounds[48 + SOON :]) and not any(
        round.published for round in rounds[49 + SOON :]
    )


def test_a_limit_that_starts_far_above_the_use_of_the_key_goes_down_and_stays() -> None:
    """The key holds 20 of 100 slots and finds them at once, and two are due to it beside a key that
    always waits. The first limits never delay it."""
    load = {"small": Load(600.0, 20.0, 0.2), "big": Load(300.0, 100.0, 10.0)}
    rounds = Loop(lambda hour: load, FAST, 100, weights={"small": 10.0, "big": 10.0}).run(36)
    limits = [round.limits.get("small", 100) for round in rounds]
    first = limits.index(80)
    assert limits[: first + 1] == [100] * first + [80]
    assert limits == sorted(limits, reverse=True) and settled(rounds[24:])
    assert rounds[-1].limits == {"small": 3} and not any(r.published for r in rounds[24:])


# any constant load --------------------------------------------------------------------------------


@st.composite
def flows(draw: st.DrawFn, slots: int) -> Flow:
    asks = draw(st.just(math.inf) | st.floats(0, 0.3 * slots) | st.floats(0, 1.2 * slots))
    return Flow(
        due=draw(st.sampled_from([0.2, 1.0, 3.0, 10.0])),
        run=draw(st.sampled_from([10.0, 60.0, 600.0])),
        asks=asks,
        peak=asks * draw(st.sampled_from([1.0, 1.5, 3.0])),
    )


class World(NamedTuple):
    """Nodes, the limits in force, and a load that is replaced by another: keys come, go and ask for
    more or less."""

    guards: Guards
    slots: int
    nodes: int
    limits: dict[str, int]
    has_weights: bool
    """Whether weights are tuned too."""
    loads: list[dict[str, Flow]]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    slots, nodes = draw(st.sampled_from([1, 2, 3, 5, 10, 50, 100])), draw(st.sampled_from([1, 4]))
    names = st.sampled_from(["a", "b", "c", "d"])
    guards = Guards(
        half_life=draw(st.sampled_from([1, 2])) * HOUR,
        least_tasks=1,
        step=draw(st.sampled_from([1.1, 1.25, 2.0])),
        dead_band=draw(st.sampled_from([0.0, 0.05, 0.1, 0.2])),
        headroom=draw(st.sampled_from([1.25, 1.5, 2.0])),
        daily=draw(st.sampled_from([4.0, 10.0])),
    )
    limits = draw(st.dictionaries(names, st.integers(1, slots)))
    loads = st.dictionaries(names, flows(slots * nodes), min_size=1)
    return World(guards, slots, nodes, limits, draw(st.booleans()), [draw(loads), draw(loads)])


FAR_BELOW_ALL_SLOTS = {
    "small": Flow(0.2, 600.0, 80.0, 80.0),
    "big": Flow(10.0, 10.0, math.inf, math.inf),
}
"""Two slots of each node are due to a key that uses 20 of 100 and never waits."""


AT_A_BOUND = {
    "long": Flow(5.0, 100.0, math.inf, math.inf),
    "short": Flow(2.0, 1.0, math.inf, math.inf),
    "other": Flow(1.0, 1.0, math.inf, math.inf),
}
"""The first key would need less than the lowest weight, so all miss their raw weights."""

WITHOUT_A_DEAD_BAND = {
    "short": Flow(1.0, 10.0, math.inf, math.inf),
    "middle": Flow(3.0, 60.0, math.inf, math.inf),
    "long": Flow(0.2, 600.0, math.inf, math.inf),
}
"""The raw weights differ by rounding in each hour."""


@settings(max_examples=examples(100))
@example(World(FAST, 100, 4, {}, False, [FAR_BELOW_ALL_SLOTS]))
@example(World(Guards(), 100, 4, {}, False, [FAR_BELOW_ALL_SLOTS]))
@example(World(Guards(), 100, 4, {}, True, [FAR_BELOW_ALL_SLOTS]))
@example(World(FAST, 10, 1, {}, True, [AT_A_BOUND]))
@example(World(Guards(half_life=2 * HOUR, dead_band=0.0), 10, 1, {}, True, [WITHOUT_A_DEAD_BAND]))
@given(worlds())
def test_under_any_constant_load_weights_and_limits_come_to_rest(world: World) -> None:
    """Use, waits and shares follow the weights and limits in force."""
    loop = FlowLoop(*world[:-1])
    for load in world.loads:
        moved = loop.run(load, 200)
        assert not any(moved[-30:]), moved[-30:]
