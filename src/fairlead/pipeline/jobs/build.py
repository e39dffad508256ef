"""`build`: makes the silver and gold tables from bronze, checks them, then publishes them in one
commit. A build that is repeated after a crash makes the same tables."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fairlead.clock import Clock
from fairlead.errors import ConfigurationError
from fairlead.pipeline import build_plan
from fairlead.pipeline.bronze import QUARANTINE
from fairlead.pipeline.build_plan import BuildPlan, Snapshots
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.jobs import checks
from fairlead.pipeline.jobs.layers import Build
from fairlead.pipeline.parts import dates_of, hours_of
from fairlead.pipeline.runs import NOTHING_TO_DO, JobRun, OnRows, recorded
from fairlead.pipeline.schema import Table
from fairlead.pipeline.settings import PipelineSettings
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.warehouse_tables import WarehouseTables


@dataclass(frozen=True)
class JobContext:
    """Spark session, lake and clock of a job."""

    spark: SparkSession
    warehouse: Warehouse
    clock: Clock


class Difference(msgspec.Struct, frozen=True):
    """Rows of one table in the days that were built again: total, only in the old build, only in
    the new one."""

    table: str
    rows: int
    only_old: int
    only_new: int


class Rebuilt(msgspec.Struct, frozen=True):
    """Result of a build of given days."""

    days: list[str]
    published: bool
    differences: list[Difference]
    """Differences of the tables that changed."""
    notes: list[str]


def next_plan(warehouse: Warehouse, settings: PipelineSettings, full: bool) -> BuildPlan:
    """Return the plan of the next build. Raise BrokenLake, StoreUnavailable."""
    return build_plan.plan(Snapshots(warehouse), digest(settings), full)


def build(
    job: JobContext,
    settings: PipelineSettings,
    full: bool = False,
    on_rows: OnRows = lambda table, rows: None,
) -> JobRun:
    """Build the tables from the partitions of bronze that changed, or with `full` from all of them.

    Raise CheckFailed and publish nothing if a check fails, BrokenLake for damaged files or when
    another build has published meanwhile, and StoreUnavailable.
    """
    with recorded(job.warehouse, job.clock, "build", {"full": full}) as run:
        run.spark_version = job.spark.version
        tables = WarehouseTables(job.spark, job.warehouse, job.clock, full)
        todo = build_plan.plan(tables, digest(settings), full)
        if todo.is_empty:
            run.state = NOTHING_TO_DO
            return run
        tables.hold()
        _compute(job.spark, tables, todo, settings, run, on_rows)
        tables.publish(build_plan.facts(tables, todo, digest(settings)))
    return run


def build_again(
    job: JobContext,
    settings: PipelineSettings,
    since: datetime,
    until: datetime,
    publish: bool,
    on_rows: OnRows = lambda table, rows: None,
) -> Rebuilt:
    """Build the days from `since` up to `until` (excluded) with the present code, compare them with
    the present tables, and publish them in one commit if wanted.

    Raise ConfigurationError for an empty range, and otherwise the errors of `build`.
    """
    days = _days(since, until)
    params = {"from": days[0], "to": days[-1], "publish": publish}
    with recorded(job.warehouse, job.clock, "build", params) as run:
        run.spark_version = job.spark.version
        tables = WarehouseTables(job.spark, job.warehouse, job.clock)
        notes = _notes(tables, settings)
        old = WarehouseTables(job.spark, job.warehouse, job.clock)
        todo = build_plan.plan_again(tables, hours_of(days))
        tables.hold()
        steps = _compute(job.spark, tables, todo, settings, run, on_rows)
        differences = [
            found
            for table in TABLES
            if table.name in steps.parts
            and (found := _difference(table, old, tables, steps.parts[table.name])) is not None
        ]
        if publish:
            tables.publish()
    return Rebuilt(days, publish, differences, notes)


def _compute(
    spark: SparkSession,
    tables: WarehouseTables,
    todo: BuildPlan,
    settings: PipelineSettings,
    run: JobRun,
    on_rows: OnRows,
) -> Build:
    """Write the tables of the plan without publishing them, and check them. Raise CheckFailed."""
    run.rows_in = todo.rows
    steps = Build(spark, tables, todo, settings, on_rows)
    steps.run()
    run.tables = {each.name: steps.rows[each.name] for each in TABLES if each.name in steps.rows}
    run.rows_out = sum(steps.rows.values())
    run.quarantined = steps.rows[QUARANTINE.name]
    changed = None if todo.full else todo.changed_attempts
    hours = None if todo.full else steps.touched.service
    dates = None if changed is None else dates_of(changed)
    run.checks = [
        *checks.bronze_checks(steps.totals, lambda _: changed, run.rows_in),
        *checks.event_checks(steps.totals, lambda _: None if todo.full else todo.changed_events),
        *checks.service_checks(steps.totals, hours, steps.parts_with_runs(hours)),
        *checks.histogram_checks(steps.totals, dates),
    ]
    checks.require(run.checks)
    return steps


def digest(settings: PipelineSettings) -> str:
    """Return a digest of the settings that change the contents of tables: slo, cost, bill,
    latency."""
    used = settings.slo, settings.cost, settings.bill, settings.latency
    return hashlib.sha256(msgspec.json.encode(used, order="sorted")).hexdigest()


def _difference(
    table: Table, old: WarehouseTables, new: WarehouseTables, parts: Collection[str] | None
) -> Difference | None:
    """Return the difference, None if nothing changed. Fractions are compared to six places, because
    their sums depend on the order of adding."""
    columns = [
        F.round(c.name, 6).alias(c.name) if c.type == "double" else F.col(c.name)
        for c in table.columns
    ]
    before, after = (tables.read(table, parts).select(*columns) for tables in (old, new))
    only_old, only_new = before.exceptAll(after).count(), after.exceptAll(before).count()
    if not only_old and not only_new:
        return None
    return Difference(table.name, after.count(), only_old, only_new)


def _days(since: datetime, until: datetime) -> list[str]:
    if since >= until:
        raise ConfigurationError(
            f"no day lies between {since:%Y-%m-%d} and {until:%Y-%m-%d}; --until is the day"
            " after the last one"
        )
    first = since.replace(hour=0, minute=0, second=0, microsecond=0)
    count = -((first - until) // timedelta(days=1))  # a part of a day counts as a whole one
    return [f"{first + timedelta(days=n):%Y-%m-%d}" for n in range(count)]


def _notes(tables: WarehouseTables, settings: PipelineSettings) -> list[str]:
    last = tables.before
    if last.settings not in ("", digest(settings)):
        return [
            "the last build had other settings; use the same settings for the next build, or it"
            " rebuilds everything"
        ]
    return []
