"""Ordered queues keep their promises under faults, and a part that breaks a promise is detected."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairlead.batch_writer import BatchWriter
from fairlead.core.schedule.schedule import Schedule
from fairlead.ordered.persistence import Persistence
from tests.memory_schedule import MemoryScheduleStore
from tests.simulation.ordered_simulation import Broken, simulate
from tests.tiers import seeds


@pytest.mark.parametrize("seed", seeds(2))
def test_crashes_and_lost_responses_lose_double_and_reorder_no_task(
    seed: int,
) -> None:
    simulate(seed)


def low_water_mark_ignores_written_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schedule, "low_water_mark_with", lambda self, tasks: self.low_water_mark)


def later_tasks_pass_a_refused_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Persistence, "_on_task_refused", lambda self, refusal: None)


def refused_ends_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchWriter, "_refuse", lambda self, refusal: None)


def no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        MemoryScheduleStore, "_fenced", lambda self, partition, range_id: self.partitions[partition]
    )


def early_by_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    due = Schedule.due
    monkeypatch.setattr(Schedule, "due", lambda self, now: due(self, now + 1_000_000))
    next_due = Schedule.next_due
    monkeypatch.setattr(
        Schedule,
        "next_due",
        lambda self: None if (at := next_due(self)) is None else at - 1_000_000,
    )


@pytest.mark.parametrize(
    ("broken", "first"),
    [
        (low_water_mark_ignores_written_tasks, 0),
        (no_fence, 22),
        (later_tasks_pass_a_refused_one, 0),
        (refused_ends_are_dropped, 0),
        (early_by_a_second, 0),
    ],
)
def test_a_part_that_breaks_its_promise_is_detected(
    broken: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises((Broken, AssertionError, KeyError, ExceptionGroup)):
        for seed in range(first, first + 60):
            simulate(seed)
