"""Passes: the bound of start-time fair queueing, and the state for the next owner."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fair.counters import Counters
from fairlead.core.fair.passes import STRIDE_SCALE, Passes, stride
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT

KEYS = "abcde"
weights = st.floats(MIN_WEIGHT, MAX_WEIGHT) | st.sampled_from(
    [MIN_WEIGHT, 0.3, 1.0, 3.0, 5.0, 700.0, MAX_WEIGHT]
)
weights_by_key = st.fixed_dictionaries(dict.fromkeys(KEYS, weights))


@given(weights)
def test_a_stride_is_the_inverse_of_the_weight_to_within_half_a_unit(weight) -> None:
    assert abs(stride(weight) - STRIDE_SCALE / Fraction(weight)) <= Fraction(1, 2)


def test_a_key_that_was_idle_has_saved_no_share() -> None:
    passes = Passes(Counters())
    assert [passes.assign("a", 1.0, 0), passes.assign("a", 1.0, 0)] == [0, STRIDE_SCALE]
    assert passes.assign("b", 1.0, 5 * STRIDE_SCALE) == 5 * STRIDE_SCALE


def test_a_weight_set_at_run_time_replaces_the_weight_of_the_task() -> None:
    weights = {"a": 2.0}
    passes = Passes(Counters(), weights)
    assert [passes.assign("a", 1.0, 0), passes.assign("a", 1.0, 0)] == [0, STRIDE_SCALE // 2]
    weights["a"] = 4.0
    passes.assign("a", 1.0, 0)
    assert passes.assign("a", 1.0, 0) == STRIDE_SCALE + STRIDE_SCALE // 4


@given(
    st.lists(st.tuples(st.sampled_from("abcdefghij"), weights), min_size=1, max_size=100),
    st.integers(1, 10),
)
def test_the_next_owner_continues_the_passes_of_the_keys_furthest_ahead(given, most) -> None:
    before, after = Passes(Counters()), Passes(Counters())
    for key, weight in given:
        before.assign(key, weight, 0)
    kept = before.heaviest(most)
    assert [following for _, following in kept] == sorted(
        (following for _, following in kept), reverse=True
    )
    for key, following in kept:
        after.resume(key, following)
    for key, _ in kept:
        assert after.assign(key, 1.0, 0) == before.assign(key, 1.0, 0)


@given(
    st.lists(st.sampled_from("abc"), max_size=30),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=30),
    weights_by_key,
)
def test_a_key_is_not_charged_twice_for_tasks_that_the_next_owner_levels_again(
    stored, unstored, weights
) -> None:
    before, after = Passes(Counters()), Passes(Counters())
    for key in stored:
        before.assign(key, weights[key], 0)
    assigned = [(key, before.assign(key, weights[key], 0)) for key in unstored]
    for key, following in before.heaviest(10, assigned):
        after.resume(key, following)
    assert [(key, after.assign(key, weights[key], 0)) for key in unstored] == assigned
