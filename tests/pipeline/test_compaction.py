"""Compaction puts the rows of a closed partition into one sorted file, and loses none beside
exporters, erasures, faults and kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fairlead.clock import SYSTEM_CLOCK, to_micros
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.models import ATTEMPTS, EVENTS, INCIDENTS
from fairlead.pipeline.partitions import HOUR_US
from fairlead.pipeline.reading.engine import file_name
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse import compaction
from fairlead.pipeline.warehouse.compaction import CLOSES_AFTER, Compacted, compact, to_compact
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.table import WarehouseTable
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.forks import KILLED, exit_code
from tests.pipeline.frames import T0, attempt, event
from tests.pipeline.killed import compact_until
from tests.pipeline.tables_by_hand import put, row

HOUR_0, HOUR_1 = "2026-03-02/10", "2026-03-02/11"
END_0 = to_micros(T0) // HOUR_US * HOUR_US + HOUR_US
"""End of the hour of T0, in microseconds."""
LATE = END_0 + 9 * CLOSES_AFTER


@pytest.fixture
def table(lake: Warehouse) -> WarehouseTable:
    return lake.table(ATTEMPTS)


def add(lake: Warehouse, *ends: float) -> None:
    rows = [
        attempt(finished_at=end, queue=f"q{int(end) % 2}", fairness_key=f"k{int(end) % 3}")
        for end in ends
    ]
    put(lake, ATTEMPTS, rows)


def rows(table: WarehouseTable) -> list[dict[str, Any]]:
    return sorted(table.load().to_pylist(), key=lambda each: str(each["task_id"]))


def test_the_files_of_a_closed_hour_become_one_sorted_file_with_the_same_rows(
    lake: Warehouse, table: WarehouseTable
) -> None:
    for n in range(4):
        add(lake, *range(50 * n, 50 * n + 50))
    add(lake, 4000)
    before, seen = rows(table), table.state()
    assert compact(table, LATE) == Compacted(parts=2, files=5, rows=201, skipped=[])
    assert rows(table) == before
    [file] = table.files([HOUR_0])
    assert file.path.rpartition("/")[2].startswith("sorted") and file.rows == 200
    columns = ["queue", "fairness_key", "finished_at"]
    found = table.load([HOUR_0], columns=columns).select(columns).to_pylist()
    assert found == sorted(found, key=lambda each: [each[name] for name in columns])
    assert table.load(snapshot=seen.snapshot).num_rows == 201, "a reader keeps its snapshot"
    assert table.changed(seen.snapshot or 0) == set(), "no build has to compute anything again"


def test_a_closed_hour_is_compacted_once_and_again_after_late_rows(
    lake: Warehouse, table: WarehouseTable
) -> None:
    add(lake, 1)
    assert compact(table, LATE).parts == 1, "a single file is not sorted"
    seen = table.state().snapshot
    assert compact(table, LATE) == Compacted(0, 0, 0, [])
    assert table.state().snapshot == seen
    add(lake, 2)
    assert compact(table, LATE) == Compacted(1, 2, 2, [])


@pytest.mark.parametrize(
    ("now", "closed"),
    [
        (END_0 + CLOSES_AFTER - 1, []),
        (END_0 + CLOSES_AFTER, [HOUR_0]),
        (END_0 + HOUR_US + CLOSES_AFTER - 1, [HOUR_0]),
        (END_0 + HOUR_US + CLOSES_AFTER, [HOUR_0, HOUR_1]),
    ],
)
def test_an_hour_is_closed_26_hours_after_its_end(
    lake: Warehouse, table: WarehouseTable, now: int, closed: list[str]
) -> None:
    add(lake, 1, 3601)
    assert list(to_compact(table.files(), now, by_hour=True)) == closed


def test_a_day_is_closed_26_hours_after_its_end(lake: Warehouse) -> None:
    put(lake, INCIDENTS, [row(INCIDENTS, incident_id="a")])
    put(lake, INCIDENTS, [row(INCIDENTS, incident_id="b")])
    days, closed = lake.table(INCIDENTS), to_micros(T0) // DAY_US * DAY_US + DAY_US + CLOSES_AFTER
    assert INCIDENTS.by == "date" and compact(days, closed - 1).parts == 0
    assert compact(days, closed) == Compacted(1, 2, 2, [])


def test_events_are_sorted_by_their_instant(lake: Warehouse) -> None:
    put(lake, EVENTS, [event(at=s, queue="q", fairness_key="a") for s in (3, 1, 2)])
    compact(lake.table(EVENTS), LATE)
    found = lake.table(EVENTS).load()["at"].to_pylist()
    assert found == sorted(found) and len(found) == 3


def test_rows_added_during_a_compaction_are_kept_and_a_busy_hour_is_skipped(
    lake: Warehouse, table: WarehouseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lake, 1, 2)
    add(lake, 3601)
    in_order, added = compaction._sorted, iter(range(3, 9))

    def beside_an_exporter(of: Table, found: pa.Table) -> pa.Table:
        for end in added:
            add(lake, end)
            break
        return in_order(of, found)

    monkeypatch.setattr(compaction, "_sorted", beside_an_exporter)
    assert compact(table, LATE) == Compacted(1, 1, 1, [HOUR_0])
    assert len(rows(table)) == 9
    monkeypatch.undo()
    assert compact(table, LATE) == Compacted(1, 7, 8, [])
    assert len(rows(table)) == 9


def test_a_sweep_during_a_compaction_loses_no_row(
    lake: Warehouse, table: WarehouseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erasure sweeps at once, also the new file of a compaction."""
    add(lake, 1, 2)
    before, replace, sweeps = rows(table), WarehouseTable.replace, iter([True])

    def after_a_sweep(here: WarehouseTable, *given: Any, **more: Any) -> bool:
        if next(sweeps, False):
            assert here.sweep(SYSTEM_CLOCK.now() + DAY_US) == 1
        return replace(here, *given, **more)

    monkeypatch.setattr(WarehouseTable, "replace", after_a_sweep)
    assert compact(table, LATE).parts == 1
    assert rows(table) == before


def test_files_without_all_their_rows_fail_a_compaction_and_leave_the_table_unchanged(
    lake: Warehouse, table: WarehouseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lake, 1, 2, 3)
    before, load = table.state().snapshot, WarehouseTable.load
    monkeypatch.setattr(WarehouseTable, "load", lambda *a, **more: load(*a, **more).slice(1))
    with pytest.raises(BrokenLake, match=f"{HOUR_0}: 3 rows are listed, and the files have 2"):
        compact(table, LATE)
    assert table.state().snapshot == before and len(on_disk(lake)) == 1


def test_the_error_about_a_broken_file_names_it(lake: Warehouse, table: WarehouseTable) -> None:
    add(lake, 1, 2, 3)
    [file] = table.files()
    path = Path(file_name(file.path))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BrokenLake, match=path.name):
        compact(table, LATE)


def on_disk(lake: Warehouse) -> set[str]:
    """Return the names of the Parquet files in the folder of a lake with one table."""
    assert lake.location.folder is not None
    return {path.name for path in lake.location.folder.rglob("*.parquet")}


@pytest.mark.parametrize("step", ["write", "replace"])
def test_a_compaction_killed_at_any_step_loses_no_row_and_the_next_one_finishes(
    lake: Warehouse, table: WarehouseTable, step: str
) -> None:
    add(lake, 1, 2)
    add(lake, 3)
    before = rows(table)
    assert exit_code(compact_until, lake.location, LATE, step) == KILLED
    assert rows(table) == before
    assert compact(table, LATE).parts == (0 if step == "replace" else 1)
    assert rows(table) == before
