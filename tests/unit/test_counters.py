"""The counters of passes are exact for the keys with the highest passes, never too low for any key,
and bounded in memory."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.fair.backlog import HEAVIEST_KEPT
from fairlead.core.fair.counters import EXACT_KEYS, Counters, Sketch
from fairlead.core.fair.passes import Passes

MOST_BYTES = 16 * 1024 * 1024
MANY = 1_000_000
KEYS_AHEAD = 100_000
ROUND = 1_000_000
"""Virtual time of one task of each key."""

STEP = 618_033
"""Coprime to MANY, so that its multiples modulo MANY are all numbers below MANY in a scattered
order."""


def ahead(number: int) -> int:
    """Return the next pass of a key. A few keys have very high passes; most passes are close to the
    virtual time."""
    return 1_000_000 * (1 + MANY // (1 + number)) + number


@pytest.mark.nightly("a long run")
def test_a_million_keys_take_less_than_16_mb_and_only_keys_with_low_passes_get_too_high_estimates() -> (
    None
):
    counters = Counters()
    for n in range(MANY):
        number = n * STEP % MANY
        counters.put(f"key-{number}", ahead(number), 0)
    exact = dict(counters.heaviest(len(counters)))
    exact_bytes = sys.getsizeof(exact) + sum(
        sys.getsizeof(key) + sys.getsizeof(value) for key, value in exact.items()
    )
    # While the sketch grows, the old sketch of half the width exists as well. While exact keys are
    # dropped, a second copy of the exact keys exists.
    most_bytes = counters.sketch_bytes * 3 // 2 + 2 * exact_bytes
    assert most_bytes < MOST_BYTES

    assert counters.heaviest(HEAVIEST_KEPT) == [
        (f"key-{n}", ahead(n)) for n in range(HEAVIEST_KEPT)
    ]
    errors: Counter[int] = Counter()
    sample = [*range(EXACT_KEYS), *range(EXACT_KEYS, MANY, 97)]
    for number in sample:
        error = counters.next_pass(f"key-{number}") - ahead(number)
        assert error >= 0
        if error:
            errors[number] = error
    assert min(errors) >= EXACT_KEYS // 2
    # No estimate is as high as the passes of the exact keys, so no key waits behind the heaviest
    # one.
    assert max(number_error + ahead(number) for number, number_error in errors.items()) < ahead(
        HEAVIEST_KEPT
    )
    wrong, worst = len(errors) / len(sample), max(errors.values()) / 1_000_000
    print(
        f"{MANY:,} keys: {most_bytes / 2**20:.1f} MB at most, sketch {counters.sketch_bytes / 2**20:.1f} MB; "
        f"in the order of passes, the first wrong estimate is that of key {min(errors):,}; {wrong:.0%} of the sample are too high, "
        f"on average by {errors.total() / len(sample) / 1_000_000:.1f} tasks of weight 1, at most by {worst:.0f}"
    )


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
    estimates = [counters.next_pass(f"new {number}") for number in range(10_000)]
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


def test_a_sketch_is_dropped_when_the_virtual_time_exceeds_all_its_passes() -> None:
    counters = Counters(exact=10)
    for number in range(30):
        counters.put(str(number), 100 + number, 0)
    assert counters.sketch_bytes
    for number in range(30, 60):
        counters.put(str(number), 10_000 + number, 5_000)
    assert counters.next_pass("0") == 0
    assert counters.next_pass("59") == 10_059


def test_keys_with_a_pass_below_the_virtual_time_are_dropped_without_a_sketch() -> None:
    counters = Counters(exact=10)
    for number in range(1000):
        counters.put(str(number), number + 3, number)
    assert not counters.sketch_bytes
    assert counters.next_pass("999") == 1002


def test_an_estimated_key_that_returns_is_exact_again_and_starts_at_its_estimate() -> None:
    passes = Passes(Counters(exact=4))
    for key in "abcdefgh":
        passes.assign(key, 1.0, 0)
    passed = [passes.assign("a", 1.0, 0) for _ in range(3)]
    assert passed == [1_000_000, 2_000_000, 3_000_000]


def test_the_estimate_of_an_unknown_key_is_at_most_the_value_of_another_key() -> None:
    sketch = Sketch(256, 256)
    for number in range(100):
        sketch.raise_to(str(number), 1000 + number)
    assert all(sketch.estimate(f"never-{number}") <= sketch.highest for number in range(1000))


def test_a_sketch_of_many_keys_grows_to_its_maximum_size() -> None:
    sketch = Sketch(4, 256)
    for number in range(20_000):
        sketch.raise_to(str(number), 1 + number)
    assert sketch.size == Sketch(256, 256).size
