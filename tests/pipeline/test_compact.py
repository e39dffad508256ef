"""Compaction puts all rows of an hour into one sorted file, without disturbing readers and writers."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairlead.clock import to_micros
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.errors import BrokenLake, CheckFailed
from fairlead.pipeline.lake import compact as compaction
from fairlead.pipeline.lake.compact import CLOSES_AFTER, Compacted, compact, to_compact
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.table import HOUR, LakeTable
from fairlead.pipeline.schema import Column, Table
from tests.pipeline.frames import T0, attempt, event

HOUR_0 = "2026-03-02/10"
END_0 = to_micros(T0) + HOUR
"""End of the hour of T0, in microseconds."""


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return Lake(tmp_path / "lake").table(ATTEMPTS)


def add(table: LakeTable, name: str, *ends: float, changed_at: int = END_0, **fields: Any) -> None:
    rows = [
        attempt(
            finished_at=end,
            queue=f"q{int(end) % 2}",
            fairness_key=f"k{int(end) % 3}",
            submitted_at=T0,
            **fields,
        )
        for end in ends
    ]
    written = table.write(pa.Table.from_pylist(rows, ATTEMPTS.arrow()), "0", f"{name}.parquet")
    assert table.append(written, {}, changed_at) is not None


def rows(table: LakeTable) -> list[dict[str, Any]]:
    return sorted(table.load(table.manifests.newest()).to_pylist(), key=lambda row: row["task_id"])


def files(table: LakeTable, part: str = HOUR_0) -> list[str]:
    return [Path(file).name for file in table.manifests.newest().parts[part].files]


def test_the_files_of_a_closed_hour_become_one_sorted_file_with_the_same_rows(
    table: LakeTable,
) -> None:
    for n in range(4):
        add(table, str(n), *range(50 * n, 50 * n + 50))
    add(table, "other hour", 4000)
    before, seen = rows(table), table.manifests.newest()
    done = compact(table, END_0 + HOUR + CLOSES_AFTER)
    assert done == Compacted(parts=2, files=5, rows=201, skipped=[])
    assert rows(table) == before
    part = table.manifests.newest().parts[HOUR_0]
    assert files(table) == ["sorted.parquet"]
    assert (part.rows, part.changed_at, part.span) == (200, END_0, seen.parts[HOUR_0].span), (
        "every row is unchanged"
    )
    found = (
        table.load(table.manifests.newest(), [HOUR_0])
        .select(["queue", "fairness_key", "finished_at"])
        .to_pylist()
    )
    assert found == sorted(
        found, key=lambda row: (row["queue"], row["fairness_key"], row["finished_at"])
    )
    table.check(table.manifests.newest())
    assert len(table.load(seen)) == 201, "a reader that opened the table before reads its files"
    assert table.sweep(END_0 + HOUR)[1] == 0


def test_a_closed_hour_is_compacted_only_once(table: LakeTable) -> None:
    add(table, "a", 1)
    late = END_0 + CLOSES_AFTER
    assert compact(table, late).parts == 1, (
        "a single file is compacted too, because it is not sorted"
    )
    number = table.manifests.newest().number
    assert compact(table, late) == Compacted(0, 0, 0, [])
    assert table.manifests.newest().number == number
    add(table, "late", 2, changed_at=late)
    assert compact(table, late + CLOSES_AFTER - 1).parts == 0
    assert compact(table, late + CLOSES_AFTER).files == 2, "a late row opens the hour again"


@pytest.mark.parametrize(
    ("now", "everything", "closed"),
    [
        (END_0 + CLOSES_AFTER - 1, False, []),
        (END_0 + CLOSES_AFTER, False, [HOUR_0]),
        (END_0 + 3 * HOUR + CLOSES_AFTER - 1, False, [HOUR_0]),
        (END_0 + 3 * HOUR + CLOSES_AFTER, False, [HOUR_0, "2026-03-02/11"]),
        (END_0 - 1, True, []),
        (END_0, True, [HOUR_0]),
        (END_0 + HOUR, True, [HOUR_0, "2026-03-02/11"]),
    ],
)
def test_an_hour_is_closed_26_hours_after_its_end_and_its_last_row(
    table: LakeTable, now: int, everything: bool, closed: list[str]
) -> None:
    add(table, "a", 1, 2)
    add(table, "late", 3600, changed_at=END_0 + 3 * HOUR)
    assert to_compact(table, table.manifests.newest(), now, everything=everything) == closed
    assert compact(table, now, everything=everything).parts == len(closed)


def test_the_time_after_which_an_hour_is_closed_can_be_set(table: LakeTable) -> None:
    add(table, "a", 1)
    assert compact(table, END_0 + HOUR - 1, closes_after=HOUR).parts == 0
    assert compact(table, END_0 + HOUR, closes_after=HOUR).parts == 1


def test_rows_added_during_a_compaction_are_kept_and_their_hour_is_skipped(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(table, "a", 1, 2)
    add(table, "next hour", 3601)
    rewritten = compaction._rewritten

    def slowly(table: LakeTable, manifest: Any, name: str) -> Any:
        part = rewritten(table, manifest, name)
        if name == HOUR_0:
            add(table, "meanwhile", 3)
        return part

    monkeypatch.setattr(compaction, "_rewritten", slowly)
    written: list[tuple[str, int]] = []
    done = compact(
        table, END_0 + 9 * CLOSES_AFTER, on_rows=lambda part, rows: written.append((part, rows))
    )
    assert done.skipped == [HOUR_0]
    assert written == [("2026-03-02/11", 1)]
    assert len(rows(table)) == 4
    monkeypatch.undo()
    assert compact(table, END_0 + 9 * CLOSES_AFTER) == Compacted(1, 2, 3, [])
    assert len(rows(table)) == 4


def test_lost_rows_fail_a_compaction_and_leave_the_table_unchanged(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(table, "a", 1, 2, 3)
    before = table.manifests.newest()
    sorted_groups = compaction._sorted_groups

    def loses_one(*args: Any) -> Iterator[pa.Table]:
        for group in sorted_groups(*args):
            yield group.slice(1)

    monkeypatch.setattr(compaction, "_sorted_groups", loses_one)
    with pytest.raises(CheckFailed, match=f"partition {HOUR_0}: 3 rows before, 2 after"):
        compact(table, END_0 + CLOSES_AFTER)
    assert table.manifests.newest() == before


def test_the_error_about_a_broken_file_names_it_and_the_file_is_not_compacted(
    table: LakeTable,
) -> None:
    add(table, "a", 1, 2, 3)
    (path,) = table.paths(table.manifests.newest())
    Path(path).write_bytes(Path(path).read_bytes()[:-20])
    with pytest.raises(BrokenLake, match=path):
        compact(table, END_0 + CLOSES_AFTER)


def test_many_rows_are_written_in_row_groups(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "GROUP_ROWS", 40)
    add(table, "a", *range(60))
    add(table, "b", *range(60, 100))
    before = rows(table)
    compact(table, END_0 + CLOSES_AFTER)
    (path,) = table.paths(table.manifests.newest())
    footer = pq.read_metadata(path)
    assert [footer.row_group(n).num_rows for n in range(footer.num_row_groups)] == [40, 40, 20]
    assert rows(table) == before


def test_files_have_a_bloom_filter_of_task_ids_where_pyarrow_supports_it(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    can = "bloom_filter_options" in inspect.signature(pq.ParquetWriter).parameters
    assert ("bloom_filter_options" in compaction._options(ATTEMPTS, 3)) == can
    monkeypatch.setattr(compaction.inspect, "signature", lambda _: inspect.Signature())
    assert "bloom_filter_options" not in compaction._options(ATTEMPTS, 3)
    add(table, "a", 1, 2)
    assert compact(table, END_0 + CLOSES_AFTER).rows == 2
    assert len(rows(table)) == 2


def test_events_are_sorted_by_their_instant_and_daily_tables_by_their_columns(
    tmp_path: Path,
) -> None:
    events = Lake(tmp_path).table(EVENTS)
    rows_ = pa.Table.from_pylist(
        [event(at=s, queue="q", fairness_key="a") for s in (3, 1, 2)], EVENTS.arrow()
    )
    events.append(events.write(rows_, "0", "a.parquet"), {}, END_0)
    compact(events, END_0 + CLOSES_AFTER)
    found = events.load(events.manifests.newest())["at"].to_pylist()
    assert found == sorted(found)

    daily = Table(
        "t",
        "",
        ("n",),
        "at",
        (Column("n", "int", ""), Column("at", "timestamp", "")),
        by="date",
    )
    days = Lake(tmp_path).table(daily)
    for name in "ab":
        days.append(
            days.write(
                pa.table({"n": pa.array([1], pa.int32()), "at": [T0]}, daily.arrow()), "0", name
            ),
            {},
            END_0,
        )
    midnight = to_micros(datetime(2026, 3, 3, tzinfo=UTC))
    assert compact(days, midnight + CLOSES_AFTER - 1).parts == 0
    assert compact(days, midnight + CLOSES_AFTER) == Compacted(1, 2, 2, [])


_KILLED = """
import os, sys
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline import durable
from fairlead.pipeline.lake import compact as compaction
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.table import LakeTable

module, name, when = {"written": (durable, "write", "after"), "listed": (LakeTable, "replace", "after"),
                      "halfway": (compaction, "_write_sorted", "after")}[sys.argv[2]]
real = getattr(module, name)
def then_killed(*args):
    real(*args)
    os._exit(9)
setattr(module, name, then_killed)
compaction.compact(Lake(sys.argv[1]).table(ATTEMPTS), int(sys.argv[3]))
"""


@pytest.mark.parametrize("step", ["halfway", "written", "listed"])
def test_a_compaction_killed_at_any_step_loses_no_row_and_the_next_one_finishes(
    table: LakeTable, step: str
) -> None:
    add(table, "a", 1, 2)
    add(table, "b", 3)
    before = rows(table)
    now = END_0 + CLOSES_AFTER
    killed = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", _KILLED, str(table.folder.parent), step, str(now)],
        check=False,
        timeout=60,
    )
    assert killed.returncode == 9
    assert rows(table) == before
    assert compact(table, now).parts == (0 if step == "listed" else 1)
    assert rows(table) == before
    # After a long time, only listed files are on disk.
    for path in table.folder.rglob("*"):
        os.utime(path, (1, 1))
    table.sweep(now + 1)
    assert [
        str(path) for path in table.folder.glob("date=*/**/*") if path.is_file()
    ] == table.paths(table.manifests.newest())
