"""Limits in a closed loop over the real table and slot ledger settle soon at the right values, and rise
again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fairlead.core.tuning.guard_rails import Guards
from tests.simulation.limit_loop import HOUR, Load, Loop, Round
from tests.tiers import seeds

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


@pytest.mark.parametrize("seed", seeds([1, 2], few=1))
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


@pytest.mark.full("a long run")
def test_other_keys_wait_less_with_the_limit() -> None:
    without, limited = (
        Loop(lambda hour: CALM, FAST, SLOTS, weights=WEIGHTS, limits=limits).run(20)[SOON:]
        for limits in (False, True)
    )
    for key in ("a", "b", "c"):
        assert mean(limited, key) < 0.9 * mean(without, key)


@pytest.mark.full("a long run")
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


@pytest.mark.full("a long run")
def test_changes_inside_the_dead_band_publish_nothing() -> None:
    """The demand of the others swings by a tenth every two hours, and after the start nothing is
    published."""

    def swings(hour: float) -> dict[str, Load]:
        by = 1.1 if int(hour) // 2 % 2 else 0.9
        return {
            key: load if key == "long" else load._replace(asks=load.asks * by)
            for key, load in CALM.items()
        }

    rounds = Loop(swings, FAST, SLOTS, weights=WEIGHTS).run(30)
    assert not any(round.published for round in rounds[SOON:]) and rounds[-1].limits == {"long": 7}


@pytest.mark.full("a long run")
def test_limits_settle_together_with_weights_of_the_same_rounds() -> None:
    """At first every key gets the same number of dispatches, so the other keys starve; weights and
    limits then let them catch up."""
    rounds = Loop(lambda hour: CALM, FAST, SLOTS).run(60)
    last = rounds[40:]
    assert settled(last) and last[0].limits.keys() == {"long"}
    assert min(round.busy for round in last) > 0.95
    assert max(mean(last, key) for key in ("a", "b", "c")) < 240
