"""The control law of weights: published weights keep every bound for any measurements; one case for
each guard rail."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlead.errors import ConfigurationError
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT
from fairlead.pipeline.tuning.contracts import load
from fairlead.pipeline.tuning.control import (
    Change,
    Key,
    Used,
    propose,
)
from fairlead.pipeline.tuning.guard_rails import Guards
from tests.tiers import examples

HOUR = 3600.0

weights = st.floats(0.001, 1000.0)
amounts = st.just(0.0) | st.floats(1e-6, 1e6)
uses = st.lists(
    st.builds(
        Used,
        st.floats(0, 30 * 86_400),
        amounts,
        st.integers(0, 100_000),
        st.sampled_from([60.0, HOUR]),
    ),
    max_size=6,
)
keys = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2),
    st.builds(
        Key, due=weights, now=weights, use=uses, fixed=st.none() | st.just("set by a person")
    ),
    max_size=8,
)
few_keys = st.dictionaries(
    st.sampled_from("abc"), st.builds(Key, due=weights, now=weights, use=uses), min_size=1
)
guards = st.builds(
    Guards,
    half_life=st.floats(60, 1e7),
    prior_tasks=st.floats(0.001, 1000),
    least_tasks=st.integers(0, 1000),
    least_time=st.floats(1, 20_000),
    lowest=st.floats(0.001, 1),
    highest=st.floats(1, 1000),
    step=st.floats(1.01, 10),
    daily=st.floats(1.01, 100),
    dead_band=st.floats(0, 1),
)


def ran(seconds: float, tasks: int = 1000, hours: int = 4) -> list[Used]:
    """Return use by `tasks` tasks of `seconds` seconds, evenly over the last hours."""
    return [Used(age * HOUR, seconds * tasks / hours, tasks // hours) for age in range(hours)]


def rails_of_step(step: float, rails: Guards) -> Guards:
    """Return guards in which only the step bounds the speed of a weight."""
    return msgspec.structs.replace(rails, step=step, daily=step)


def by_key(changes: list[Change[float]]) -> dict[str, Change[float]]:
    return {change.fairness_key: change for change in changes}


def guarded(found: dict[str, Key], **rails: float) -> dict[str, float]:
    return {key: change.guarded for key, change in by_key(propose(found, Guards(**rails))).items()}


AT_A_BOUND = {
    "long": Key(5.0, 5.0, ran(100.0)),
    "short": Key(2.0, 2.0, ran(1.0)),
    "other": Key(1.0, 1.0, ran(1.0)),
}
"""The first key reaches its lowest weight but never its raw one, so the others miss theirs too."""


# properties ---------------------------------------------------------------------------------------


@given(keys, guards)
def test_a_proposal_changes_each_weight_within_the_guard_rails_and_keeps_their_sum(
    found: dict[str, Key], rails: Guards
) -> None:
    """A constant sum leaves keys that are not tuned their part of the dispatches. No weight moves past
    its raw one, so no key gains because the cause of another key's weight is gone."""
    changes = propose(found, rails)
    tuned = [change for change in changes if change.raw is not None]
    for name, change in by_key(changes).items():
        key = found[name]
        too_little = (
            sum(used.tasks for used in key.use) < rails.least_tasks
            or sum(used.seconds for used in key.use if used.tasks) < rails.least_time
        )
        assert (change.raw is None) is (key.fixed is not None or too_little)
        if change.raw is None:
            assert change.guarded == key.now
        assert 1 / rails.step * 0.999999 <= change.guarded / key.now <= rails.step * 1.000001
        if change.guarded != key.now:
            lowest, highest = (
                max(rails.lowest * key.due, MIN_WEIGHT),
                min(rails.highest * key.due, MAX_WEIGHT),
            )
            assert change.guarded >= min(lowest, key.now) * 0.999999
            assert change.guarded <= max(highest, key.now) * 1.000001
    before, after = sum(c.now for c in tuned), sum(c.guarded for c in tuned)
    due = sum(found[c.fairness_key].due for c in tuned)
    assert min(before, due) * (1 - 1e-9) <= after <= max(before, due) * (1 + 1e-9)
    if any(c.raw != c.now for c in tuned):
        assert math.isclose(sum(c.raw for c in tuned), due, rel_tol=1e-9)
    is_bounded = any(
        not rails.lowest * key.due <= change.raw <= rails.highest * key.due
        or not MIN_WEIGHT <= change.raw <= MAX_WEIGHT
        for change in tuned
        for key in [found[change.fairness_key]]
    )
    for change in [] if is_bounded else tuned:
        low, high = sorted((change.now, change.raw))
        assert low * (1 - 1e-6) <= change.guarded <= high * (1 + 1e-6)


@settings(max_examples=examples(60))
@given(few_keys, guards, st.lists(uses, min_size=1, max_size=30))
def test_within_a_day_no_weight_changes_by_more_than_the_daily_factor(
    found: dict[str, Key], rails: Guards, hours: list[list[Used]]
) -> None:
    """Every hour the use of all keys is exchanged among them, the worst case of an adversary."""
    in_force: dict[str, list[float]] = {name: [key.now] for name, key in found.items()}
    for number, use in enumerate(hours):
        found = {
            name: msgspec.structs.replace(
                key,
                now=in_force[name][-1],
                use=use if (number + index) % 2 else key.use,
                of_day=(min(in_force[name][-25:]), max(in_force[name][-25:])),
            )
            for index, (name, key) in enumerate(found.items())
        }
        for name, change in by_key(propose(found, rails)).items():
            in_force[name].append(change.guarded)
    for weights_of_key in in_force.values():
        for first in range(len(weights_of_key)):
            day = weights_of_key[first : first + 25]
            assert max(day) <= min(day) * rails.daily * (1 + 1e-9)


@example(AT_A_BOUND, Guards())
@given(keys, guards.map(lambda rails: rails_of_step(max(1.2, rails.step), rails)))
def test_under_constant_measurements_weights_come_to_rest(
    found: dict[str, Key], rails: Guards
) -> None:
    """Bounds, steps, the sum and the dead band make no weight move for ever, not even in its last
    digits: after enough rounds nothing is published."""
    for _ in range(2 + math.ceil(math.log(1e6 * 1e6) / math.log(rails.step))):
        changes = propose(found, rails)
        if not any(change.is_change for change in changes):
            return
        found = {
            name: msgspec.structs.replace(key, now=by_key(changes)[name].guarded)
            for name, key in found.items()
        }
    raise AssertionError(f"it moves on: {changes}")


@given(keys, guards, st.floats(0.001, 1000))
def test_weights_do_not_depend_on_the_unit_of_time(
    found: dict[str, Key], rails: Guards, unit: float
) -> None:
    scaled = {
        name: Key(
            key.due, key.now, [used._replace(busy=used.busy * unit) for used in key.use], key.fixed
        )
        for name, key in found.items()
    }
    first, second = propose(found, rails), propose(scaled, rails)
    for one, other in zip(first, second, strict=True):
        assert math.isclose(one.raw or 0.0, other.raw or 0.0, rel_tol=1e-6)


# hand-made cases ----------------------------------------------------------------------------------


def test_no_key_inherits_a_weight_whose_cause_is_gone() -> None:
    found = {
        "a": Key(1.0, 1.0, ran(1.0)),
        "b": Key(1.0, 50.2, ran(1.0)),
        "c": Key(1.0, 0.8, ran(1.0)),
    }
    assert guarded(found) == {
        "a": pytest.approx(1.0),
        "b": pytest.approx(50.2 / 1.25),
        "c": pytest.approx(1.0),
    }
    found["b"] = msgspec.structs.replace(found["b"], now=20.0, of_day=(20.0, 50.2))
    (_, b, _) = propose(found, Guards(daily=3.0))
    assert (b.guarded, b.reason) == (pytest.approx(50.2 / 3), "at most x3 in a day")


def test_a_weight_never_leaves_its_bounds() -> None:
    found = {"a": Key(1.0, 0.11, ran(100.0)), "b": Key(1.0, 1.89, ran(1.0))}
    change = by_key(propose(found, Guards()))["a"]
    assert change.guarded == 0.1
    assert change.reason == "at its bound, 0.1 times its share"
    found = {"a": Key(1.0, 9.5, ran(1.0)), "b": Key(20.0, 11.5, ran(100.0))}
    (a, b) = propose(found, Guards(step=2.0))
    assert a.raw > 13 and (a.guarded, a.reason) == (10.0, "at its bound, 10 times its share")
    assert b.raw < 8 and (b.guarded, b.reason) == (
        pytest.approx(11.0),
        "limited: the sum of the weights must not change",
    )


def test_inside_the_dead_band_no_weight_changes() -> None:
    found = {"a": Key(1.0, 1.0, ran(1.09)), "b": Key(1.0, 1.0, ran(1.0))}
    assert guarded(found) == {"a": 1.0, "b": 1.0}
    found = {"a": Key(1.0, 1.0, ran(1.25)), "b": Key(1.0, 1.0, ran(1.0))}
    assert guarded(found) != {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": 1.0},
        {"half_life": 0.0},
        {"lowest": 2.0},
        {"dead_band": -0.1},
        {"headroom": 1.0},
        {"worse_use": -0.1},
    ],
)
def test_guard_rails_out_of_range_are_refused(wrong: dict[str, float], tmp_path: Path) -> None:
    [(name, value)] = wrong.items()
    file = tmp_path / "contracts.toml"
    file.write_text(f"[guards]\n{name} = {value}\n")
    with pytest.raises(ConfigurationError, match=name):
        load(file)


def test_weights_of_a_queue_without_worker_time_stay() -> None:
    found = {"a": Key(1.0, 1.0, ran(0.0)), "b": Key(2.0, 1.0, ran(0.0))}
    assert guarded(found) == {"a": 1.0, "b": 1.0}
    assert propose({}, Guards()) == []
    # One run was dispatched before and has lasted for hours.
    long_run = [Used(age * HOUR, HOUR, 0) for age in range(3)]
    assert guarded({"a": Key(1.0, 1.0, long_run), "b": Key(2.0, 1.0, long_run)}, least_tasks=0) == {
        "a": 1.0,
        "b": 1.0,
    }
