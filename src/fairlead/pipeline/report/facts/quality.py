"""Quality of the data: the rows of the lake, their freshness, quarantined rows, and the results of
the jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlead.backends.sql.sql_file import load
from fairlead.clock import to_datetime
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.parts import micros_of
from fairlead.pipeline.reading.engine import quoted_name
from fairlead.pipeline.runs import RUNS, Check, last_runs
from fairlead.pipeline.schema import Table

if TYPE_CHECKING:
    import pandas as pd

    from fairlead.pipeline.reading.frames import Frames

MOST_REASONS = 20


def freshness(tables: Frames, lake: Lake | None, now: int) -> pd.DataFrame:
    """Return one row for each table, in the order of the data dictionary.

    lake: the lake whose manifests count the rows; None for a catalog. Columns: table, rows, newest
    (greatest instant up to `now`, because a clock may have been wrong; null if there is none),
    written_at (last change of rows; null if only the catalog knows it). Raise BrokenLake.
    """
    import pandas as pd

    rows = []
    for table in (table for table in TABLES if table != RUNS):
        found = _summary(tables, table, now, only_newest=lake is not None)
        counted, written_at = found["rows"], pd.NaT
        if lake is not None:
            manifest = lake.table(table).manifests.newest()
            if manifest.number:
                counted = manifest.rows
                written_at = to_datetime(manifest.written_at).replace(tzinfo=None)
        rows.append(
            {
                "table": table.name,
                "rows": counted,
                "newest": found["newest"],
                "written_at": written_at,
            }
        )
    return pd.DataFrame(rows)


def exported_until(lake: Lake) -> int:
    """Return the last export of any row, in microseconds since the epoch; 0 if there was none."""
    return max(lake.table(table).manifests.newest().written_at for table in (ATTEMPTS, EVENTS))


def quarantined(tables: Frames) -> pd.DataFrame:
    """Return all quarantined rows by table and reason, most frequent first.

    Columns: source, column, reason, rows, first_seen, last_seen. At most 20 rows.
    """
    statement = load("report.sql", __package__)["quarantined"]
    return tables.frame(statement, {"most": MOST_REASONS}, at_most=MOST_REASONS)


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


def _summary(tables: Frames, table: Table, now: int, only_newest: bool) -> pd.Series:
    """Return the rows and the newest instant up to `now` of a table, or of its newest partition."""
    past = [part for part in tables.parts(table) if only_newest and micros_of(part) <= now]
    statement = load("report.sql", __package__)["newest"]
    statement = statement.replace("{instant}", quoted_name(table.instant))
    statement = statement.replace("{rows}", f"{{{table.name}}}")
    parts = past[-1:] if only_newest else None
    return tables.frame(statement, {"now": now}, lambda _: parts, at_most=1).iloc[0]
