"""Measures of a schedule equal a calculation by hand, and plain loops over instants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.clock import MICROS
from fairlead.lab.policies.calibration import gap, has_waits, most_at_once
from fairlead.lab.policies.measures import measure, waits_of_keys
from tests.pipeline.replaying import arrivals, schedule
from tests.pipeline.twin import jain
from tests.tiers import examples

Task = tuple[int, int, int, int]
"""Arrival, start, run time (seconds) and number of the key."""

tasks = st.lists(
    st.builds(
        lambda at, wait, run, key: (at, at + wait, run, key),
        st.integers(0, 40),
        st.integers(0, 15) | st.integers(0, 1),
        st.integers(0, 12),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=40,
)
LAST = 70
"""Second after which no task ends."""


def rank(values: Sequence[float], percent: int) -> float:
    """Return the least value that this percentage of the values does not exceed."""
    return sorted(values)[-(-len(values) * percent // 100) - 1]


def looped(tasks: Sequence[Task], slots: int, weights: Sequence[float], window: int) -> Any:
    """Return the measures, counted second by second."""
    by_key = [list(each) for _, each in groupby(sorted(tasks, key=key_of), key_of)]
    waits = [[start - at for at, start, _, _ in each] for each in by_key]
    everyone = [wait for each in waits for wait in each]
    slow = [max(1, (start - at + run) / max(run, 10)) for at, start, run, _ in tasks]
    origin = min(at for at, *_ in tasks)
    makespan = max(start + run for _, start, run, _ in tasks) - origin
    evenness = []
    for low in range(origin, LAST, window):
        inside = range(low, low + window)
        waiting = [each for each in by_key if all(waits_at(each, at) for at in inside)]
        got = [
            sum(begins <= at < begins + run for _, begins, run, _ in each for at in inside)
            / weights[each[0][3]]
            for each in waiting
        ]
        if len(got) > 1 and any(got):
            evenness.append(jain(got))
    unserved = [longest_unserved(each) for each in by_key]
    return {
        "tasks": len(tasks),
        "keys": len(by_key),
        "slots": slots,
        "wait_mean_us": fmean(everyone),
        **{f"wait_p{percent}_us": rank(everyone, percent) for percent in (50, 90, 99)},
        "wait_max_us": max(everyone),
        "key_wait_p50_us": rank([fmean(each) for each in waits], 50),
        "key_wait_p99_us": rank([fmean(each) for each in waits], 99),
        "key_p99_p50_us": rank([rank(each, 99) for each in waits], 50),
        "slowdown_mean": fmean(slow),
        "slowdown_p50": rank(slow, 50),
        "slowdown_p99": rank(slow, 99),
        "jain_mean": fmean(evenness) if evenness else None,
        "jain_least": min(evenness, default=None),
        "jain_windows": len(evenness),
        "makespan_us": makespan,
        "utilisation": sum(run for _, _, run, _ in tasks) / (slots * makespan) if makespan else 0,
        "starved_keys": sum(length > window for length in unserved),
        "longest_starved_us": max(unserved),
    }


def key_of(task: Task) -> int:
    return task[3]


def waits_at(tasks: Sequence[Task], instant: int) -> bool:
    return any(at <= instant < start for at, start, _, _ in tasks)


def longest_unserved(tasks: Sequence[Task]) -> int:
    """Return the longest time in which a task waited and none started."""
    longest = since = 0
    for instant in range(LAST):
        starts = any(start == instant for _, start, _, _ in tasks)
        if starts and any(at < instant <= start for at, start, _, _ in tasks):
            longest = max(longest, instant - since)
        if starts or not any(at < instant < start for at, start, _, _ in tasks):
            since = instant
    return longest


def in_seconds(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value / MICROS if name.endswith("_us") else value for name, value in found.items()
    }


@settings(max_examples=examples(400))
@given(
    tasks, st.integers(1, 9), st.integers(1, 4), st.tuples(*[st.sampled_from([0.01, 1, 1, 3])] * 3)
)
def test_the_measures_of_a_schedule_equal_plain_loops(
    tasks: list[Task], window: int, slots: int, weights: tuple[float, ...]
) -> None:
    found = measure(schedule(*tasks), slots, np.array(weights, float), window * MICROS)
    expected = looped(tasks, slots, weights, window)
    assert in_seconds(msgspec.structs.asdict(found)) == pytest.approx(expected)
    for each in waits_of_keys(schedule(*tasks), ("a", "b", "c")):
        own = [task for task in tasks if each.key == "abc"[task[3]]]
        alone = looped(own, slots, weights, window)
        waits = in_seconds({name: getattr(each, name) for name in alone if hasattr(each, name)})
        assert waits == pytest.approx({name: alone[name] for name in waits})
        assert each.busy_us == sum(run for _, _, run, _ in own) * MICROS


def test_waits_slowdown_makespan_and_use_equal_a_calculation_by_hand() -> None:
    # With two slots, key a (0) submits three tasks of 10 s at 0, key b (1) one task of 20 s at 5.
    # The task of b and the third task of a start at 10.
    tasks = (0, 0, 10, 0), (0, 0, 10, 0), (0, 10, 10, 0), (5, 10, 20, 1)
    found = measure(schedule(*tasks), 2, np.ones(2), 5 * MICROS)
    assert found.wait_mean_us == 15 / 4 * MICROS and found.slowdown_mean == 1.3125
    assert (found.wait_p50_us, found.wait_p90_us, found.wait_max_us) == (0, 10**7, 10**7)
    # The means are 10/3 s of a and 5 s of b; by nearest rank, the median of two is the first.
    assert found.key_wait_p50_us == pytest.approx(10 / 3 * MICROS)
    assert (found.makespan_us, found.utilisation) == (30 * MICROS, pytest.approx(50 / 60))
    # Key a waits from 0 to 10 with starts at 0 and at 10; b waits from 5 to 10.
    assert (found.starved_keys, found.longest_starved_us) == (1, 10 * MICROS)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1))
def test_the_gap_to_the_record_equals_plain_loops(waits: list[tuple[int, int]]) -> None:
    one, other = ([pair[side] for pair in waits] for side in (0, 1))
    found = gap("fifo", np.array(one), np.array(other))
    assert (found.recorded_p50_us, found.recorded_p99_us) == (rank(one, 50), rank(one, 99))
    assert (found.simulated_p50_us, found.simulated_p99_us) == (rank(other, 50), rank(other, 99))
    assert found.error("mean") == (
        pytest.approx(fmean(other) / fmean(one) - 1) if any(one) else None
    )
    shares = [[sum(v <= x for v in values) for x in range(10)] for values in (one, other)]
    distance = max(abs(a - b) for a, b in zip(*shares, strict=True)) / len(waits)
    assert found.ks == pytest.approx(distance)


@given(tasks)
def test_the_number_of_concurrent_runs_equals_a_plain_loop(tasks: list[Task]) -> None:
    recorded = arrivals(
        *((at, run, "a") for at, _, run, _ in tasks), waits=[start - at for at, start, *_ in tasks]
    )
    running = [sum(start <= now < start + run for _, start, run, _ in tasks) for now in range(LAST)]
    assert most_at_once(recorded) == max(1, *running)
    assert has_waits(recorded) and not has_waits(arrivals((0, 1, "a")))
