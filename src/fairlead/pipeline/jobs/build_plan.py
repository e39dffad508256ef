"""The plan of a build: the partitions of bronze that changed since the snapshots of the last
build."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fairlead.pipeline import partitions as p
from fairlead.pipeline.models import ATTEMPTS, EVENTS
from fairlead.pipeline.warehouse.builds import Build, last_export
from fairlead.pipeline.warehouse.data_files import TableFile
from fairlead.pipeline.warehouse_tables import WarehouseTables


class BuildPlan(msgspec.Struct, frozen=True):
    """Work of a build: everything if `full`, else what the changed partitions of bronze affect."""

    full: bool
    files: list[TableFile]
    """Files of the changed partitions of bronze.attempts; all files if `full`."""
    changed_attempts: frozenset[str]
    changed_events: frozenset[str]
    again: frozenset[str]
    """Hours to build again although bronze did not change."""
    since: int
    """Instant up to which the last build knew the history, in microseconds since the epoch; 0 if
    there was none, or if the time since then is no matter of this build."""
    until: int
    """Instant up to which the store's history was exported."""
    first_day: str
    """First day that may be built, because bronze has deleted the days before it; empty for
    all days."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to build."""
        return not (self.full or self.changed_attempts or self.changed_events or self.again)

    @property
    def rows(self) -> int:
        """Return the number of rows of the changed partitions of bronze.attempts."""
        return sum(file.rows for file in self.files)

    def first(self, *instants: str) -> int | None:
        """Return the least of these instants of the attempts, in microseconds; None without any."""
        found = [
            file.span[name][0] for file in self.files for name in instants if name in file.span
        ]
        return min(found, default=None)


def plan(tables: WarehouseTables, settings: str, full: bool) -> BuildPlan:
    """Return the plan of the next build. A snapshot or a partition that is gone and other
    settings need a full build, which is a build of all kept days if bronze has deleted
    days. Raise BrokenLake, StoreUnavailable.

    settings: digest of the settings that change the tables.
    """
    before = tables.before
    full = full or before.settings != settings
    attempts, events = (set() if full else tables.changed(table) for table in (ATTEMPTS, EVENTS))
    if attempts is None or events is None:
        full, attempts, events = True, set(), set()
    files = tables.files(ATTEMPTS, None if full else attempts)
    gone = not full and attempts - {file.part for file in files}
    if gone or (events and events - {file.part for file in tables.files(EVENTS, events)}):
        full, files = True, tables.files(ATTEMPTS)
    if full and tables.kept_from:
        first = tables.kept_from
        hours = set(p.hours_between(p.micros_of(first), known_until(tables)))
        # A wrong clock makes partitions centuries ahead, and no hour before them has rows.
        hours |= {file.part for file in (*files, *tables.files(EVENTS)) if file.part >= first}
        return plan_again(tables, hours)
    again = {hour for hour in before.again if hour >= tables.kept_from}
    if full:
        attempts, again = {file.part for file in files}, set()
        events = {file.part for file in tables.files(EVENTS)}
    elif again:
        files = tables.files(ATTEMPTS, attempts | again)
        attempts = {file.part for file in files}
        events |= {file.part for file in tables.files(EVENTS, again)}
    return BuildPlan(
        full=full,
        files=files,
        changed_attempts=frozenset(attempts),
        changed_events=frozenset(events),
        again=frozenset(again),
        since=before.until,
        until=known_until(tables),
        first_day=tables.kept_from,
    )


def plan_again(tables: WarehouseTables, hours: Iterable[str]) -> BuildPlan:
    """Return the plan of a build of these hours, changed or not, as far as bronze has them."""
    again = frozenset(hour for hour in hours if hour >= tables.kept_from)
    files = tables.files(ATTEMPTS, again)
    return BuildPlan(
        full=False,
        files=files,
        changed_attempts=frozenset(file.part for file in files),
        changed_events=frozenset(file.part for file in tables.files(EVENTS, again)),
        again=again,
        since=0,
        until=known_until(tables),
        first_day=tables.kept_from,
    )


def facts(tables: WarehouseTables, plan: BuildPlan, settings: str) -> Build:
    """Return what the next plan needs to know about a build that followed this plan."""
    read = {table.name: tables.snapshot(table) for table in (ATTEMPTS, EVENTS)}
    sources = {name: snapshot for name, snapshot in read.items() if snapshot is not None}
    return Build(sources=sources, settings=settings, until=plan.until)


def known_until(tables: WarehouseTables) -> int:
    """Return the instant up to which the store's history was exported, in microseconds."""
    found = [tables.source(table).stored for table in (ATTEMPTS, EVENTS)]
    return max((last_export(stored) for stored in found if stored is not None), default=0)
