"""Retention of bronze: remove the rows of old days. Builds never read these days again, so that
silver and gold keep them."""

from __future__ import annotations

import math
from datetime import date, timedelta

import msgspec

from fairlead.clock import to_datetime
from fairlead.pipeline.models import ATTEMPTS, EVENTS
from fairlead.pipeline.partitions import dates_of
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.data_files import TableFile
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.table import KEPT_FROM
from fairlead.pipeline.warehouse.warehouse import Warehouse


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
) -> Forgotten:
    """Remove all rows of bronze before this day (UTC). A repeated run changes
    nothing. Raise BrokenLake, StoreUnavailable.

    compared_until: instant of the last comparison of lake and store (microseconds). Hours with rows
    exported in the day before it, or later, stay, because they may not be compared yet.
    """
    rows, days = {}, set()
    for table in (ATTEMPTS, EVENTS):
        found = _drop_before(warehouse, table, before_day, compared_until)
        if found:
            rows[table.name] = sum(file.rows for file in found)
            days.update(dates_of(file.part for file in found))
    return Forgotten(rows, sorted(days))


def _drop_before(
    warehouse: Warehouse, table: Table, before: date, compared_until: int | None
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
        if not gone:
            return gone
        news = {KEPT_FROM: max(first, seen.properties.get(KEPT_FROM, ""))}
        if here.replace({file.part for file in gone}, [], seen, news, is_housekeeping=True):
            return gone


def first_day(now: int, keep_days: int) -> date:
    """Return the first day to keep, so that whole days of history stay (`now`: microseconds)."""
    return to_datetime(now).date() - timedelta(days=keep_days)
