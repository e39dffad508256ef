"""`check`: checks of all layers, over all their rows."""

from __future__ import annotations

from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.jobs import checks
from fairlead.pipeline.jobs.build import JobContext
from fairlead.pipeline.runs import JobRun, OnRows, recorded
from fairlead.pipeline.warehouse_tables import WarehouseTables


def check(job: JobContext, on_rows: OnRows = lambda table, rows: None) -> JobRun:
    """Check that files are whole, that keys are unique, and that the layers agree. Raise
    BrokenLake, CheckFailed."""
    with recorded(job.warehouse, job.clock, "check", {}) as run:
        run.spark_version = job.spark.version
        tables = WarehouseTables(job.spark, job.warehouse, job.clock)
        for table in TABLES:
            rows = sum(file.rows for file in tables.files(table))
            run.rows_in += rows
            on_rows(table.name, rows)
        listed = sum(file.rows for file in tables.files(ATTEMPTS))
        run.checks = [
            *checks.bronze_checks(tables, None, listed),
            *checks.layer_checks(tables),
            *checks.latency_checks(tables, None),
        ]
        checks.require(run.checks)
    return run
