"""The counters of passes are exact for the keys with the highest passes, never too low for any key,
and bounded in memory."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.fair.counters import Counters, Sketch

MOST_BYTES = 16 * 1024 * 1024
MANY = 1_000_000
KEYS_AHEAD = 20_000
ROUND = 1_000_000
"""Virtual time of one task of each key."""

STEP = 618_033
"""Coprime to MANY, so that its multiples modulo MANY are all numbers below MANY in a scattered
order."""


def ahead(number: int) -> int:
    """Return the next pass of a key. A few keys have very high passes; most passes are close to the
    virtual time."""
    return 1_000_000 * (1 + MANY // (1 + number)) + number


keys = st.integers(0, 60).map(str)
many_keys = st.integers(0, 200).map(str)


@settings(deadline=None)
@given(
    st.lists(st.tuples(many_keys, st.integers(1, 1000)), max_size=400), st.sampled_from([1, 2, 4])
)
def test_a_growing_sketch_keeps_every_estimate_an_upper_bound(raised, buckets) -> None:
    sketch, most = Sketch(buckets, 4), Sketch(4, 4).size
    truth: dict[str, int] = {}
    for key, value in raised:
        sketch.raise_to(key, value)
        truth[key] = max(value, truth.get(key, 0))
        assert all(sketch.estimate(known) >= least for known, least in truth.items())
    assert sketch.size <= most
    assert sketch.highest == max(truth.values(), default=0)


@settings(deadline=None)
@given(
    st.lists(st.tuples(many_keys, st.integers(1, 100), st.integers(0, 30)), max_size=400),
    st.sampled_from([1, 2, 4]),
)
def test_a_sketch_drops_values_behind_the_virtual_time_only(raised, buckets) -> None:
    sketch = Sketch(buckets, 4)
    truth: dict[str, int] = {}
    virtual_time = 0
    for key, ahead, passed in raised:
        virtual_time += passed
        truth[key] = max(virtual_time + ahead, truth.get(key, 0))
        sketch.raise_to(key, truth[key], virtual_time)
        for known, value in truth.items():
            assert sketch.estimate(known) >= value or value <= virtual_time


def test_a_new_key_is_known_to_be_new_however_many_keys_have_just_had_their_turns() -> None:
    counters, rounds = Counters(), 3
    for number in range(rounds * KEYS_AHEAD):
        turn = number * (ROUND // KEYS_AHEAD)
        counters.put(f"key {number % KEYS_AHEAD}", turn + ROUND, turn)
    estimates = [counters.next_pass(f"new {number}") for number in range(2000)]
    assert sum(estimate > 0 for estimate in estimates) == 0
    last = (rounds - 1) * ROUND
    for number in range(0, KEYS_AHEAD, 97):
        turn = last + number * (ROUND // KEYS_AHEAD)
        assert counters.next_pass(f"key {number}") == turn + ROUND
    assert counters.sketch_bytes < MOST_BYTES


def test_the_keys_furthest_ahead_stay_exact_if_a_sketch_has_too_few_cells() -> None:
    sketch = Sketch(4, 4)
    for number in range(1000):
        sketch.raise_to(str(number * STEP % 1000), 1 + number * STEP % 1000)
    exact = {n for n in range(1000) if sketch.estimate(str(n)) == 1 + n}
    assert {*range(980, 1000)} < exact
    assert max(sketch.estimate(f"new {n}") for n in range(1000)) < 980


@settings(deadline=None)
@given(
    st.lists(st.tuples(keys, st.integers(1, 100), st.integers(0, 30)), max_size=200),
    st.integers(2, 20),
)
def test_no_dropped_or_estimated_key_gets_a_pass_below_its_true_pass(puts, exact) -> None:
    counters = Counters(exact=exact, most_buckets=1)
    truth: dict[str, int] = {}
    virtual_time = 0
    for key, step, passed in puts:
        virtual_time += passed
        given = max(virtual_time, counters.next_pass(key))
        due = max(virtual_time, truth.get(key, 0))
        assert given >= due
        counters.put(key, given + step, virtual_time)
        truth[key] = due + step
        assert len(counters) <= exact
        for known, following in truth.items():
            assert (
                max(counters.next_pass(known), virtual_time) >= following
                or following <= virtual_time
            )
