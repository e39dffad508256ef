"""Quality of the data: the rows of the lake, their freshness, quarantined rows, and the results of
the jobs."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.clock import to_datetime
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS, QUARANTINE
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.manifest import Manifest
from fairlead.pipeline.lake.parts import micros_of
from fairlead.pipeline.parquet import ParquetTables
from fairlead.pipeline.report.facts import collect
from fairlead.pipeline.runs import RUNS, Check, last_runs
from fairlead.pipeline.schema import Table
from fairlead.pipeline.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

MOST_REASONS = 20
_MINUTE = "yyyy-MM-dd HH:mm"


def freshness(tables: Tables, now: int) -> pd.DataFrame:
    """Return one row for each table, in the order of the data dictionary.

    Columns: table, rows, newest (greatest instant up to `now`, in microseconds, because a clock may
    have been wrong; null if none were), written_at (last change of rows; null if only the catalog
    knows it).
    """
    import pandas as pd

    shown = [table for table in TABLES if table != RUNS]
    summaries = reduce(DataFrame.unionByName, [_summary(tables, table, now) for table in shown])
    found = {row.table: row for row in collect(summaries, len(shown)).itertuples()}
    rows = []
    for table in shown:
        manifest = tables.manifest(table) if isinstance(tables, ParquetTables) else Manifest()
        rows.append(
            {
                "table": table.name,
                "rows": manifest.rows if manifest.number else found[table.name].rows,
                "newest": found[table.name].newest,
                "written_at": to_datetime(manifest.written_at).replace(tzinfo=None)
                if manifest.number
                else pd.NaT,
            }
        )
    return pd.DataFrame(rows)


def exported_until(lake: Lake) -> int:
    """Return the last export of any row, in microseconds since the epoch; 0 if there was none."""
    return max(lake.table(table).manifests.newest().written_at for table in (ATTEMPTS, EVENTS))


def quarantined(tables: Tables) -> pd.DataFrame:
    """Return all quarantined rows by table and reason, most frequent first.

    Columns: source, column, reason, rows, first_seen, last_seen. At most 20 rows.
    """
    rows = (
        tables.read(QUARANTINE)
        .groupBy(F.substring_index("source", "/", 1).alias("source"), "column", "reason")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            # As text, because a wrong clock may be off by more years than pandas can hold.
            F.date_format(F.min("seen_at"), _MINUTE).alias("first_seen"),
            F.date_format(F.max("seen_at"), _MINUTE).alias("last_seen"),
        )
        .orderBy(F.desc("rows"), "source", "reason")
        .limit(MOST_REASONS)
    )
    return collect(rows, MOST_REASONS)


def runs(lake: Lake) -> pd.DataFrame:
    """Return the last run of each job.

    Columns: job, started_at, seconds, state, rows_out, quarantined, checks (number of checks made),
    failed_checks (text; empty if all checks hold), error (null if none).
    """
    import pandas as pd

    found = []
    for job, row in sorted(last_runs(lake).items()):
        checks = msgspec.json.decode(row["checks"], type=list[Check])
        failed = [
            f"{c.name}: expected {c.expected:,.0f}, found {c.found:,.0f}"
            for c in checks
            if not c.holds
        ]
        kept = {
            name: row[name] for name in ("seconds", "state", "rows_out", "quarantined", "error")
        }
        started_at = row["started_at"].replace(tzinfo=None)
        found.append(
            {
                "job": job,
                "started_at": started_at,
                **kept,
                "checks": len(checks),
                "failed_checks": "; ".join(failed),
            }
        )
    return pd.DataFrame(found, columns=_RUN_COLUMNS)


_RUN_COLUMNS = [
    "job",
    "started_at",
    "seconds",
    "state",
    "rows_out",
    "quarantined",
    "error",
    "checks",
    "failed_checks",
]


def _summary(tables: Tables, table: Table, now: int) -> DataFrame:
    """Return the rows and the newest instant of a table, from its newest partition if a manifest
    counts the rows, else from all partitions."""
    is_counted = isinstance(tables, ParquetTables)
    past = [part for part in tables.parts(table) if micros_of(part) <= now] if is_counted else []
    instant = F.col(table.instant)
    return tables.read(table, past[-1:] if is_counted else None).agg(
        F.lit(table.name).alias("table"),
        F.count(F.lit(1)).alias("rows"),
        F.max(F.when(instant <= F.timestamp_micros(F.lit(now)), instant)).alias("newest"),
    )
