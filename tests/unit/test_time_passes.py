"""Passes by run time: charges of keys, and what the next owner learns."""

from __future__ import annotations

import pytest

from fairlead.core.fair.backlog import Backlog
from fairlead.core.fair.counters import Counters
from fairlead.core.fair.run_times import RunTimes
from fairlead.core.fair.steps import Timing
from fairlead.core.fair.time_passes import TimePasses
from fairlead.model import LaneRecord, RunTimesRecord

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


def test_the_next_owner_gets_the_measured_run_times() -> None:
    passes, run_times = passes_of()
    for _ in range(20):
        run_times.ended("pay", "a", 2 * SECOND)
    record = passes.run_times()
    assert record == RunTimesRecord(2 * SECOND, [("pay", "a", 2 * SECOND, 20)])
    after, learnt = passes_of()
    after.resume_run_times(record)
    assert learnt.expected("pay", "a") == 2 * SECOND


def test_a_backlog_saves_measured_run_times_in_its_record() -> None:
    record = LaneRecord(run_times=RunTimesRecord(SECOND, [("pay", "a", 5 * SECOND, 10)]))
    run_times = RunTimes()
    backlog = Backlog(2, record, TimePasses(Counters(), None, run_times), 10, Timing())
    assert run_times.unit == SECOND
    assert backlog.record().run_times == record.run_times
