"""`gc` removes unused files on request, and keeps files that a reader may still use."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fairlead.clock import SYSTEM_CLOCK, SystemClock
from fairlead.errors import NotAllowed
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.jobs.gc import gc
from fairlead.pipeline.lake.alone import alone
from fairlead.pipeline.lake.compact import compact
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.leases import lease
from fairlead.pipeline.lake.table import DAY, HOUR
from fairlead.pipeline.runs import RUNS, last_runs
from tests.pipeline.frames import attempt
from tests.pipeline.tables_by_hand import put, row, rows_of

ROOT = Path(__file__).parents[2]


class Later(SystemClock):
    """The system clock, ahead by some microseconds."""

    def __init__(self, micros: int) -> None:
        self.micros = micros

    def now(self) -> int:
        return super().now() + self.micros


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a lake with two compacted files of an hour, and files of two dead jobs, one of yesterday and
    one of now."""
    lake = Lake(tmp_path / "lake")
    table = lake.table(ATTEMPTS)
    for n in range(2):
        put(lake, ATTEMPTS, [attempt(finished_at=10 + n)], f"export-{n}")
    compact(table, SYSTEM_CLOCK.now(), everything=True)
    rows = table.load(table.manifests.newest())
    for name in ("old", "new"):
        for path in (
            f"date=2026-03-02/hour=10/g=dead/{name}.parquet",
            f"date=2026-03-02/hour=10/.{name}.parquet.1f",
            f"_temporary/0/{name}.parquet",
            f"_ledger/{name}.parquet",
            f"_manifest/.{name}.1f",
        ):
            (table.folder / path).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows, table.folder / path)
            if name == "old":
                os.utime(table.folder / path, (1, 1))
    return lake


def files(lake: Lake) -> set[str]:
    folder = lake.table(ATTEMPTS).folder
    return {path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".json"}


NEW = {"new.parquet", ".new.parquet.1f", ".new.1f"}
REPLACED = {"export-0.parquet", "export-1.parquet"}


def test_gc_lists_removable_files_and_removes_them_only_when_asked(lake: Lake) -> None:
    before = files(lake)
    done = gc(lake, SYSTEM_CLOCK)
    assert sorted((Path(each.file).name, each.why) for each in done.files) == [
        (".old.1f", "incomplete"),
        (".old.parquet.1f", "incomplete"),
        ("old.parquet", "incomplete"),
        ("old.parquet", "unlisted"),
        ("old.parquet", "unlisted"),
    ]
    assert files(lake) == before and not done.applied and done.bytes > 0
    assert "gc" not in last_runs(lake)


def test_gc_removes_orphans_older_than_a_day_and_no_listed_file(lake: Lake) -> None:
    rows = rows_of(lake, ATTEMPTS)
    assert len(gc(lake, SYSTEM_CLOCK, apply=True).files) == 5
    assert files(lake) == {"sorted.parquet"} | NEW | REPLACED
    assert rows_of(lake, ATTEMPTS) == rows and last_runs(lake)["gc"]["rows_out"] == 5
    assert gc(lake, SYSTEM_CLOCK, apply=True).files == []


def test_gc_removes_replaced_files_after_a_day_unless_a_reader_has_a_lease(lake: Lake) -> None:
    table = lake.table(ATTEMPTS)
    for path in table.folder.rglob("*.parquet"):
        os.utime(path, (1, 1))
    assert not REPLACED & {Path(each.file).name for each in gc(lake, Later(23 * HOUR)).files}
    with lease(lake.root, "a long report", 3600):
        done = gc(lake, Later(2 * DAY), apply=True)
        assert done.leases == ["a long report"] and {each.why for each in done.files} == {
            "incomplete"
        }
        table.sweep(SYSTEM_CLOCK.now() + 2 * DAY)
        assert files(lake) >= REPLACED, "the nightly sweep respects the lease too"
    gc(lake, Later(2 * DAY), apply=True)
    assert files(lake) == {"sorted.parquet", ".new.parquet.1f", ".new.1f"}


def test_the_lease_of_a_dead_reader_expires(lake: Lake) -> None:
    with lease(lake.root, "dead", -1):
        assert gc(lake, SYSTEM_CLOCK).leases == []
    assert list((lake.root / "_leases").iterdir()) == []


def test_gc_by_age_removes_no_input_of_another_table(lake: Lake) -> None:
    put(lake, RUNS, [row(RUNS, run_id="old", job="build")])
    done = gc(lake, SYSTEM_CLOCK, keep=timedelta(days=30))
    assert done.parts == {RUNS.name: ["2026-03-02"]} and len(rows_of(lake, RUNS)) == 1
    gc(lake, SYSTEM_CLOCK, keep=timedelta(days=30), apply=True)
    assert [r["job"] for r in rows_of(lake, RUNS)] == ["gc"] and len(rows_of(lake, ATTEMPTS)) == 2


def test_gc_removes_nothing_during_a_build(lake: Lake) -> None:
    with alone(lake), pytest.raises(NotAllowed, match="wait for it"):
        gc(lake, SYSTEM_CLOCK, apply=True)


_DIES = """
import os, sys
from pathlib import Path
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.jobs.gc import gc
from fairlead.pipeline.lake.lake import Lake
real, calls = Path.unlink, []
def unlink(path, **kwargs):
    real(path, **kwargs)
    calls.append(path)
    if len(calls) == int(sys.argv[2]):
        os._exit(9)
Path.unlink = unlink
gc(Lake(sys.argv[1]), SYSTEM_CLOCK, apply=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 3, 5])
def test_gc_killed_while_it_removes_files_and_repeated_finishes(lake: Lake, times: int) -> None:
    rows = rows_of(lake, ATTEMPTS)
    command = [sys.executable, "-c", _DIES, str(lake.root), str(times)]
    assert subprocess.run(command, cwd=ROOT, check=False, timeout=120).returncode == 9  # noqa: S603 - our own interpreter
    assert rows_of(lake, ATTEMPTS) == rows
    gc(lake, SYSTEM_CLOCK, apply=True)
    assert rows_of(lake, ATTEMPTS) == rows and files(lake) == {"sorted.parquet"} | NEW | REPLACED
