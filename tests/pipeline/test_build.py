"""The build makes the same tables in any number of steps, and publishes nothing that is wrong."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from fairlead.clock import SYSTEM_CLOCK, to_micros
from fairlead.pipeline.errors import BrokenLake, CheckFailed
from fairlead.pipeline.jobs import runner
from fairlead.pipeline.jobs.build import JobContext, build
from fairlead.pipeline.jobs.checks import check
from fairlead.pipeline.models import (
    ATTEMPTS,
    BACKLOG,
    EVENTS,
    LATENCY_HIST,
    RUNS,
    SERVICE,
    SLO,
    TABLES,
    TASKS,
)
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.reading.history import History
from fairlead.pipeline.reading.query import open_views
from fairlead.pipeline.reading.snapshots import Snapshots
from fairlead.pipeline.retention import drop_before
from fairlead.pipeline.runs import last_runs
from fairlead.pipeline.schema import Table
from fairlead.pipeline.settings import Cost, PipelineSettings, Slo
from fairlead.pipeline.warehouse.builds import Build, Builds
from fairlead.pipeline.warehouse.compaction import compact
from fairlead.pipeline.warehouse.data_files import TableFile
from fairlead.pipeline.warehouse.location import CATALOG, NAMESPACE, flat_name
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.warehouse_tables import WarehouseTables
from fairlead.ports.lake_history import Question
from tests.pipeline.frames import attempt, event
from tests.pipeline.tables_by_hand import rows_of
from tests.pipeline.warehouses import export, root_of

HOUR = 3600.0
SETTINGS = PipelineSettings(
    slo=[Slo("fast", "q", "2s", 0.9)],
    cost=Cost(workers=2, worker_hour=1),  # type: ignore[arg-type]
)
MADE = [table for table in TABLES if table not in (ATTEMPTS, EVENTS, RUNS)]


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


def made_in(warehouse: Warehouse) -> dict[str, list[dict[str, Any]]]:
    """Return the rows by table, in the order of their keys, with instants as numbers."""
    return {
        table.name: sorted(
            map(plain, rows_of(warehouse, table)),
            key=lambda row: [str(row[name]) for name in table.key],
        )
        for table in MADE
    }


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


def assert_same_rows(
    found: dict[str, list[dict[str, Any]]], wanted: dict[str, list[dict[str, Any]]]
) -> None:
    for name in wanted:
        assert len(found[name]) == len(wanted[name]), name
        for row, same in zip(found[name], wanted[name], strict=True):
            assert rounded(row) == rounded(same), name


def put(
    warehouse: Warehouse, parts: Sequence[tuple[list[dict[str, Any]], list[dict[str, Any]]]]
) -> None:
    """Export these attempts and events; the history is then known up to six hours after T0."""
    for attempts, events in parts:
        export(warehouse, ATTEMPTS, attempts, hours=6)
        if events:
            export(warehouse, EVENTS, events, hours=6)


def tables_of(job: JobContext) -> WarehouseTables:
    """Open the lake again, as the next job does."""
    return WarehouseTables(job.spark, job.warehouse, job.clock)


def pretend_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let builds take any rows for so many that several tasks of Spark compute and check them."""
    monkeypatch.setattr(runner, "FEW_ROWS", 0)
    monkeypatch.setattr(Frames, "keys_at_once", 0)


def test_builds_after_each_export_make_the_same_tables_as_one_build_of_everything(
    job: JobContext, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(request.config.option.hypothesis_seed or 0) % 1000
    for number, (attempts, events) in enumerate(batches(seed)):
        until = 1.4 * (number + 1)
        export(job.warehouse, ATTEMPTS, attempts, hours=until)
        if events:
            export(job.warehouse, EVENTS, events, hours=until)
        with monkeypatch.context() as rows:
            if number % 2:
                pretend_many(rows)
            run = build(job, SETTINGS)
        assert run.state == "done" and all(found.holds for found in run.checks), seed
    found = made_in(job.warehouse)
    assert all(each.holds for each in check(job.warehouse, job.clock).checks)
    attempts_table = job.warehouse.table(ATTEMPTS)
    assert compact(attempts_table, SYSTEM_CLOCK.now()).rows > 240
    assert build(job, SETTINGS).state == "nothing to do"
    assert_three_engines_read_the_same_rows(job)
    assert_history_adds_up(job.warehouse)
    pretend_many(monkeypatch)
    build(job, SETTINGS, full=True)
    assert_same_rows(found, made_in(job.warehouse))


def assert_three_engines_read_the_same_rows(job: JobContext) -> None:
    """Spark SQL, DuckDB and PyIceberg read the tables. Spark knows the catalog and nothing of
    Fairlead."""
    lake, filled = job.warehouse, 0
    with open_views(lake) as views:
        for table in Snapshots(lake).read().tables:
            name = f"{NAMESPACE}.{flat_name(table)}"
            by_duckdb = ordered(table, views.sql(f"FROM {table.name}").to_arrow_table())
            by_pyiceberg = ordered(table, lake.catalog.load_table(name).scan().to_arrow())
            by_spark = ordered(table, job.spark.sql(f"SELECT * FROM {CATALOG}.{name}").toArrow())
            assert by_duckdb == by_spark == by_pyiceberg, table.name
            filled += len(by_spark) > 0
    assert filled >= 14


def ordered(table: Table, rows: pa.Table) -> pa.Table:
    """Return the rows with the types of the dictionary, in the order of the key."""
    typed = pa.Table.from_arrays(
        [rows[field.name].cast(field.type) for field in table.arrow()],
        schema=pa.schema([field.with_nullable(True) for field in table.arrow()]),
    )
    return typed.sort_by([(name, "ascending") for name in table.key]).combine_chunks()


def assert_history_adds_up(lake: Warehouse) -> None:
    served, history = rows_of(lake, SERVICE), History(root_of(lake))
    for by in ("queue", "tenant", "name"):
        runs = history.runs(Question(by=by)).rows  # type: ignore[arg-type]
        assert sum(r.started for r in runs) == sum(row["attempts_started"] for row in served)
        assert sum(r.busy_us for r in runs) == sum(row["busy_us"] for row in served)
    pickups = Counter[str]()
    for row in rows_of(lake, LATENCY_HIST):
        pickups[row["queue"]] += row["n"] * (row["measure"] == "pickup")
    assert {row.part: row.n for row in history.waits(Question(points=1)).rows} == pickups
    assert history.as_of().history_until == Builds(lake).newest()[0].until


def test_a_build_of_one_new_hour_reads_and_writes_its_own_partitions_only(
    job: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = 24 * HOUR
    export(job.warehouse, ATTEMPTS, [attempt(submitted_at=n * day) for n in range(5)], hours=97)
    build(job, SETTINGS)
    before = {table.name: files_of(job, table) for table in MADE}
    for file in job.warehouse.table(ATTEMPTS).files():
        if file.part < "2026-03-06":
            Path(file.path.removeprefix("file://")).unlink()
    export(job.warehouse, ATTEMPTS, [attempt(submitted_at=4 * day + HOUR)], hours=98)
    run = build(job, SETTINGS)
    assert run.rows_in == 1
    for table in MADE:
        now = files_of(job, table)
        changed = {file.part for file in now ^ before[table.name]}
        assert {name[:10] for name in changed} <= {"2026-03-06"} or table is SLO, (
            table.name,
            changed,
        )


def files_of(job: JobContext, table: Table) -> set[TableFile]:
    return {file._replace(span=()) for file in tables_of(job).files(table)}  # type: ignore[arg-type]


def test_a_build_of_an_empty_lake_makes_no_tables_and_reports_this(job: JobContext) -> None:
    assert build(job, SETTINGS).rows_out == 0
    assert build(job, SETTINGS).state == "nothing to do"


def test_a_duplicate_row_in_bronze_fails_the_build_and_publishes_nothing(job: JobContext) -> None:
    put(job.warehouse, [([attempt(task_id="t")], [])])
    build(job, SETTINGS)
    before = Builds(job.warehouse).newest()[0]
    export(job.warehouse, ATTEMPTS, [attempt(task_id="t")], hours=6)
    with pytest.raises(CheckFailed, match="keys are unique: expected 2, found 1"):
        build(job, SETTINGS)
    assert Builds(job.warehouse).newest()[0] == before
    assert [row["task_id"] for row in rows_of(job.warehouse, TASKS)] == ["t"]
    assert last_runs(job.warehouse)["build"]["state"] == "failed"


def test_a_key_that_a_model_makes_twice_fails_the_build(
    job: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(job.warehouse, [([attempt(task_id="t")], [])])
    rows_of_model = runner.rows_of

    def twice(table: Table, *given: Any, **named: Any) -> DataFrame:
        rows = rows_of_model(table, *given, **named)
        return rows.union(rows) if table is BACKLOG else rows

    monkeypatch.setattr(runner, "rows_of", twice)
    with pytest.raises(CheckFailed, match=r"^silver.backlog: keys are unique: expected 2, found 1"):
        build(job, SETTINGS)
    assert not Builds(job.warehouse).newest()[0].id


def test_a_build_whose_tables_another_one_has_published_meanwhile_is_refused(
    job: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(job.warehouse, [([attempt()], [])])
    publish = WarehouseTables.publish

    def late(tables: WarehouseTables, facts: Build) -> None:
        monkeypatch.setattr(WarehouseTables, "publish", publish)
        build(job, SETTINGS)
        publish(tables, facts)

    monkeypatch.setattr(WarehouseTables, "publish", late)
    with pytest.raises(BrokenLake, match="another job has published"):
        build(job, SETTINGS)
    assert len(rows_of(job.warehouse, TASKS)) == 1


def test_a_task_that_still_waits_counts_as_backlog_in_every_hour_since_its_submit(
    job: JobContext,
) -> None:
    attempts = [attempt(submitted_at=0), attempt(submitted_at=3 * HOUR)]
    put(job.warehouse, [(attempts, [event(task_id="open", at=10)])])
    build(job, SETTINGS)
    rows = sorted(rows_of(job.warehouse, BACKLOG), key=lambda row: row["minute"])
    ends = [row["depth_end"] for row in rows if row["minute"].minute == 59]
    assert ends == [1] * 6


def test_days_that_bronze_has_forgotten_stay_as_they_were_built(job: JobContext) -> None:
    day = 24 * HOUR
    export(job.warehouse, ATTEMPTS, [attempt(submitted_at=n * day) for n in range(4)], hours=74)
    build(job, SETTINGS)
    before = made_in(job.warehouse)
    drop_before(job.warehouse, date(2026, 3, 4))
    assert build(job, SETTINGS).state == "nothing to do"
    build(job, SETTINGS, full=True)
    assert_same_rows(made_in(job.warehouse), before)
