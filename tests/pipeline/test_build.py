"""The build makes the same tables in any number of steps, and publishes nothing that is wrong."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fairlead.clock import SYSTEM_CLOCK, SystemClock, to_micros
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS, QUARANTINE
from fairlead.pipeline.build_plan import last_build
from fairlead.pipeline.definitions.backlog import BACKLOG
from fairlead.pipeline.definitions.slo import SLO
from fairlead.pipeline.definitions.tasks import OPEN_TASKS, TASKS
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.errors import BrokenLake, CheckFailed
from fairlead.pipeline.jobs import layers
from fairlead.pipeline.jobs.build import FolderJob
from fairlead.pipeline.jobs.build import build_folder as build
from fairlead.pipeline.jobs.check import check
from fairlead.pipeline.jobs.compact import compact
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.parquet import ParquetTables
from fairlead.pipeline.reading.history import History
from fairlead.pipeline.reading.views import connect
from fairlead.pipeline.runs import RUNS, last_runs
from fairlead.pipeline.schema import Table
from fairlead.pipeline.settings import Cost, PipelineSettings, Slo
from tests.pipeline.frames import at, attempt, event

HOUR = 3600.0
SETTINGS = PipelineSettings(
    slo=[Slo("fast", "q", "2s", 0.9)],
    cost=Cost(workers=2, worker_hour=1),  # type: ignore[arg-type]
)
MADE = [table for table in TABLES if table not in (ATTEMPTS, EVENTS, RUNS)]


class At(SystemClock):
    """A clock that stands still at `hours` after T0."""

    def __init__(self, hours: float) -> None:
        self.hours = hours

    def now(self) -> int:
        return to_micros(at(self.hours * HOUR))


def export(
    lake: Lake, table: Table, rows: Sequence[dict[str, Any]], name: str, hours: float = 6
) -> None:
    """Add rows to bronze as the exporter does, `hours` after T0."""
    here = lake.table(table)
    data = pa.Table.from_pylist([dict(row) for row in rows], table.arrow())
    assert here.append(here.write(data, "0", name), {}, At(hours).now())


def batches(seed: int) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Return four exports of a day's tasks: attempts, and events of unfinished tasks. Some rows come
    late."""
    rng = random.Random(seed)
    made: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [([], []) for _ in range(4)]
    for n in range(240):
        when = rng.uniform(0, 5 * HOUR)
        wait, run = rng.expovariate(1 / 120), rng.lognormvariate(1, 2)
        key = rng.choice("aaabbc")
        pass_ = min(3, int((when + wait + run) / (1.3 * HOUR)))
        if rng.random() < 0.05:
            pass_ = rng.randrange(pass_, 4)  # exported late
        common = {
            "task_id": f"task-{n}",
            "submitted_at": when,
            "fairness_key": key,
            "queue": rng.choice("qqr"),
        }
        outcome = rng.choice(["done", "done", "done", "retried", "failed", "cancelled"])
        start = when + wait if outcome != "cancelled" else None  # cancelled before a claim
        made[pass_][0].append(
            attempt(**common, started_at=start, finished_at=when + wait + run, outcome=outcome)
        )
        if outcome == "retried":
            again = when + wait + run + 30
            made[3][0].append(
                attempt(
                    **common, attempt=2, ready_at=again, started_at=again + 5, finished_at=again + 9
                )
            )
        if pass_ > 0 and rng.random() < 0.5:
            fields = {name: common[name] for name in ("task_id", "fairness_key", "queue")}
            made[pass_ - 1][1].append(event(**fields, at=when))
    made[1][0].append(attempt(started_at=5000, finished_at=4000))  # a clock jumped
    made[3][1].extend(event(at=4 * HOUR + 10 * n) for n in range(3))  # still waiting at the end
    return made


def rows_of(lake: Lake) -> dict[str, list[dict[str, Any]]]:
    """Return the rows by table, in the order of their keys, with instants as numbers."""
    made = {}
    for table in MADE:
        here = lake.table(table)
        rows = here.load(here.manifests.newest()).to_pylist()
        made[table.name] = sorted(
            map(plain, rows), key=lambda row: [str(row[name]) for name in table.key]
        )
    return made


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Round the floats of a row, because sums of fractions depend on the order of addition."""
    return {
        name: f"{value:.9g}" if isinstance(value, float) else value for name, value in row.items()
    }


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: to_micros(value)
        if isinstance(value, datetime)
        else float(value)
        if isinstance(value, Decimal)
        else value
        for name, value in row.items()
    }


def assert_same_tables(one: Lake, other: Lake) -> None:
    found, wanted = rows_of(one), rows_of(other)
    for name in wanted:
        assert len(found[name]) == len(wanted[name]), name
        for row, same in zip(found[name], wanted[name], strict=True):
            assert rounded(row) == rounded(same), name


def put(lake: Lake, parts: Sequence[tuple[list[dict[str, Any]], list[dict[str, Any]]]]) -> None:
    for number, (attempts, events) in enumerate(parts):
        export(lake, ATTEMPTS, attempts, f"s-{number}.parquet")
        if events:
            export(lake, EVENTS, events, f"s-submitted-{number}.parquet")


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> FolderJob:
    return FolderJob(spark, Lake(tmp_path / "lake"), None, SYSTEM_CLOCK)


def test_builds_after_each_export_make_the_same_tables_as_one_build_of_everything(
    spark: SparkSession,
    job: FolderJob,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = int(request.config.option.hypothesis_seed or 0) % 1000
    parts = batches(seed)
    for number in range(len(parts)):
        attempts, events = parts[number]
        until = 1.4 * (number + 1)
        export(job.lake, ATTEMPTS, attempts, f"s-{number}.parquet", until)
        if events:
            export(job.lake, EVENTS, events, f"s-submitted-{number}.parquet", until)
        run = build(job, SETTINGS)
        assert run.state == "done" and all(found.holds for found in run.checks), seed
    shutil.copytree(job.lake.root, tmp_path / "rebuilt")
    rebuilt = FolderJob(spark, Lake(tmp_path / "rebuilt"), None, SYSTEM_CLOCK)
    monkeypatch.setattr(layers, "ROWS_OF_A_SLICE", 20)  # a large hour takes several tasks of Spark
    build(rebuilt, SETTINGS, full=True)
    assert_same_tables(job.lake, rebuilt.lake)
    assert all(found.holds for found in check(job).checks)
    compacted = compact(job.lake, At(200), everything=True)
    assert compacted.rows_out > 240
    assert build(job, SETTINGS).state == "nothing to do"


def test_a_build_is_read_by_duckdb_row_for_row_and_its_history_has_every_run(
    job: FolderJob,
) -> None:
    put(job.lake, batches(7))
    build(job, SETTINGS)
    expected = rows_of(job.lake)
    with connect(job.lake.root) as connection:
        for table in (each for each in MADE if expected[each.name]):
            found = connection.execute(f"SELECT * FROM {table.name}")
            rows = [dict(zip(table.column_names, row, strict=True)) for row in found.fetchall()]
            ordered = sorted(
                map(plain, rows), key=lambda row: [str(row[name]) for name in table.key]
            )
            assert ordered == expected[table.name], table.name
    services, history = expected["silver.service"], History(job.lake.root)
    for by in ("queue", "tenant", "name"):
        runs = history.runs(by=by).rows  # type: ignore[arg-type]
        assert sum(r.started for r in runs) == sum(s["attempts_started"] for s in services)
        assert sum(r.busy_us for r in runs) == sum(s["busy_us"] for s in services)
    for row in history.waits(points=1).rows:
        pickups = sum(
            hist["n"]
            for hist in expected["gold.latency_hist"]
            if (hist["measure"], hist["fairness_key"], hist["queue"]) == ("pickup", "*", row.part)
        )
        assert row.n == pickups
    assert history.as_of().history_until == last_build(job.lake.root).until


def test_a_build_of_one_new_hour_reads_and_writes_its_own_partitions_only(
    job: FolderJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = 24 * HOUR
    export(
        job.lake, ATTEMPTS, [attempt(submitted_at=n * day) for n in range(5)], "s.parquet", hours=97
    )
    build(job, SETTINGS)
    before = {table.name: job.lake.table(table).manifests.newest().parts for table in MADE}
    export(job.lake, ATTEMPTS, [attempt(submitted_at=4 * day + HOUR)], "later.parquet", hours=98)
    whole: list[str] = []
    read = ParquetTables.read

    def recorded(tables: ParquetTables, table: Table, parts: Any = None) -> Any:
        if parts is None or len(set(parts) & set(tables.parts(table))) > 24:
            whole.append(table.name)
        return read(tables, table, parts)

    monkeypatch.setattr(ParquetTables, "read", recorded)
    run = build(job, SETTINGS)
    assert run.rows_in == 1 and whole == [OPEN_TASKS.name]
    for table in MADE:
        now = job.lake.table(table).manifests.newest().parts
        changed = {name for name in now if now[name] != before[table.name].get(name)}
        assert all(name.startswith("2026-03-06") or table is SLO for name in changed), (
            table.name,
            changed,
        )


def test_invalid_rows_are_counted_and_quarantined(spark: SparkSession, job: FolderJob) -> None:
    put(job.lake, [([attempt(), attempt(started_at=20, finished_at=10), attempt(weight=-1.0)], [])])
    run = build(job, SETTINGS)
    assert run.quarantined == 2
    reasons = {
        row["reason"]
        for row in ParquetTables(spark, job.lake, SYSTEM_CLOCK).read(QUARANTINE).collect()
    }
    assert len(reasons) == 2
    assert ParquetTables(spark, job.lake, SYSTEM_CLOCK).read(TASKS).count() == 1


def test_a_build_of_an_empty_lake_makes_no_tables_and_reports_this(job: FolderJob) -> None:
    assert build(job, SETTINGS).rows_out == 0
    assert build(job, SETTINGS).state == "nothing to do"


def test_a_duplicate_row_in_bronze_fails_the_build_and_publishes_nothing(
    spark: SparkSession, job: FolderJob
) -> None:
    put(job.lake, [([attempt(task_id="t")], [])])
    build(job, SETTINGS)
    shown = job.lake.table(TASKS).manifests.newest()
    export(job.lake, ATTEMPTS, [attempt(task_id="t")], "double.parquet")
    with pytest.raises(CheckFailed, match="keys are unique: expected 2, found 1"):
        build(job, SETTINGS)
    assert job.lake.table(TASKS).manifests.newest() == shown
    assert last_runs(job.lake)["build"]["state"] == "failed"


def test_the_error_about_a_truncated_file_of_bronze_names_it(job: FolderJob) -> None:
    put(job.lake, [([attempt()], [])])
    file = next(job.lake.root.glob("bronze.attempts/date=*/**/*.parquet"))
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(BrokenLake, match=f"{file.name} is no whole Parquet file"):
        build(job, SETTINGS)


def test_a_second_simultaneous_build_of_one_lake_is_refused(job: FolderJob) -> None:
    import fcntl

    put(job.lake, [([attempt()], [])])
    with (job.lake.root / "_build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Exception, match="another build .* is under way"):
            build(job, SETTINGS)


def test_a_task_that_still_waits_counts_as_backlog_in_every_hour_since_its_submit(
    spark: SparkSession, job: FolderJob
) -> None:
    put(
        job.lake,
        [
            (
                [attempt(submitted_at=0), attempt(submitted_at=3 * HOUR)],
                [event(task_id="open", at=10)],
            )
        ],
    )
    build(job, SETTINGS)
    frame = ParquetTables(spark, job.lake, SYSTEM_CLOCK).read(BACKLOG)
    ends = frame.where("minute(minute) = 59").orderBy("minute").collect()
    assert [row["depth_end"] for row in ends] == [1] * 6


POINTS = [
    "first table written",
    "silver written",
    "gold written",
    "one table published",
    "all published, not noted",
]


@pytest.fixture(scope="module")
def halfway(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Lake]:
    """Return a built lake with new rows, and the lake that an undisturbed build makes of it."""
    folder = tmp_path_factory.mktemp("halfway")
    parts = batches(7)
    lake = Lake(folder / "lake")
    put(lake, parts[:2])
    build(FolderJob(spark, lake, None, SYSTEM_CLOCK), SETTINGS)
    export(lake, ATTEMPTS, parts[2][0], "s-2.parquet")
    shutil.copytree(lake.root, folder / "undisturbed")
    undisturbed = Lake(folder / "undisturbed")
    build(FolderJob(spark, undisturbed, None, SYSTEM_CLOCK), SETTINGS)
    return lake.root, undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_build_killed_at_any_point_and_repeated_makes_the_same_tables(
    spark: SparkSession, tmp_path: Path, halfway: tuple[Path, Lake], point: str
) -> None:
    before, undisturbed = halfway
    shutil.copytree(before, tmp_path / "lake")
    script = Path(__file__).with_name("build_until.py")
    command = [sys.executable, str(script), str(tmp_path / "lake"), str(POINTS.index(point))]
    killed = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    job = FolderJob(spark, Lake(tmp_path / "lake"), None, SYSTEM_CLOCK)
    build(job, SETTINGS)
    assert_same_tables(job.lake, undisturbed)
