"""The control law of limits: published limits keep every bound for any measurements; one case for
each guard rail."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.pipeline.tuning.control import Key, Used
from fairlead.pipeline.tuning.guard_rails import Guards
from fairlead.pipeline.tuning.limit_control import LimitChange, Workers, propose_limits

HOUR = 3600.0

ages = st.sampled_from([0.0, HOUR, 5 * HOUR, 100 * HOUR])
amounts = st.just(0.0) | st.floats(1e-3, 1e6)
uses = st.lists(
    st.builds(
        Used,
        age=ages,
        busy=amounts,
        tasks=st.integers(0, 10_000),
        seconds=st.just(HOUR),
        asked=amounts | st.just(math.inf),
        peak=st.floats(0, 200),
        waited=st.booleans(),
    ),
    max_size=4,
    unique_by=lambda used: used.age,
)
keys = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2),
    st.builds(
        Key,
        due=st.floats(0.001, 1000),
        now=st.just(1.0),
        use=uses,
        fixed=st.none() | st.just("set by a person"),
        limit=st.none() | st.integers(1, 100),
    ),
    max_size=6,
)
workers = st.lists(st.builds(Workers, ages, amounts, st.floats(0, 200)), max_size=4)
guards = st.builds(
    Guards,
    half_life=st.floats(60, 1e7),
    prior_tasks=st.floats(0.001, 1000),
    least_tasks=st.integers(0, 300),
    least_time=st.floats(1, 10_000),
    step=st.floats(1.01, 10),
    dead_band=st.floats(0, 1),
    headroom=st.floats(1.01, 5),
)
nodes = st.integers(1, 5)


def slots(measured: list[Workers], count: int) -> list[int]:
    """Return the number of slots of a node at most."""
    return [math.ceil(worked.peak / count - 1e-6) for worked in measured if worked.busy]


# properties ---------------------------------------------------------------------------------------


@given(keys, workers, nodes, guards)
def test_a_proposal_changes_each_limit_within_the_guard_rails(
    found: dict[str, Key], measured: list[Workers], count: int, rails: Guards
) -> None:
    """A limit equal to all slots of a node is removed, because it limits nothing. Only a key that held
    more than its limit gets one. While there is a reason to hold, or no living node, none changes."""
    for change in propose_limits(found, measured, count, False, rails):
        key = found[change.fairness_key]
        if key.fixed is not None:
            assert (change.raw, change.guarded) == (None, None)
        elif sum(used.tasks for used in key.use) < rails.least_tasks:
            assert change.raw is None and change.guarded == key.limit
        if change.now is None:
            assert change.raw is not None and change.guarded is not None
            assert max(used.peak for used in key.use) / count > max(1.0, change.raw)
        if change.guarded is None:
            continue
        assert change.guarded >= 1
        if change.now is None:
            at_most = max(change.guarded * rails.step, change.guarded + 1) + 1e-6
            assert any(
                change.guarded < all_of_them <= at_most for all_of_them in slots(measured, count)
            )
        else:
            assert change.guarded <= max(change.now * rails.step, change.now + 1) + 1e-6
            assert change.guarded >= min(change.now / rails.step, change.now - 1) - 1e-6
        if change.raw is not None and change.guarded > (change.now or 0):
            assert change.guarded < max(slots(measured, count))
    for is_held, living in ((True, count), (False, 0)):
        for change in propose_limits(found, measured, living, is_held, rails):
            if is_held or found[change.fairness_key].fixed is None:
                assert change.guarded == change.now


ROUNDS = 2 + 100 + 100
"""Rounds in which every limit of these worlds comes to rest: a limit moves by a slot in each round at
least, from at most 200 slots of a node."""


def moves_until_rest(
    found: dict[str, Key], measured: list[Workers], count: int, rails: Guards
) -> dict[str, list[LimitChange]]:
    """Publish every proposal on unchanged measurements until nothing moves, and return the moves of
    each key."""
    moves: dict[str, list[LimitChange]] = {name: [] for name in found}
    for _ in range(ROUNDS):
        proposed = propose_limits(found, measured, count, False, rails)
        changes = [change for change in proposed if change.is_change]
        if not changes:
            return moves
        for change in changes:
            name = change.fairness_key
            moves[name].append(change)
            found[name] = msgspec.structs.replace(found[name], limit=change.guarded)
    raise AssertionError(f"it moves on: {changes}")


def had(
    peak: float,
    busy: float = 0.0,
    asked: float = math.inf,
    waited: bool = False,
    tasks: int = 1000,
    age: float = 0.0,
) -> list[Used]:
    """Return use by this number of concurrent workers in each of four hours, for the whole hour
    unless `busy` gives the time."""
    return [
        Used(
            age + n * HOUR,
            busy or peak * HOUR,
            tasks,
            HOUR,
            max(asked, busy or peak * HOUR),
            peak,
            waited,
        )
        for n in range(4)
    ]


def worked(peak: float, age: float = 0.0) -> list[Workers]:
    return [Workers(age + n * HOUR, peak * HOUR, peak) for n in range(4)]


FAR_BELOW_ALL_SLOTS = {
    "small": Key(0.2, 1.0, had(80, asked=0.0)),
    "big": Key(10.0, 1.0, had(320, waited=True)),
}
"""Two slots of each of four nodes are due to a key that holds 20 of 100, and never waits."""


@example(FAR_BELOW_ALL_SLOTS, worked(400), 4, Guards())
@example(
    {
        "aa": Key(2.0, 1.0, [Used(0.0, 1.0, 100, HOUR, math.inf, 28.0)]),
        "a": Key(1.0, 1.0, [Used(HOUR, 0.0, 1), Used(0.0, 1.0, 100, HOUR, 0.0, 12.0)]),
    },
    [Workers(0.0, 1.0, 28.0)],
    1,
    Guards(half_life=60.0, least_tasks=0, least_time=1.0, step=1.5, dead_band=0.0, headroom=1.125),
)
@given(keys, workers, nodes, guards)
def test_under_constant_measurements_limits_come_to_rest_and_never_turn_back(
    found: dict[str, Key], measured: list[Workers], count: int, rails: Guards
) -> None:
    """From any published limits, each key goes one way only: down to its limit, or up to it or to no
    limit."""
    for moves in moves_until_rest(dict(found), measured, count, rails).values():
        assert len({(m.guarded or math.inf) > (m.now or math.inf) for m in moves}) <= 1


@pytest.mark.parametrize(
    ("peak", "unlimited", "limited"),
    [
        (11.0, None, 10),  # the upper end of the dead band: no limit is set
        (11.1, 13, 10),
        (8.0, None, 10),  # a step below the target: a limit that is set stays
        (7.9, None, None),
        (0.0, None, None),
    ],
)
def test_between_a_step_below_the_target_and_the_dead_band_above_it_a_key_keeps_what_it_has(
    peak: float, unlimited: int | None, limited: int | None
) -> None:
    for now, then in ((None, unlimited), (10, limited)):
        use = had(peak, busy=8 * HOUR)
        found = {"long": Key(1.0, 1.0, use, None, now), "short": Key(1.0, 1.0, had(8))}
        changes = of(found, worked(16))
        assert (changes["long"].guarded if "long" in changes else now) == then


def test_a_key_that_uses_all_of_a_limit_below_its_target_keeps_it_while_it_rises() -> None:
    """Short tasks may use every slot of the limit, yet never wait for a whole minute."""
    use = had(5, busy=8 * HOUR)
    found = {"long": Key(1.0, 1.0, use, None, 5), "short": Key(1.0, 1.0, had(8))}
    assert of(found, worked(16))["long"].guarded == 6


def test_with_one_slot_on_each_node_no_key_gets_or_keeps_a_limit() -> None:
    def at(limit: int | None) -> dict[str, Key]:
        return {
            "long": Key(1.0, 1.0, had(2, waited=True), None, limit),
            "short": Key(9.0, 1.0, had(0.5)),
        }

    assert of(at(None), worked(2), 2) == {}
    assert of(at(1), worked(2), 2)["long"].guarded is None


def test_a_key_that_pauses_keeps_its_limit() -> None:
    """With too little data the limit stays; when the tasks are back, it is where it was."""
    found = {"long": Key(1.0, 1.0, had(16, busy=8 * HOUR)), "short": Key(1.0, 1.0, had(8))}
    rails = Guards(prior_tasks=1e-9)
    moves = moves_until_rest(found, worked(16), 1, rails)["long"]
    assert [move.guarded for move in moves] == [13, 11]
    for tasks in (10, 1000):
        use = had(16, busy=8 * HOUR, tasks=tasks)
        found["long"] = msgspec.structs.replace(found["long"], use=use)
        assert moves_until_rest(found, worked(16), 1, rails)["long"] == []


# hand-made cases ----------------------------------------------------------------------------------


def of(
    found: dict[str, Key], measured: list[Workers], count: int = 1, **rails: float
) -> dict[str, LimitChange]:
    plain = {"prior_tasks": 1e-9, **rails}
    return {
        change.fairness_key: change
        for change in propose_limits(found, measured, count, False, Guards(**plain))
    }


def test_a_limit_moves_step_by_step_to_the_due_slots_plus_headroom() -> None:
    """Two keys have the same due, and one of them sometimes held all 16 slots."""
    found = {"long": Key(1.0, 1.0, had(16, busy=8 * HOUR)), "short": Key(1.0, 1.0, had(8))}
    changes = of(found, worked(16))
    assert changes.keys() == {"long"}
    assert changes["long"] == LimitChange(
        "long", None, pytest.approx(10.0), 13, "one step of x1.25"
    )
    for now, then, why in (
        (14, 12, "one step of x1.25"),
        (12, 10, "as computed"),
        (10, 10, "within 10% of what it should be"),
    ):
        found["long"] = Key(1.0, 1.0, had(now, busy=8 * HOUR, waited=True), None, now)
        assert of(found, worked(16))["long"] == LimitChange(
            "long", now, pytest.approx(10.0), then, why
        )


def test_a_key_with_a_due_of_three_gets_three_times_the_slots_plus_unused_slots_of_other_keys() -> (
    None
):
    found = {"long": Key(3.0, 1.0, had(16, busy=12 * HOUR)), "short": Key(13.0, 1.0, had(4))}
    assert of(found, worked(16))["long"].raw == pytest.approx(1.25 * 16 * 3 / 16)
    # The others ask for half of the workers, so half of the workers are due to the key.
    found = {
        "long": Key(3.0, 1.0, had(16, busy=8 * HOUR)),
        "short": Key(13.0, 1.0, had(8, asked=0.0)),
    }
    assert of(found, worked(16))["long"].raw == pytest.approx(1.25 * 16 * 8 / 16)
    # With hardly any other load there is no limit.
    assert of({"long": Key(1.0, 1.0, had(16))}, worked(16)) == {}


def test_a_limit_is_removed_when_the_key_no_longer_comes_near_it() -> None:
    calm = {"long": Key(1.0, 1.0, had(7), None, 10), "short": Key(1.0, 1.0, had(9))}
    assert of(calm, worked(16))["long"] == LimitChange(
        "long", 10, pytest.approx(1.25 * 8), None, "the key no longer comes near its limit"
    )
    near = {"long": Key(1.0, 1.0, had(8.1), None, 10), "short": Key(1.0, 1.0, had(8))}
    assert of(near, worked(16))["long"].guarded == 10
    # Short tasks leave slots free between runs: few workers are busy on average, yet tasks wait.
    waits = {"long": Key(1.0, 1.0, had(7, waited=True), None, 10), "short": Key(1.0, 1.0, had(9))}
    assert of(waits, worked(16))["long"].guarded == 10


def test_a_limit_rises_step_by_step_and_is_removed_when_all_slots_are_due_to_the_key() -> None:
    alone, now, seen = {"short": Key(1.0, 1.0, had(0.1, asked=0.0))}, 10, []
    while now is not None:
        found = {"long": Key(1.0, 1.0, had(now, waited=True), None, now), **alone}
        change = of(found, worked(16))["long"]
        now = change.guarded
        seen.append(now)
    assert seen == [12, 15, None] and change.reason == "all slots are due to it"


def test_inside_the_dead_band_a_limit_stays_and_rounding_does_not_widen_the_band() -> None:
    def at(due: float, now: int) -> int | None:
        found = {
            "long": Key(due, 1.0, had(now, waited=True), None, now),
            "short": Key(1 - due, 1.0, had(1)),
        }
        return of(found, worked(16))["long"].guarded  # raw: 20 x due

    assert [at(due, 10) for due in (0.456, 0.5, 0.549)] == [10, 10, 10]
    assert at(0.551, 10) == 12 and at(0.449, 10) == 9 and at(0.399, 10) == 8
