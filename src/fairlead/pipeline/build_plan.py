"""The plan of a build: the partitions of bronze that changed since the snapshots of the last
build. A job sees the snapshots that were there when it began, whatever others commit meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from fairlead.pipeline import parts as p
from fairlead.pipeline.models import ATTEMPTS, EVENTS
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import Build, Builds, last_export
from fairlead.pipeline.warehouse.data_files import TableFile
from fairlead.pipeline.warehouse.table import FORGOTTEN_BEFORE, TableState
from fairlead.pipeline.warehouse.warehouse import Warehouse


class Snapshots:
    """The newest build, and the tables that no build makes, as one job sees them."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Raise BrokenLake, StoreUnavailable."""
        self.warehouse = warehouse
        self._builds = Builds(warehouse)
        self.before, self._seen = self._builds.newest()
        """Newest build when the job began."""
        self._sources: dict[str, TableState] = {}
        self._staged: dict[str, int] = {}
        """Snapshots of this job by table."""

    def source(self, table: Table) -> TableState:
        """Return the state of a table that no build has made, as this job sees it."""
        if table.name not in self._sources:
            self._sources[table.name] = self.warehouse.table(table).state()
        return self._sources[table.name]

    @property
    def forgotten_before(self) -> str:
        """First day of which no row of bronze was forgotten, as 2026-11-21; empty if none was."""
        return max(
            self.source(table).properties.get(FORGOTTEN_BEFORE, "") for table in (ATTEMPTS, EVENTS)
        )

    def snapshot(self, table: Table) -> int | None:
        """Return the snapshot that this job reads; None for a table without one."""
        found = self._staged.get(table.name, self.before.snapshots.get(table.name))
        return self.source(table).snapshot if found is None else found

    def parts(self, table: Table) -> list[str]:
        """Return the partitions with rows."""
        return sorted({file.part for file in self.files(table) if file.rows})

    def files(
        self, table: Table, parts: Collection[str] | None = None, since: str = ""
    ) -> list[TableFile]:
        """Return the files of these partitions, all by default, from the partition `since` on, that
        this job reads."""
        snapshot = self.snapshot(table)
        if snapshot is None:
            return []
        return self.warehouse.table(table).files(parts, snapshot, since=since)

    def changed(self, table: Table) -> set[str] | None:
        """Return the partitions of a bronze table that changed since the newest build; None if the
        snapshot of that build is gone."""
        since = self.before.sources.get(table.name)
        if since is None:
            return {file.part for file in self.files(table)}
        if since == self.snapshot(table):
            return set()
        return self.warehouse.table(table).changed(since, self.snapshot(table))


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
    """First day that may be built, because bronze has forgotten the days before it; empty for
    all days."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to build."""
        return not (self.full or self.changed_attempts or self.changed_events or self.again)

    @property
    def rows(self) -> int:
        """Return the number of rows of the changed partitions of bronze.attempts."""
        return sum(file.rows for file in self.files)

    @property
    def largest(self) -> int:
        """Return the number of rows of the largest of these partitions."""
        rows: Counter[str] = Counter()
        for file in self.files:
            rows[file.part] += file.rows
        return max(rows.values(), default=0)

    def first(self, *instants: str) -> int | None:
        """Return the least of these instants of the attempts, in microseconds; None without any."""
        found = [
            file.span[name][0] for file in self.files for name in instants if name in file.span
        ]
        return min(found, default=None)


def plan(tables: Snapshots, settings: str, full: bool) -> BuildPlan:
    """Return the plan of the next build. A snapshot or a partition that is gone and other
    settings need a full build, which is a build of all kept days if bronze has forgotten
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
    if full and tables.forgotten_before:
        first = tables.forgotten_before
        hours = set(p.hours_between(p.micros_of(first), known_until(tables)))
        # A wrong clock makes partitions centuries ahead, and no hour before them has rows.
        hours |= {file.part for file in (*files, *tables.files(EVENTS)) if file.part >= first}
        return plan_again(tables, hours)
    again = {hour for hour in before.again if hour >= tables.forgotten_before}
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
        first_day=tables.forgotten_before,
    )


def plan_again(tables: Snapshots, hours: Iterable[str]) -> BuildPlan:
    """Return the plan of a build of these hours, changed or not, as far as bronze has them."""
    again = frozenset(hour for hour in hours if hour >= tables.forgotten_before)
    files = tables.files(ATTEMPTS, again)
    return BuildPlan(
        full=False,
        files=files,
        changed_attempts=frozenset(file.part for file in files),
        changed_events=frozenset(file.part for file in tables.files(EVENTS, again)),
        again=again,
        since=0,
        until=known_until(tables),
        first_day=tables.forgotten_before,
    )


def facts(tables: Snapshots, plan: BuildPlan, settings: str) -> Build:
    """Return what the next plan needs to know about a build that followed this plan."""
    read = {table.name: tables.snapshot(table) for table in (ATTEMPTS, EVENTS)}
    sources = {name: snapshot for name, snapshot in read.items() if snapshot is not None}
    return Build(sources=sources, settings=settings, until=plan.until)


def known_until(tables: Snapshots) -> int:
    """Return the instant up to which the store's history was exported, in microseconds."""
    found = [tables.source(table).stored for table in (ATTEMPTS, EVENTS)]
    return max((last_export(stored) for stored in found if stored is not None), default=0)
