"""Passes by run time: charges of keys, and what the next owner learns."""

from __future__ import annotations

import pytest

from fairlead.core.fair.counters import Counters
from fairlead.core.fair.run_times import RunTimes
from fairlead.core.fair.time_passes import TimePasses

SECOND = 1_000_000


def passes_of() -> tuple[TimePasses, RunTimes]:
    run_times = RunTimes()
    return TimePasses(Counters(), None, run_times), run_times


def test_a_task_costs_its_key_the_expected_run_time_whatever_it_takes() -> None:
    passes, run_times = passes_of()
    for key, cost in (("a", SECOND), ("b", 3 * SECOND)):
        for _ in range(20):
            run_times.ended("pay", key, cost)
    assert [passes.assign("b", 1.0, 0, "pay") for _ in range(2)] == [0, passes.next_pass("b") // 2]
    passes.assign("a", 1.0, 0, "pay")
    expected = [run_times.expected("pay", key) for key in "ab"]
    step = passes.next_pass("b") / 2
    assert passes.next_pass("a") / step == pytest.approx(expected[0] / expected[1], rel=1e-5)
