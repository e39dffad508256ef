"""Published builds: the snapshot of each table that readers see, so that they see one build, whole.

One commit to the table `ops.builds` publishes all tables of a build: rows for people, and a
property with the newest build for readers. Then `main` and the tag `published` of each table move
to the build, for engines that do not know builds; `finish` completes that after a crash.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update.snapshot import ManageSnapshots

from fairlead.clock import to_datetime
from fairlead.model.reading import json_reader
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.schema import Table, columns_in
from fairlead.pipeline.warehouse.data_files import entries, facts_of, holding
from fairlead.pipeline.warehouse.failures import catalog_errors
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.location import NAMESPACE
from fairlead.pipeline.warehouse.table import KNOWN_UNTIL, PUBLISHED, made_by_housekeeping

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table import Transaction

    from fairlead.pipeline.warehouse.table import TableState
    from fairlead.pipeline.warehouse.warehouse import Warehouse

BUILDS = Table(
    "ops.builds",
    "the snapshot of a table that readers of a build see",
    key=("build_id", "table"),
    instant="published_at",
    by="date",
    columns=columns_in(
        """
        build_id     string    random id of the build
        published_at timestamp time at which the build was published
        table        string    name of the table
        snapshot_id  bigint    snapshot of the table in its Iceberg metadata
        """,
    ),
)

_NEWEST = "newest"
_ATTEMPTS = 20
"""Commits to a table that are tried when other writers are first."""


class Build(msgspec.Struct, frozen=True):
    """One published build."""

    id: str = ""
    snapshots: dict[str, int] = {}
    """Snapshot of each built table, by the table's name."""
    sources: dict[str, int] = {}
    """Snapshot of each bronze table from which the build was made."""
    again: list[str] = []
    """Hours that the next build makes again although bronze has not changed since these
    snapshots."""
    settings: str = ""
    """Digest of the settings that change the tables."""
    until: int = 0
    """Instant up to which the store's history was exported, in microseconds since the epoch."""
    branch: str = ""
    """Name of the branches that led to the snapshots, and of the tags of what the build read."""

    def after(self, snapshots: dict[str, int], branch: str = "") -> Build:
        """Return a build with a new id, these snapshots, which are on this branch, and otherwise
        those of this build."""
        return msgspec.structs.replace(
            self, id=uuid.uuid4().hex, snapshots={**self.snapshots, **snapshots}, branch=branch
        )


_decode = json_reader(Build)


class Builds:
    """The builds of a lake."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._table = warehouse.table(BUILDS)

    def newest(self) -> tuple[Build, TableState]:
        """Return the newest build, an empty one before the first, and the state with which
        `publish` detects another publication. Raise BrokenLake, StoreUnavailable."""
        state = self._table.state()
        text = state.cursors.get(_NEWEST)
        if text is None:
            return Build(), state
        try:
            return _decode(text.encode()), state
        except ValueError as error:
            raise BrokenLake(f"{BUILDS.name}: the newest build cannot be read: {error}") from error

    def publish(self, build: Build, seen: TableState, now: int) -> bool:
        """Publish a build in one commit; return False and change nothing if another process has
        published since `seen`.

        now: microseconds since the epoch.
        """
        rows = [
            {
                "build_id": build.id,
                "published_at": to_datetime(now),
                "table": name,
                "snapshot_id": snapshot,
            }
            for name, snapshot in sorted({**build.sources, **build.snapshots}.items())
        ]
        written = self._table.write(pa.Table.from_pylist(rows, BUILDS.arrow()), build.id, seen)
        text = msgspec.json.encode(build).decode()
        if self._table.append(written, {_NEWEST: text}, seen):
            return True
        self._table.take_away(written)
        return False

    def head(self, table: Table, branch: str, base: int | None) -> tuple[int, int]:
        """Return the newest snapshot of a branch, and the number of rows that it added.

        base: snapshot at which the branch began; None for the beginning of the table. Raise
        BrokenLake for a branch that was removed and begun anew, which lacks the rows of the base.
        """
        stored = self._load(table.name)
        snapshot = _at_branch(table, stored, branch)
        if base is not None and not _holds(stored, branch, base):
            raise _removed(table)
        assert snapshot.summary is not None
        return snapshot.snapshot_id, int(snapshot.summary.get("added-records") or 0)

    def hold(self, table: Table, snapshot: int, name: str) -> None:
        """Keep a snapshot by a tag with this name, which begins with BRANCH. Raise BrokenLake when
        the snapshot is gone."""

        def change(transaction: Transaction, stored: IcebergTable) -> None:
            if stored.metadata.snapshot_by_id(snapshot) is None:
                raise BrokenLake(f"{table.name} has changed; run the command again")
            with ManageSnapshots(transaction) as manage:
                manage.create_tag(snapshot, name)

        self._change(table.name, change)

    def branch(self, table: Table, snapshot: int, name: str) -> None:
        """Create a branch of the table at a snapshot. Raise BrokenLake."""

        def change(transaction: Transaction, stored: IcebergTable) -> None:
            # Iceberg removes an unpublished branch when snapshots expire after a day.
            with ManageSnapshots(transaction) as manage:
                manage.create_branch(snapshot, name, max_ref_age_ms=DAY_US // 1000)

        self._change(table.name, change)

    def clear(self, table: Table, parts: Collection[str] | None, branch: str) -> None:
        """Remove the rows of these partitions (None: all) from a branch. Raise BrokenLake."""

        def change(transaction: Transaction, stored: IcebergTable) -> None:
            snapshot = _at_branch(table, stored, branch)
            with transaction.update_snapshot(branch=branch).overwrite() as files:
                for entry in entries(snapshot, stored.io, holding(table, parts)):
                    part = facts_of(table, stored, entry.data_file).part
                    if parts is None or part in parts:
                        files.delete_data_file(entry.data_file)

        self._change(table.name, change)

    def _load(self, name: str) -> IcebergTable:
        with catalog_errors(self._warehouse.location):
            return self._warehouse.catalog.load_table((NAMESPACE, name.replace(".", "_")))

    def _change(self, name: str, change: Callable[[Transaction, IcebergTable], None]) -> None:
        for _ in range(_ATTEMPTS):
            stored = self._load(name)
            with catalog_errors(self._warehouse.location), suppress(CommitFailedException):
                with stored.transaction() as transaction:
                    change(transaction, stored)
                return
        raise BrokenLake(f"{name} is changed by other processes all the time; try again later")

    def without_lost(self, build: Build) -> Build:
        """Return the build without the tables whose snapshot is gone."""
        kept = dict[str, int]()
        for name, at in build.snapshots.items():
            with suppress(NoSuchTableError):
                if self._load(name).metadata.snapshot_by_id(at) is not None:
                    kept[name] = at
        return msgspec.structs.replace(build, snapshots=kept)

    def finish(self, build: Build) -> None:
        """Move `main` and the tag of each table to the build, where that is not done yet, and the
        tag of each bronze table, so that the next build finds what has changed. Remove the branches
        of the build, and no other ones, because a build that still runs may begin at the same
        snapshot. Raise BrokenLake when a snapshot of a built table is gone."""
        for name, snapshot in sorted(build.snapshots.items()):
            if not self._finish(name, snapshot, build.branch, moves_main=True):
                raise BrokenLake(
                    f"{name}: the snapshot {snapshot} of the newest build is gone; run"
                    " `fairlead pipeline build --full`"
                )
        for name, snapshot in sorted(build.sources.items()):
            self._finish(name, snapshot, build.branch, moves_main=False)

    def _finish(self, name: str, snapshot: int, branch: str, moves_main: bool) -> bool:
        """Return False if the snapshot is gone."""
        is_there = True

        def change(transaction: Transaction, stored: IcebergTable) -> None:
            nonlocal is_there
            is_there = stored.metadata.snapshot_by_id(snapshot) is not None
            with ManageSnapshots(transaction) as manage:
                if is_there and moves_main and not _holds(stored, "main", snapshot):
                    manage.set_current_snapshot(snapshot)
                if is_there and not _holds(stored, PUBLISHED, snapshot):
                    manage.create_tag(snapshot, PUBLISHED)
                if is_there and branch in stored.metadata.refs:
                    manage.remove_branch(branch)  # or a tag

        with suppress(NoSuchTableError):
            self._change(name, change)
            return is_there
        return False


def last_export(stored: IcebergTable) -> int:
    """Return the instant up to which a bronze table has the history, in microseconds: the one that
    the newest snapshot of an exporter notes, else that of its commit."""
    for snapshot in ancestors_of(stored.current_snapshot(), stored.metadata):
        if not made_by_housekeeping(snapshot):
            noted = None if snapshot.summary is None else snapshot.summary.get(KNOWN_UNTIL)
            return snapshot.timestamp_ms * 1000 if noted is None else int(noted)
    return 0


def _at_branch(table: Table, stored: IcebergTable, branch: str) -> Snapshot:
    snapshot = stored.metadata.snapshot_by_name(branch)
    if snapshot is None:
        raise _removed(table)
    return snapshot


def _removed(table: Table) -> BrokenLake:
    return BrokenLake(
        f"{table.name}: another process has removed the branch of this build; run the command again"
    )


def _holds(table: IcebergTable, ref: str, snapshot: int) -> bool:
    """Whether a branch or a tag is at the snapshot, or at one made from it, as by a compaction in
    another engine or by a later build."""
    start = table.metadata.snapshot_by_name(ref)
    return any(each.snapshot_id == snapshot for each in ancestors_of(start, table.metadata))
