"""Facts about the lake and its jobs that take more than one statement of report.sql."""

from __future__ import annotations

from typing import Any

import msgspec
import pandas as pd

from fairlead.backends.sql.sql_file import load
from fairlead.clock import to_datetime
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.parts import micros_of
from fairlead.pipeline.reading.engine import quoted_name
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.runs import RUNS, Check
from fairlead.pipeline.schema import Table

STATEMENTS = load("report.sql", __package__)
_RUN_COLUMNS = (
    *("job", "started_at", "seconds", "state", "rows_out", "quarantined", "error"),
    *("checks", "failed_checks"),
)


def freshness(tables: Frames, now: int) -> pd.DataFrame:
    """Return one row for each table, in the order of the data dictionary.

    Columns: table, rows, newest (greatest instant up to `now`, because a clock may have been wrong;
    null if there is none), written_at (last change; null without one). Raise BrokenLake.
    """
    rows = []
    for table in (table for table in TABLES if table != RUNS):
        at = tables.seen.tables.get(table)
        written = pd.NaT if at is None else to_datetime(at.written_at).replace(tzinfo=None)
        count = 0 if at is None else sum(file.rows for file in at.files)
        newest = _newest(tables, table, now)
        rows.append({"table": table.name, "rows": count, "newest": newest, "written_at": written})
    return pd.DataFrame(rows)


def exported_until(tables: Frames) -> int:
    """Return the last export of any row, in microseconds since the epoch; 0 if there was none."""
    found = (tables.seen.tables.get(table) for table in (ATTEMPTS, EVENTS))
    return max((at.exported_at for at in found if at is not None), default=0)


def runs(tables: Frames) -> pd.DataFrame:
    """Return the last run of each job, with the number of its checks, and its failed checks as
    text."""
    found = []
    for row in tables.arrow(STATEMENTS["last_runs"]).to_pylist():
        checks = msgspec.json.decode(row["checks"], type=list[Check])
        failed = "; ".join(str(check) for check in checks if not check.holds)
        found.append(row | {"checks": len(checks), "failed_checks": failed})
    return pd.DataFrame(found, columns=_RUN_COLUMNS)


def quarantined(tables: Frames, most: int) -> pd.DataFrame:
    """Return the quarantined rows of all time by table and reason, most frequent first."""
    return tables.frame(STATEMENTS["quarantined"], {"most": most}, at_most=most)


def _newest(tables: Frames, table: Table, now: int) -> Any:
    """Return the newest instant up to `now`, from the newest partition that began by then."""
    past = [part for part in tables.parts(table) if micros_of(part) <= now]
    statement = STATEMENTS["newest"].replace("{instant}", quoted_name(table.instant))
    statement = statement.replace("{rows}", f"{{{table.name}}}")
    return tables.frame(statement, {"now": now}, lambda _: past[-1:], at_most=1)["newest"].iloc[0]
