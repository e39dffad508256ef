"""`build`: makes the silver and gold tables from bronze, checks them, then publishes them in one
commit. A build that is repeated after a crash makes the same tables."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec
from pyspark.sql import SparkSession

from fairlead.clock import Clock
from fairlead.pipeline.jobs import build_plan, checks
from fairlead.pipeline.jobs.build_plan import BuildPlan
from fairlead.pipeline.jobs.runner import Runner
from fairlead.pipeline.models import ATTEMPTS, EVENTS, QUARANTINE, SILVER, TABLES
from fairlead.pipeline.partitions import dates_of
from fairlead.pipeline.runs import NOTHING_TO_DO, JobRun, recorded
from fairlead.pipeline.settings import PipelineSettings
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.warehouse_tables import WarehouseTables


@dataclass(frozen=True)
class JobContext:
    """Spark session, lake and clock of a job."""

    spark: SparkSession
    warehouse: Warehouse
    clock: Clock


def build(job: JobContext, settings: PipelineSettings, full: bool = False) -> JobRun:
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
        _compute(Runner(job.spark, tables, todo, settings), todo, run)
        tables.publish(build_plan.facts(tables, todo, digest(settings)))
    return run


def _compute(steps: Runner, todo: BuildPlan, run: JobRun) -> None:
    """Write the tables of the plan without publishing them, and check them. Raise CheckFailed."""
    run.rows_in = todo.rows
    steps.run()
    run.tables = {each.name: steps.rows[each.name] for each in TABLES if each.name in steps.rows}
    run.rows_out = sum(steps.rows.values())
    run.quarantined = steps.rows[QUARANTINE.name]
    changed = None if todo.full else todo.changed_attempts
    changed_events = None if todo.full else todo.changed_events
    hours = None if todo.full else steps.touched.service
    dates = None if changed is None else dates_of(changed)
    written = {table: steps.rows[table.name] for table in SILVER}
    run.checks = [
        *checks.key_checks(steps.totals, {ATTEMPTS: run.rows_in}, lambda _: changed),
        *checks.key_checks(steps.totals, written, steps.parts),
        checks.sound_check(steps.totals, ATTEMPTS, lambda _: changed),
        checks.sound_check(steps.totals, EVENTS, lambda _: changed_events),
        *checks.service_checks(steps.totals, hours, steps.parts_with_runs(hours)),
        *checks.histogram_checks(steps.totals, dates),
    ]
    checks.require(run.checks)


def digest(settings: PipelineSettings) -> str:
    """Return a digest of the settings that change the contents of tables: slo, cost, bill,
    latency."""
    used = settings.slo, settings.cost, settings.bill, settings.latency
    return hashlib.sha256(msgspec.json.encode(used, order="sorted")).hexdigest()
