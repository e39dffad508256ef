"""Retention of bronze: remove the rows of old days, and keep a daily summary of them.

The summary is written first, under a digest of the files to remove. The commit that removes these
files notes the digest in bronze. After a crash between the two commits, the next run finds a digest
that bronze does not have: it goes on if the files are still the same, and else counts again.
Builds never read the removed days again, so that silver and gold keep them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from datetime import date, timedelta

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from fairlead.clock import to_datetime
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.definitions.forgotten import FORGOTTEN
from fairlead.pipeline.parts import dates_of, start_of
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.data_files import TableFile
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.table import CURSOR, FORGOTTEN_BEFORE, TableState
from fairlead.pipeline.warehouse.warehouse import Warehouse

_BATCH = "fairlead.forgotten.batch"


class Forgotten(msgspec.Struct, frozen=True):
    """Result of a run."""

    rows: dict[str, int] = {}
    """Number of removed rows, by table of bronze."""
    days: list[str] = []
    """Days of which rows were removed, ascending."""


def drop_before(
    warehouse: Warehouse,
    before_day: date,
    compared_until: int | None = None,
    dry_run: bool = False,
) -> Forgotten:
    """Remove all rows of bronze before this day (UTC), and add them to ops.forgotten; with
    `dry_run`, only count them. A repeated run changes nothing. Raise BrokenLake, StoreUnavailable.

    compared_until: instant of the last comparison of lake and store (microseconds). Hours with rows
    exported in the day before it, or later, stay, because they may not be compared yet.
    """
    rows, days = {}, set()
    for table in (ATTEMPTS, EVENTS):
        found = _drop_before(warehouse, table, before_day, compared_until, dry_run)
        if found:
            rows[table.name] = sum(file.rows for file in found)
            days.update(dates_of(file.part for file in found))
    return Forgotten(rows, sorted(days))


def _drop_before(
    warehouse: Warehouse, table: Table, before: date, compared_until: int | None, dry_run: bool
) -> list[TableFile]:
    """Return the removed files."""
    here = warehouse.table(table)
    compared = math.inf if compared_until is None else compared_until - DAY_US
    while True:
        seen = here.state()
        files = here.files(seen=seen)
        waiting = {
            file.part for file in files if file.span.get("exported_at", (0, 0))[1] >= compared
        }
        first = before.isoformat()
        gone = [file for file in files if file.part < first and file.part not in waiting]
        if dry_run or not gone:
            return gone
        batch = hashlib.sha256("\n".join(sorted(file.path for file in gone)).encode()).hexdigest()
        _summarise(warehouse, table, seen, gone, batch)
        first = max(first, seen.properties.get(FORGOTTEN_BEFORE, ""))
        news = {FORGOTTEN_BEFORE: first, _BATCH: batch}
        if here.replace({file.part for file in gone}, [], seen, news, "retention"):
            return gone


def _summarise(
    warehouse: Warehouse, table: Table, seen: TableState, gone: Sequence[TableFile], batch: str
) -> None:
    """Count the rows of these files in ops.forgotten, in place of a batch whose rows were never
    removed."""
    summary, cursor, done = warehouse.table(FORGOTTEN), table.name, seen.properties.get(_BATCH)
    rows: pa.Table | None = None
    while True:
        before = summary.state()
        last = before.cursors.get(cursor)
        if last == batch:
            return
        rows = _counted(warehouse, table, seen, gone, batch) if rows is None else rows
        known = summary.load(snapshot=before.snapshot)
        is_stale = pc.and_(
            pc.equal(known["batch"], "" if last in (None, done) else last),
            pc.equal(known["table"], cursor),
        )
        days = pa.chunked_array([*rows["day"].chunks, *known["day"].filter(is_stale).chunks])
        is_kept = pc.and_(pc.is_in(known["day"], pc.unique(days)), pc.invert(is_stale))
        kept = pa.concat_tables([known.filter(is_kept), rows.cast(known.schema)])
        written = summary.write(kept, "forgotten", before)
        parts = {f"{day:%Y-%m-%d}" for day in pc.unique(days).to_pylist()}
        if summary.replace(parts, written, before, {CURSOR + cursor: batch}):
            return
        summary.take_away(written)


def _counted(
    warehouse: Warehouse, table: Table, seen: TableState, gone: Sequence[TableFile], batch: str
) -> pa.Table:
    """Return the rows of ops.forgotten for these files. Load one partition at a time."""
    here, found = warehouse.table(table), []
    by = ["store_id", "queue", "name", "kind" if table is EVENTS else "outcome"]
    times = ["started_at", "finished_at"] if table is ATTEMPTS else []
    for part in sorted({file.part for file in gone}):
        rows = here.load([part], [*by, *times], snapshot=seen.snapshot)
        busy = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
        if times:
            starts, ends = (rows[name].cast(pa.int64()) for name in times)
            busy = pc.fill_null(pc.subtract(ends, starts), 0)
        counts = (
            rows.select(by)
            .append_column("busy", busy)
            .group_by(by)
            .aggregate([([], "count_all"), ("busy", "sum")])
        )
        day = pa.scalar(start_of(part[:10]), pa.timestamp("us", "UTC"))
        found.append(counts.append_column("day", pa.repeat(day, counts.num_rows)))
    totals = (
        pa.concat_tables(found)
        .group_by(["day", *by])
        .aggregate([("count_all", "sum"), ("busy_sum", "sum")])
        .select(["day", *by, "count_all_sum", "busy_sum_sum"])
        .rename_columns(["day", "store_id", "queue", "name", "outcome", "rows", "busy_us"])
    )
    same = {"table": table.name, "batch": batch}
    return pa.Table.from_pylist([row | same for row in totals.to_pylist()], FORGOTTEN.arrow())


def first_day(now: int, keep_days: int) -> date:
    """Return the first day to keep, so that whole days of history stay (`now`: microseconds)."""
    return to_datetime(now).date() - timedelta(days=keep_days)
