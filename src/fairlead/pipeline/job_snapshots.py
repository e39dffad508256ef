"""Snapshots of all tables as one job sees them: those that were there when the job began, whatever
others commit meanwhile."""

from __future__ import annotations

from collections.abc import Collection

from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import Builds
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
