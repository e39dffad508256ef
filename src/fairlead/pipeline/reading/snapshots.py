"""The tables of a lake as readers see them: those of the newest build, whole, and the present state
of the tables that other jobs write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyiceberg.io import FileIO

from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.models import ATTEMPTS, EVENTS, INCIDENTS, RUNS, TABLES
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import Build, Builds, last_export
from fairlead.pipeline.warehouse.data_files import TableFile
from fairlead.pipeline.warehouse.warehouse import Warehouse

MAKERS = {
    ATTEMPTS: "ingest",
    EVENTS: "ingest",
    INCIDENTS: "incidents",
    RUNS: "ingest",
}
"""Command of `fairlead pipeline` that writes a table; all others are made by `build`."""


class TableAt(NamedTuple):
    """A table at one of its snapshots."""

    snapshot: int
    written_at: int
    """Instant of the snapshot, in microseconds since the epoch."""
    exported_at: int
    """Instant of the newest commit up to it that was no compaction."""
    files: list[TableFile]
    """Files of the table, by partition."""
    io: FileIO
    """Access to the files, with the keys that the catalog has given for them."""


class Seen(NamedTuple):
    """The tables of a lake at one instant."""

    build: Build
    """Newest build; an empty one before the first."""
    tables: dict[Table, TableAt]
    """Tables that have been made."""


class Snapshots:
    """Finds the tables that readers see. Safe for several threads."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._builds = Builds(warehouse)
        self._known: dict[str, TableAt] = {}

    def read(self, tables: Iterable[Table] = TABLES, as_built: bool = False) -> Seen:
        """Return the present state of these tables, by one read of the metadata of each; lists of
        files are read again only for another snapshot. Raise BrokenLake for metadata that is
        missing or damaged, StoreUnavailable.

        as_built: return attempts and events as the newest build has read them, not as they are now.
        """
        wanted = list(tables)
        while True:
            build, _ = self._builds.newest()
            try:
                found = {table: self._at(table, build, as_built) for table in wanted}
            except BrokenLake:
                # Another build was published, and the snapshot of this one was expired.
                if self._builds.newest()[0].id == build.id:
                    raise
                continue
            return Seen(build, {table: at for table, at in found.items() if at is not None})

    def _at(self, table: Table, build: Build, as_built: bool) -> TableAt | None:
        """Return the table as readers of this build see it; None if it has not been made."""
        here = self._warehouse.table(table)
        state = here.state()
        snapshot = state.snapshot
        if table not in MAKERS:
            snapshot = build.snapshots.get(table.name, snapshot)
        elif as_built and build.id and table in (ATTEMPTS, EVENTS):
            snapshot = build.sources.get(table.name)
        if state.stored is None or snapshot is None:
            return None
        known = self._known.get(table.name)
        if known is not None and known.snapshot == snapshot:
            return known
        files = here.files(snapshot=snapshot, seen=state)
        written = state.stored.metadata.snapshot_by_id(snapshot)
        assert written is not None  # its files were listed
        exported_at = last_export(state.stored)
        found = TableAt(snapshot, written.timestamp_ms * 1000, exported_at, files, state.stored.io)
        self._known[table.name] = found
        return found
