"""`build`: makes the silver and gold tables from bronze, checks them, then publishes them. A build
that is repeated after a crash makes the same tables."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec
from pyspark.sql import SparkSession

from fairlead.clock import Clock
from fairlead.pipeline import snapshot_plan
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS, QUARANTINE
from fairlead.pipeline.build_plan import BuildPlan, built, last_build, plan
from fairlead.pipeline.jobs import checks
from fairlead.pipeline.jobs.layers import Build
from fairlead.pipeline.lake.alone import alone
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.parts import dates_of
from fairlead.pipeline.quality import sound
from fairlead.pipeline.runs import NOTHING_TO_DO, JobRun, OnRows, recorded
from fairlead.pipeline.settings import PipelineSettings
from fairlead.pipeline.tables import Tables, lake_tables
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.warehouse_tables import WarehouseTables


@dataclass(frozen=True)
class FolderJob:
    """Spark session, lake of 0.1, catalog and clock of a job."""

    spark: SparkSession
    lake: Lake
    catalog: str | None
    clock: Clock


def next_plan(lake: Lake, settings: PipelineSettings, full: bool) -> BuildPlan:
    """Return the plan of the next build. Raise BrokenLake."""
    attempts, events = (lake.table(table).manifests.newest() for table in (ATTEMPTS, EVENTS))
    return plan(attempts, events, last_build(lake.root), digest(settings), full)


def build_folder(
    job: FolderJob,
    settings: PipelineSettings,
    full: bool = False,
    on_rows: OnRows = lambda table, rows: None,
) -> JobRun:
    """Build the tables from the changed partitions of bronze, or with `full` from all of them.

    Raise CheckFailed and publish nothing if a check fails, BrokenLake for damaged files, and
    NotAllowed while another build of this lake is running.
    """
    with (
        alone(job.lake),
        recorded(job.lake, job.clock, "build", {"full": full, "catalog": job.catalog}) as run,
    ):
        run.spark_version = job.spark.version
        todo = next_plan(job.lake, settings, full)
        if todo.is_empty:
            run.state = NOTHING_TO_DO
            return run
        tables = lake_tables(job.spark, job.lake, job.catalog, job.clock)
        _compute(job.spark, tables, todo, settings, run, on_rows)
        tables.publish()
        tables.land(ATTEMPTS, None if todo.full else todo.changed_attempts)
        tables.land(EVENTS, None if todo.full else todo.changed_events)
        built(job.lake.root, todo, digest(settings))
    return run


@dataclass(frozen=True)
class JobContext:
    """Spark session, lake and clock of a job."""

    spark: SparkSession
    warehouse: Warehouse
    clock: Clock


def build(
    job: JobContext,
    settings: PipelineSettings,
    full: bool = False,
    on_rows: OnRows = lambda table, rows: None,
) -> JobRun:
    """Build the tables of a lake in Iceberg from the partitions of bronze that changed, or with
    `full` from all of them, and publish them in one commit.

    Raise CheckFailed and publish nothing if a check fails, BrokenLake for damaged files or when
    another build has published meanwhile, and StoreUnavailable.
    """
    with recorded(job.warehouse, job.clock, "build", {"full": full}) as run:
        run.spark_version = job.spark.version
        tables = WarehouseTables(job.spark, job.warehouse, job.clock)
        todo = snapshot_plan.plan(tables, digest(settings), full)
        if todo.is_empty:
            run.state = NOTHING_TO_DO
            return run
        _compute(job.spark, tables, todo, settings, run, on_rows)
        tables.publish_as(snapshot_plan.facts(tables, todo, digest(settings)))
    return run


def _compute(
    spark: SparkSession,
    tables: Tables,
    todo: BuildPlan,
    settings: PipelineSettings,
    run: JobRun,
    on_rows: OnRows,
) -> None:
    """Write the tables of the plan without publishing them, and check them. Raise CheckFailed."""
    changed = todo.attempts.parts.keys() if todo.full else todo.changed_attempts
    run.rows_in = sum(part.rows for name, part in todo.attempts.parts.items() if name in changed)
    steps = Build(spark, tables, todo, settings, on_rows)
    steps.run()
    run.tables = steps.rows
    run.rows_out = sum(steps.rows.values())
    run.quarantined = steps.rows[QUARANTINE.name]
    hours = None if todo.full else steps.touched.service
    runs = tables.read(ATTEMPTS, steps.parts_for(("started_at",), hours)).transform(sound)
    run.checks = [
        *checks.bronze_checks(tables, None if todo.full else changed, run.rows_in),
        *checks.service_checks(tables, runs, hours),
        *checks.latency_checks(tables, None if todo.full else dates_of(changed)),
    ]
    checks.require(run.checks)


def digest(settings: PipelineSettings) -> str:
    """Return a digest of the settings that change the contents of tables: slo, cost, bill,
    latency."""
    used = settings.slo, settings.cost, settings.bill, settings.latency
    return hashlib.sha256(msgspec.json.encode(used, order="sorted")).hexdigest()
