"""`check`: checks of all layers, over all their rows."""

from __future__ import annotations

from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.jobs import checks
from fairlead.pipeline.jobs.build import FolderJob
from fairlead.pipeline.runs import JobRun, OnRows, recorded
from fairlead.pipeline.tables import lake_tables


def check(job: FolderJob, on_rows: OnRows = lambda table, rows: None) -> JobRun:
    """Check that files are whole and have their columns, that keys are unique, and that the layers
    agree. Raise BrokenLake, CheckFailed."""
    with recorded(job.lake, job.clock, "check", {"catalog": job.catalog}) as run:
        run.spark_version = job.spark.version
        for table in TABLES:
            here = job.lake.table(table)
            manifest = here.manifests.newest()
            here.check(manifest)
            run.rows_in += manifest.rows
            on_rows(table.name, manifest.rows)
        tables = lake_tables(job.spark, job.lake, job.catalog, job.clock)
        listed = job.lake.table(ATTEMPTS).manifests.newest().rows
        run.checks = [
            *checks.bronze_checks(tables, None, listed),
            *checks.layer_checks(tables),
            *checks.latency_checks(tables, None),
        ]
        checks.require(run.checks)
    return run
