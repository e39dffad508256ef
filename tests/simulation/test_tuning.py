"""The feedback as a closed loop over the real fair lane settles soon at the right weights, and stays
there."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from fairlead.pipeline.tuning.guard_rails import Guards
from tests.simulation.tuning_loop import HOUR, Load, Loop, Round
from tests.tiers import NIGHTLY

DUE = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 2.0}
RUNS = {"a": 4.0, "b": 10.0, "c": 20.0, "d": 10.0}
FAST = Guards(half_life=2 * HOUR)
"""Guards under which half of a change of run times is learnt in two rounds instead of a day."""

SOON = 12
STEP_AT = 36


def with_a_step(key: str, hour: float) -> float:
    """Return the run time; from STEP_AT on, tasks of one key take four times as long."""
    return RUNS[key] * (4 if key == "a" and hour >= STEP_AT else 1)


def farthest(round: Round) -> float:
    """Return the greatest deviation of a key from its due, as a fraction of its due."""
    return max(abs(round.share[key] * sum(DUE.values()) / DUE[key] - 1) for key in DUE)


def direction_changes(rounds: list[Round], key: str) -> int:
    """Return how often the weight of a key changed its direction."""
    moves = [
        after.weights[key] - before.weights[key]
        for before, after in zip(rounds, rounds[1:], strict=False)
    ]
    moves = [move for move in moves if move]
    return sum(one * other < 0 for one, other in zip(moves, moves[1:], strict=False))


def loop(
    run_time: Callable[[str, float], float],
    guards: Guards = FAST,
    slots: int = 4,
    asks: Callable[[str, float], float] = lambda key, hour: math.inf,
) -> Loop:
    """Return a loop without limits. `run_time` and `asks` are those of a key at an hour."""

    def load(hour: float) -> dict[str, Load]:
        return {key: Load(run_time(key, hour), asks(key, hour), due) for key, due in DUE.items()}

    return Loop(load, guards, slots, limits=False)


def test_without_feedback_keys_with_long_tasks_take_most_workers() -> None:
    rounds = loop(lambda key, hour: RUNS[key], Guards(least_tasks=10**9)).run(6)
    assert farthest(rounds[-1]) > 0.6 and not any(round.published for round in rounds)


@pytest.mark.parametrize("hours", [76, pytest.param(200, marks=NIGHTLY("a long run"))])
def test_the_feedback_settles_within_twelve_rounds_without_overshoot(hours: int) -> None:
    """The feedback settles from the start and after a step."""
    rounds = loop(with_a_step).run(hours)
    assert all(farthest(round) < 0.1 for round in rounds[SOON:STEP_AT])
    settled = rounds[STEP_AT + SOON :]
    assert all(farthest(round) < 0.1 for round in settled)
    # The tasks of `a` are short, so its weight starts too low; after the step it is too high.
    parts = [round.share["a"] * 5 for round in rounds]
    assert max(parts[:STEP_AT]) < 1.1 and min(parts[STEP_AT:]) > 0.9
    # After that, nothing is published, and no weight swings on the way there.
    assert not any(round.published for round in rounds[2 * SOON : STEP_AT])
    assert not any(round.published for round in rounds[STEP_AT + 3 * SOON :])
    assert (
        direction_changes(rounds[:STEP_AT], "a")
        == direction_changes(rounds[:STEP_AT], "c")
        == direction_changes(rounds[STEP_AT:], "a")
        == 0
    )


@pytest.mark.nightly("a long run")
def test_an_oscillating_load_is_followed_and_not_amplified() -> None:
    """Tasks of one key take up to twice as long by day, and another key has no tasks by night."""

    def by_day(key: str, hour: float) -> float:
        return RUNS[key] * (1.5 if key == "a" and hour % 24 >= 12 else 1.0)

    def asks(key: str, hour: float) -> float:
        return math.inf if key != "b" or hour % 24 < 16 else 0.0

    rounds = loop(by_day, slots=2, asks=asks).run(200)
    weights = [round.weights["a"] / round.weights["d"] for round in rounds[24:]]
    assert max(weights) / min(weights) < 1.5 * 1.1
    assert all(direction_changes(rounds[24:], key) <= 2 * (200 - 24) / 24 + 1 for key in DUE)
