"""Measures of a schedule in hand-made cases, and against plain loops over instants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.clock import MICROS
from fairlead.lab.policies.calibration import gap, has_waits, ks_distance, most_at_once
from fairlead.lab.policies.measures import (
    jain_by_window,
    longest_unserved,
    measure,
    percentile,
    served,
    slowdown,
    waiting_windows,
    waits_of_keys,
    whole_windows,
)
from tests.fairness_gap import jain
from tests.pipeline.replaying import arrivals, schedule
from tests.tiers import examples

times = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(0, 12)), min_size=1, max_size=25
)
"""(arrival, wait, run time) of each task"""


def columns(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    at, wait, run = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return at, at + wait, run


# by hand ------------------------------------------------------------------------------------------

# With two slots, key a (0) submits three tasks of 10 s at 0, key b (1) one task of 20 s at 5. The task of
# b and the third task of a start at 10.
BY_HAND = schedule((0, 0, 10, 0), (0, 0, 10, 0), (0, 10, 10, 0), (5, 10, 20, 1))


def test_waits_slowdown_makespan_and_use_equal_a_calculation_by_hand() -> None:
    found = measure(BY_HAND, 2, np.ones(2), 5 * MICROS)
    assert (found.tasks, found.keys, found.slots) == (4, 2, 2)
    assert found.wait_mean_us == 15 / 4 * MICROS
    assert [found.wait_p50_us, found.wait_p90_us, found.wait_p99_us, found.wait_max_us] == [
        0,
        10**7,
        10**7,
        10**7,
    ]
    # The means are 10/3 s of a and 5 s of b; by nearest rank, the median of two values is the first.
    assert (
        found.key_wait_p50_us == pytest.approx(10 / 3 * MICROS)
        and found.key_wait_p99_us == 5 * MICROS
    )
    assert found.key_p99_p50_us == 5 * MICROS
    assert slowdown(BY_HAND).tolist() == [1, 1, 2, 1.25] and found.slowdown_mean == 1.3125
    assert found.makespan_us == 30 * MICROS
    assert found.utilisation == pytest.approx(50 / 60)
    # Key a waits from 0 to 10 with starts at 0 and at 10; b waits from 5 to 10.
    assert (found.starved_keys, found.longest_starved_us) == (1, 10 * MICROS)


def test_a_short_run_counts_as_ten_seconds_in_the_slowdown() -> None:
    assert slowdown(
        schedule((0, 1, 0, 0), (0, 20, 0, 0), (0, 20, 5, 0), (0, 20, 20, 0))
    ).tolist() == [1, 2, 2.5, 2]


def test_a_schedule_of_one_task_without_run_time_can_be_measured() -> None:
    found = measure(schedule((3, 3, 0, 0)), 1, np.ones(1), MICROS)
    assert (found.makespan_us, found.utilisation, found.jain_mean, found.starved_keys) == (
        0,
        0,
        None,
        0,
    )


def test_waits_of_keys_equal_a_calculation_by_hand() -> None:
    a, b = waits_of_keys(BY_HAND, ("a", "b"))
    assert (a.key, a.tasks, a.busy_us, a.wait_p50_us, a.wait_p99_us) == (
        "a",
        3,
        30 * MICROS,
        0,
        10 * MICROS,
    )
    assert (b.key, b.tasks, b.busy_us, b.wait_mean_us, b.wait_max_us) == (
        "b",
        1,
        20 * MICROS,
        5e6,
        5 * MICROS,
    )


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99, 1.0])
)
def test_a_percentile_is_the_least_value_with_the_given_share_of_values_at_or_below_it(
    values, share
) -> None:
    found = percentile(np.array(values, np.int64), share)
    assert found in values
    # Compare integers, because products of floats are not exact.
    enough = [
        value
        for value in values
        if 100 * sum(v <= value for v in values) >= round(100 * share) * len(values)
    ]
    assert found == min(enough)


# against plain loops ------------------------------------------------------------------------------


@settings(max_examples=examples(200))
@given(times, st.integers(1, 9))
def test_the_windows_throughout_which_a_task_waited_equal_a_plain_loop(rows, window) -> None:
    at, start, _ = columns(rows)
    waited = [bool(((at <= instant) & (start > instant)).any()) for instant in range(70)]
    expected = [n for n in range(70 // window) if all(waited[n * window : (n + 1) * window])]
    assert whole_windows(at, start, window).tolist() == expected
    found = waiting_windows(at, start)
    assert (found.begin <= found.end).all() and (found.end[:-1] < found.begin[1:]).all()


@settings(max_examples=examples(200))
@given(times)
def test_the_longest_time_without_a_start_while_a_task_waited_equals_a_plain_loop(rows) -> None:
    at, start, _ = columns(rows)
    longest = since = 0
    for instant in range(70):
        if (start == instant).any() or not ((at < instant) & (start > instant)).any():
            # The time without a start ends when a task starts, or when no task waits any more.
            if (start == instant).any() and ((at < instant) & (start >= instant)).any():
                longest = max(longest, instant - since)
            since = instant
    assert longest_unserved(at, start) == longest


@settings(max_examples=examples(200))
@given(times, st.lists(st.integers(0, 90), min_size=1))
def test_worker_time_up_to_an_instant_equals_a_plain_loop(rows, instants) -> None:
    _, start, run = columns(rows)
    until = np.array(instants)
    expected = [int(np.clip(instant - start, 0, run).sum()) for instant in instants]
    assert served(start, start + run).until(until).tolist() == expected


@settings(max_examples=examples(100))
@given(times, times, st.integers(1, 9), st.floats(0.01, 100))
def test_jains_index_by_window_equals_a_plain_loop(one, other, window, weight) -> None:
    rows = [(*row, 0) for row in one] + [(*row, 1) for row in other]
    found = schedule(*((at, at + wait, run, key) for at, wait, run, key in rows))
    origin = min(at for at, *_ in rows)
    expected = []
    for n in range(80 // window):
        low, high = origin + n * window, origin + (n + 1) * window
        of = [
            [(at, at + wait, at + wait + run) for at, wait, run, key in rows if key == k]
            for k in (0, 1)
        ]
        if all(
            all(any(at <= t < start for at, start, _ in each) for t in range(low, high))
            for each in of
        ):
            got = [
                sum(max(0, min(end, high) - max(start, low)) for _, start, end in each)
                for each in of
            ]
            if any(got):
                expected.append(jain([got[0], got[1] / weight]))
    indices = jain_by_window(found, np.array([1.0, weight]), window * MICROS)
    assert indices.tolist() == pytest.approx(expected)
    assert all(0.5 - 1e-9 <= index <= 1 + 1e-9 for index in indices)


# calibration --------------------------------------------------------------------------------------


def test_the_gap_to_the_record_equals_a_calculation_by_hand() -> None:
    found = gap("fifo", np.array([0, 10, 20, 40]), np.array([0, 11, 20, 30]))
    assert (
        found.recorded_p50_us,
        found.simulated_p50_us,
        found.recorded_p99_us,
        found.simulated_p99_us,
    ) == (
        10,
        11,
        40,
        30,
    )
    assert (found.error("p50"), found.error("p99")) == (pytest.approx(0.1), -0.25)
    assert found.ks == 0.25
    assert gap("fifo", np.array([0]), np.array([5])).error("p50") is None


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 9), min_size=1))
def test_the_kolmogorov_smirnov_distance_equals_a_plain_loop(one, other) -> None:
    shares = [
        [sum(v <= x for v in values) / len(values) for x in range(10)] for values in (one, other)
    ]
    assert ks_distance(np.array(one), np.array(other)) == pytest.approx(
        max(abs(a - b) for a, b in zip(*shares, strict=True))
    )


@given(times)
def test_the_number_of_concurrent_runs_equals_a_plain_loop(rows) -> None:
    recorded = arrivals(
        *((at, run, "a") for at, _, run in rows), waits=[wait for _, wait, _ in rows]
    )
    start, end = recorded.at + recorded.wait, recorded.at + recorded.wait + recorded.run
    assert most_at_once(recorded) == max(
        1, *(int(((start <= at) & (end > at)).sum()) for at in start)
    )
    assert has_waits(recorded)
    assert not has_waits(arrivals((0, 1, "a")))
