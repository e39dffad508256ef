"""Passes: the bound of start-time fair queueing, and the state for the next owner."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from heapq import heappop, heappush
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.fair.counters import Counters
from fairlead.core.fair.passes import STRIDE_SCALE, Passes, stride
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT
from tests.tiers import examples

KEYS = "abcde"
weights = st.floats(MIN_WEIGHT, MAX_WEIGHT) | st.sampled_from(
    [MIN_WEIGHT, 0.3, 1.0, 3.0, 5.0, 700.0, MAX_WEIGHT]
)
weights_by_key = st.fixed_dictionaries(dict.fromkeys(KEYS, weights))
pushes = st.tuples(st.sampled_from(KEYS), st.integers(1, 40))
steps = st.lists(pushes | st.integers(1, 60), max_size=40)
"""A push of a number of tasks of a key, or a number of polls."""


class Queue:
    """All tasks in one heap, ordered by `Passes` alone."""

    def __init__(self, weights: dict[str, float]) -> None:
        self._weights = weights
        self._passes = Passes(Counters())
        self._heap: list[tuple[int, int, str]] = []
        self._pushed = 0
        self.virtual_time = 0

    def push(self, key: str) -> None:
        self._pushed += 1
        pass_ = self._passes.assign(key, self._weights[key], self.virtual_time)
        heappush(self._heap, (pass_, self._pushed, key))

    def poll(self) -> str | None:
        if not self._heap:
            return None
        pass_, _, key = heappop(self._heap)
        self.virtual_time = max(self.virtual_time, pass_)
        return key


@settings(max_examples=examples(300), deadline=None)
@given(weights_by_key, steps)
def test_keys_that_are_backlogged_together_are_served_within_the_bound(weights, steps) -> None:
    queue = Queue(weights)
    waiting: Counter[str] = Counter()
    served: dict[tuple[str, str], Counter[str]] = {}
    """Tasks served, by pair of keys and key, since the first key was last behind the second."""
    ahead: defaultdict[tuple[str, str], int] = defaultdict(int)
    """Virtual time by which the first key of a pair is ahead of the second, while both wait."""

    def check(key: str) -> None:
        for pair in permutations(KEYS, 2):
            if key not in pair or not (waiting[pair[0]] and waiting[pair[1]]):
                continue
            first, second = pair
            served[pair][key] += 1
            ahead[pair] += stride(weights[first]) if key == first else -stride(weights[second])
            if ahead[pair] <= 0:
                ahead[pair] = 0
                served[pair].clear()
            assert ahead[pair] <= stride(weights[first]) + stride(weights[second])
            # The bound in tasks and weights, plus the rounding of strides: half a unit for each task.
            one, other = Fraction(weights[first]), Fraction(weights[second])
            apart = served[pair][first] / one - served[pair][second] / other
            assert apart <= 1 / one + 1 / other + Fraction(
                served[pair].total() + 2, 2 * STRIDE_SCALE
            )

    for step in steps:
        if isinstance(step, tuple):
            key, count = step
            if not waiting[key]:
                for pair in permutations(KEYS, 2):
                    if key in pair:
                        served[pair], ahead[pair] = Counter(), 0
            for _ in range(count):
                queue.push(key)
            waiting[key] += count
            continue
        for _ in range(step):
            picked = queue.poll()
            if picked is None:
                break
            check(picked)
            waiting[picked] -= 1


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 30), min_size=1),
    st.randoms(use_true_random=False),
)
def test_with_equal_weights_the_nth_task_of_a_key_waits_for_at_most_n_tasks_of_every_other_key(
    tasks, random
) -> None:
    queue = Queue(dict.fromkeys(tasks, 1.0))
    arrivals = [key for key, count in tasks.items() for _ in range(count)]
    random.shuffle(arrivals)
    for key in arrivals:
        queue.push(key)
    nth: Counter[str] = Counter()
    for position in range(1, len(arrivals) + 1):
        key = queue.poll()
        assert key is not None
        nth[key] += 1
        assert position <= sum(min(count, nth[key]) for count in tasks.values())


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


def test_a_task_levelled_by_an_earlier_owner_is_counted_once() -> None:
    passes = Passes(Counters())
    passes.observe("a", 1.0, 7 * STRIDE_SCALE, 0)
    passes.observe("a", 1.0, 6 * STRIDE_SCALE, 0)
    assert passes.assign("a", 1.0, 0) == 8 * STRIDE_SCALE


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


@pytest.mark.parametrize("weight", [MIN_WEIGHT, 1.0, MAX_WEIGHT])
def test_the_pass_of_a_lone_key_advances_by_its_stride(weight: float) -> None:
    passes = Passes(Counters())
    assert [passes.assign("a", weight, 0) for _ in range(4)] == [
        n * stride(weight) for n in range(4)
    ]
