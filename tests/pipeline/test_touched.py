"""The hours whose rows change when bronze has changed, as a statement that both engines run."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from fairlead.clock import to_micros
from fairlead.pipeline.build_plan import BuildPlan
from fairlead.pipeline.jobs.touched import touched
from fairlead.pipeline.models import ATTEMPTS, EVENTS
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.reading.snapshots import Snapshots
from tests.pipeline.frames import T0, attempt, event
from tests.pipeline.warehouses import export, lake_in

HOUR = 3600


def hours(*numbers: int) -> set[str]:
    """Return the hours that begin so many hours after T0."""
    return {f"{T0 + timedelta(hours=number):%Y-%m-%d/%H}" for number in numbers}


def test_changed_rows_touch_the_hours_of_their_submits_runs_and_waits(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    rows = [
        attempt(
            submitted_at=0.5 * HOUR,
            ready_at=HOUR,
            started_at=2.9 * HOUR,
            finished_at=4 * HOUR,
        ),
        attempt(submitted_at=9 * HOUR, started_at=None, finished_at=9 * HOUR, outcome="cancelled"),
        attempt(submitted_at=20 * HOUR, weight=-1.0),  # makes no sense
    ]
    export(lake, ATTEMPTS, rows)
    waits = [event(at=12 * HOUR, run_at=13 * HOUR), event(at=12.5 * HOUR, run_at=16 * HOUR)]
    export(lake, EVENTS, [*waits, event(at=30 * HOUR, kind="deferred")])
    plan = BuildPlan(
        full=False,
        files=[],
        changed_attempts=frozenset(hours(4, 9, 20)),
        changed_events=frozenset(hours(12, 30)),
        again=frozenset(hours(40)),
        since=0,
        until=to_micros(T0) + 15 * HOUR * 1_000_000,
        first_day="",
    )
    with Frames(lake, Snapshots(lake).look()) as tables:
        found = touched(tables, plan)
    assert found.tasks == hours(0, 9, 12, 40)
    assert found.service == hours(2, 3, 4, 9, 40)
    assert found.backlog == hours(1, 2, 3, 4, 9, 13, 14, 15, 40)
