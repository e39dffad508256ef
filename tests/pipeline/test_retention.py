"""Old days of bronze are forgotten, and stay forgotten when rows arrive late."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest

from fairlead.clock import SYSTEM_CLOCK, to_micros
from fairlead.pipeline.jobs.build_plan import plan
from fairlead.pipeline.models import ATTEMPTS, EVENTS
from fairlead.pipeline.retention import drop_before, first_day
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.warehouse_tables import WarehouseTables
from tests.pipeline.frames import T0, at, attempt, event
from tests.pipeline.warehouses import export, lake_in

DAY = 86_400
TODAY = date(2026, 3, 2)
"""Day of T0, ten hours after midnight."""


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    found = lake_in(tmp_path / "lake")
    for n, days in enumerate([3, 2, 2, 0]):
        end = at(-days * DAY + n)
        rows = [
            attempt(
                queue=queue,
                submitted_at=at(-days * DAY + n - 1),
                finished_at=end,
                exported_at=end,
            )
            for queue in ("q", "r")
        ]
        export(found, ATTEMPTS, rows, str(n))
    export(found, EVENTS, [event(at=at(-3 * DAY)), event(at=at(0))], "1")
    return found


def test_old_days_are_removed(warehouse: Warehouse) -> None:
    since = warehouse.table(ATTEMPTS).state().snapshot
    assert since is not None

    done = drop_before(warehouse, TODAY)

    assert done.rows == {ATTEMPTS.name: 6, EVENTS.name: 1}
    assert done.days == ["2026-02-27", "2026-02-28"]
    assert warehouse.table(ATTEMPTS).load().num_rows == 2
    assert warehouse.table(EVENTS).load().num_rows == 1
    assert warehouse.table(ATTEMPTS).state().cursors == {"store": "3"}
    assert warehouse.table(ATTEMPTS).changed(since) == set()
    assert drop_before(warehouse, TODAY).rows == {}


def test_rows_that_arrive_late_for_a_forgotten_day_are_removed_too(warehouse: Warehouse) -> None:
    drop_before(warehouse, TODAY)
    since = warehouse.table(ATTEMPTS).state().snapshot
    assert since is not None
    export(warehouse, ATTEMPTS, [attempt(queue="q", finished_at=at(-3 * DAY))], "4")
    assert warehouse.table(ATTEMPTS).changed(since) == set()
    assert drop_before(warehouse, TODAY).rows == {ATTEMPTS.name: 1}


def test_hours_that_may_not_be_compared_with_the_store_stay(warehouse: Warehouse) -> None:
    compared = to_micros(at(-1.5 * DAY))
    assert drop_before(warehouse, TODAY, compared).days == ["2026-02-27"]


def test_whole_days_are_kept() -> None:
    assert first_day(to_micros(T0), 2) == date(2026, 2, 28)


def test_a_full_build_of_kept_days_has_no_hours_between_them_and_a_wrong_clock(
    warehouse: Warehouse,
) -> None:
    wrong = [attempt(finished_at=at(n * 365 * DAY), exported_at=at(60)) for n in (1, 200)]
    export(warehouse, ATTEMPTS, wrong, "5", hours=3)
    export(warehouse, EVENTS, [event(at=at(90 * DAY))], "5", hours=3)
    drop_before(warehouse, TODAY)
    todo = plan(WarehouseTables(cast(Any, None), warehouse, SYSTEM_CLOCK), "settings", full=False)
    midnight_to_now = {f"2026-03-02/{hour:02}" for hour in range(14)}
    assert todo.again - midnight_to_now == {"2027-03-02/10", "2226-01-13/10", "2026-05-31/10"}
    assert todo.again > midnight_to_now
