"""One table of the lake in Iceberg: rows and cursors change in one commit, or not at all.

Each commit of ours makes a snapshot, also one that changes properties only. So the snapshot names
the whole state of the table, and a writer that has seen another snapshot is refused, also when
only a cursor or a tombstone has changed meanwhile. Properties survive the commits of other
engines; the summary of a snapshot does not.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
    ValidationException,
)
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, ManifestEntryStatus
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from sqlalchemy.exc import IntegrityError

from fairlead.pipeline.errors import RESTORE, RESTORE_FILE, BrokenLake
from fairlead.pipeline.partitions import HOUR_US
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse import data_files, sweeping
from fairlead.pipeline.warehouse.data_files import TableFile
from fairlead.pipeline.warehouse.failures import catalog_errors
from fairlead.pipeline.warehouse.layout import (
    DAY_US,
    NO_RETRIES,
    check_columns,
    part_name,
    properties_of,
    schema_of,
    spec_of,
)
from fairlead.pipeline.warehouse.location import NAMESPACE, Location, flat_name

_MANY = 60
"""Snapshots that are worth a commit that expires them."""

BRANCH = "build_"
"""Beginning of the name of a branch to which one build writes, or of a tag of what it reads."""

PUBLISHED = "published"
"""Tag of the snapshot that the newest build made, or that it read; no engine expires it."""

KNOWN_UNTIL = "fairlead.known"
"""Property of a snapshot of bronze: instant up to which it has the history, in microseconds.
Without it, this is the instant of the commit."""

IDENTITY = "fairlead.identity"
"""Property of the lake, and of each table, from which a lost catalog gets it again: identity of the
lake. Tombstones depend on it."""

_SWEPT = "fairlead.swept"
"""Property: instant of the last sweep that `tend` made, in microseconds."""

CURSOR, ERASED = "fairlead.cursor.", "fairlead.erased."

KEPT_FROM = "fairlead.kept.from"
"""Property of a bronze table: the first day whose rows are all kept, as 2026-11-21. Builds
make nothing of the days before it."""

_HOUSEKEEPING = {"fairlead.housekeeping": "true"}
"""Property of a snapshot that adds no rows, and after which no build has to compute any table
again."""

Moves = Mapping[str, str | None]
"""New positions by cursor; None removes the cursor."""


class TableState(NamedTuple):
    """State of a table at one snapshot."""

    snapshot: int | None
    """Id of the snapshot; None for a table without commits."""
    cursors: dict[str, str]
    erased: list[str]
    """Tombstones of erased keys, ascending."""
    properties: dict[str, str]
    stored: IcebergTable | None
    """Table of PyIceberg as it was read; None if it does not exist."""


class WarehouseTable:
    """Table of a lake."""

    def __init__(
        self, catalog: Catalog, location: Location, table: Table, identity: Callable[[], str]
    ) -> None:
        """identity: returns the identity of the lake, and creates the namespace."""
        self.table = table
        self._catalog = catalog
        self._location = location
        self._identity = identity
        self._name = (NAMESPACE, flat_name(table))

    def state(self) -> TableState:
        """Return the present state, by one read of the metadata. Raise StoreUnavailable."""
        stored = self._load()
        if stored is None:
            return TableState(None, {}, [], {}, None)
        properties = dict(stored.properties)
        return TableState(
            _main(stored.metadata),
            _named(properties, CURSOR),
            sorted(_named(properties, ERASED)),
            properties,
            stored,
        )

    # writing --------------------------------------------------------------------------------------

    def write(self, rows: pa.Table, name: str, seen: TableState | None = None) -> list[DataFile]:
        """Write the rows to files that no snapshot lists yet; their names begin with `name`.

        Write only after the state was read on which the commit will rest: `sweep` removes older
        files that no snapshot lists. Raise BrokenLake for stored columns that differ, and
        StoreUnavailable.
        """
        stored = self._create() if seen is None or seen.stored is None else seen.stored
        check_columns(self.table, stored.schema())
        with catalog_errors(self._location):
            return data_files.write(self.table, stored, rows, name)

    def append(
        self,
        written: Sequence[DataFile],
        moves: Moves,
        seen: TableState,
        known: int | None = None,
    ) -> bool:
        """Add files and move cursors in one commit.

        Return False, and change nothing, if another writer has changed the table since the state
        `seen`. A StoreUnavailable says nothing about the commit: read the state again.

        known: instant up to which the table then has the history, in microseconds; default: the
        instant of the commit.
        """
        summary = {} if known is None else {KNOWN_UNTIL: str(known)}
        change = self._replacement(None, written, summary)
        return self._commit(seen, change, {CURSOR + name: at for name, at in moves.items()})

    def add(self, rows: pa.Table, name: str) -> None:
        """Add rows in files whose names begin with `name`, and start again if another writer was
        first. Raise BrokenLake, StoreUnavailable."""
        while True:
            seen = self.state()
            written = self.write(rows, name, seen)
            if self.append(written, {}, seen):
                return
            self.take_away(written)

    def update(self, change: Callable[[TableState], Mapping[str, str | None] | None]) -> bool:
        """Change properties by the result of `change` (None removes one), and start again if
        another writer was first. Return False without a change if `change` returns None."""
        while True:
            seen = self.state()
            changes = change(seen)
            if changes is None:
                return False
            if self._commit(seen, _nothing, changes):
                return True

    def replace(
        self,
        parts: Collection[str],
        written: Sequence[DataFile],
        seen: TableState,
        properties: Mapping[str, str | None] = MappingProxyType({}),
        is_housekeeping: bool = False,
    ) -> bool:
        """Replace whole partitions by these files, and set properties, in one commit. Return False,
        and change nothing, if another writer has changed the table since the state `seen`. Raise
        BrokenLake for a file of another partition.

        is_housekeeping: whether builds need not take in the change.
        """
        names = set(parts)
        for each in written:
            if (part := part_name(self.table, each.partition[0])) not in names:
                raise BrokenLake(
                    f"{self.table.name}: rows lie outside the partitions to be replaced: {part}"
                )

        summary = _HOUSEKEEPING if is_housekeeping else {}
        change = self._replacement(lambda file: file.part in names, written, summary)
        return self._commit(seen, change, properties)

    def _replacement(
        self,
        is_gone: Callable[[TableFile], bool] | None,
        written: Sequence[DataFile],
        summary: dict[str, str],
    ) -> Callable[[Transaction, IcebergTable], None]:
        """Return a change that removes the files that meet a condition (None: no file), and adds
        others."""

        def change(transaction: Transaction, stored: IcebergTable) -> None:
            snapshot = stored.current_snapshot()
            gone = (
                []
                if is_gone is None or snapshot is None
                else [
                    entry.data_file
                    for entry in data_files.entries(snapshot, stored.io)
                    if is_gone(data_files.facts_of(self.table, stored, entry.data_file))
                ]
            )
            update = transaction.update_snapshot(summary)
            with update.overwrite() if gone else update.merge_append() as files:
                for file in gone:
                    files.delete_data_file(file)
                for each in written:
                    files.append_data_file(each)

        return change

    def rewrite(
        self,
        parts: Collection[str],
        change: Callable[[pa.Table], pa.Table | None],
        name: str,
        tries: int | None = None,
        is_housekeeping: bool = False,
    ) -> bool:
        """Replace the rows of these partitions by those that `change` returns (None: leave them).
        Start again if another writer was first; return False after so many `tries` (None: any
        number). Raise BrokenLake, also for files with fewer rows than listed, and
        StoreUnavailable."""
        for _ in count() if tries is None else range(tries):
            seen = self.state()
            found = self.load(parts, snapshot=seen.snapshot)
            rows = change(found)
            if rows is None:
                return True
            listed = sum(file.rows for file in self.files(parts, seen=seen))
            if found.num_rows != listed:
                raise BrokenLake(
                    f"{self.table.name}: {', '.join(parts)}: {listed:,} rows are listed, and the"
                    f" files have {found.num_rows:,}; {RESTORE_FILE}"
                )
            written = self.write(rows, name, seen)
            if self.replace(parts, written, seen, is_housekeeping=is_housekeeping):
                return True
            self.take_away(written)
        return False

    def drop_damaged(self) -> int:
        """Remove the missing and damaged files of the present snapshot from the table; return the
        number of their rows, which are lost. Raise BrokenLake, StoreUnavailable."""
        while True:
            seen = self.state()
            bad = [file for file in self.files(seen=seen) if self._is_damaged(seen, file)]
            change = self._replacement(bad.__contains__, [], {})
            if not bad or self._commit(seen, change, {}):
                return sum(file.rows for file in bad)

    def _is_damaged(self, seen: TableState, file: TableFile) -> bool:
        assert seen.stored is not None
        try:
            return data_files.rows_in(self.table, seen.stored.io, file) != file.rows
        except BrokenLake:
            return True

    def take_away(self, written: Iterable[DataFile]) -> None:
        """Remove files of a refused commit. Remove them at once, because they may contain rows of
        a key that was erased meanwhile."""
        stored = self._load()
        if stored is not None:
            for each in written:
                sweeping.remove(stored.io, each.file_path)

    # reading --------------------------------------------------------------------------------------

    def files(
        self,
        parts: Collection[str] | None = None,
        snapshot: int | None = None,
        seen: TableState | None = None,
        since: str = "",
    ) -> list[TableFile]:
        """Return the files of these partitions (default: all), from the partition `since` on, in a
        snapshot (default: the present one), with the metadata of `seen` if it is given. Raise
        BrokenLake if the snapshot is gone."""
        stored = self._load() if seen is None else seen.stored
        if stored is None:
            return []
        wanted = (
            stored.current_snapshot()
            if snapshot is None
            else stored.metadata.snapshot_by_id(snapshot)
        )
        if wanted is None:
            if snapshot is None:
                return []
            raise BrokenLake(f"{self.table.name} has no snapshot {snapshot} any more")
        holds = data_files.holding(self.table, parts, since)
        found = [
            data_files.facts_of(self.table, stored, entry.data_file)
            for entry in data_files.entries(wanted, stored.io, holds)
        ]
        kept = [
            file for file in found if since <= file.part and (parts is None or file.part in parts)
        ]
        return sorted(kept, key=lambda file: (file.part, file.path))

    def load(
        self,
        parts: Collection[str] | None = None,
        columns: list[str] | None = None,
        where: ds.Expression | None = None,
        snapshot: int | None = None,
    ) -> pa.Table:
        """Return the rows that meet a condition, in memory; compare the checksums of their pages.
        Raise BrokenLake for a missing or damaged file, or a missing snapshot."""
        schema = self.table.arrow()
        schema = pa.schema([field.with_nullable(True) for field in schema])
        wanted = columns or schema.names
        seen = self.state()
        files = self.files(parts, snapshot, seen)
        if seen.stored is None or not files:
            return pa.schema([schema.field(name) for name in wanted]).empty_table()
        io = seen.stored.io
        assert isinstance(io, PyArrowFileIO)
        scheme, netloc, _ = io.parse_location(files[0].path)
        paths = [io.parse_location(file.path)[2] for file in files]
        scan = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        parquet = ds.ParquetFileFormat(default_fragment_scan_options=scan)
        with catalog_errors(self._location), data_files.file_errors(self.table):
            rows = ds.dataset(
                paths, schema=schema, format=parquet, filesystem=io.fs_by_scheme(scheme, netloc)
            )
            return rows.to_table(columns=wanted, filter=where)

    def changed(self, since: int, until: int | None = None) -> set[str] | None:
        """Return the partitions whose files differ between the snapshots `since` and `until`
        (default: the present one), or None if `since` is gone. Forgotten days are left out.
        Housekeeping, such as a compaction, changes no partition while the snapshots in between
        exist."""
        seen = self.state()
        stored = seen.stored
        if stored is None or stored.metadata.snapshot_by_id(since) is None:
            return None
        between = _between(stored.metadata, since, until)
        if between is not None:
            found = {
                data_files.facts_of(self.table, stored, entry.data_file).part
                for snapshot in between
                if not made_by_housekeeping(snapshot)
                for manifest in data_files.lists_of(snapshot, stored.io)
                if manifest.added_snapshot_id == snapshot.snapshot_id
                for entry in data_files.entries_of(manifest, stored.io, discard_deleted=False)
                if entry.status != ManifestEntryStatus.EXISTING
                and entry.snapshot_id == snapshot.snapshot_id
            }
        else:
            old, new = (
                {file.path: file.part for file in self.files(None, snapshot, seen)}
                for snapshot in (since, until)
            )
            found = {(old | new)[path] for path in old.keys() ^ new.keys()}
        first = seen.properties.get(KEPT_FROM, "")
        return {part for part in found if part >= first}

    # housekeeping ---------------------------------------------------------------------------------

    def expire_unneeded(self, now: int, at_least: int = 1) -> int:
        """Forget the snapshots that nobody needs, if they are `at_least` so many; return their
        number.

        A reader needs the list of files of its snapshot for a moment, and an hour is ample; a build
        tags what it reads. Replaced files stay listed for a day. The next plan needs the snapshots
        since the last build, to leave out compactions; they stay for a day too.
        """
        stored = self._load()
        built = None if stored is None else stored.metadata.snapshot_by_name(PUBLISHED)
        read = now if built is None else built.timestamp_ms * 1000
        before = min(now - HOUR_US, max(read, now - DAY_US))
        return self.expire(before, now - DAY_US, at_least)

    def expire(self, before: int, replaced_before: int | None = None, at_least: int = 1) -> int:
        """Forget snapshots made before this instant (microseconds) that no branch and no tag has,
        if they are `at_least` so many; return their number. Their files stay until `sweep`.

        replaced_before: instant of the replacement of their files; default: the same.
        """
        replaced = before if replaced_before is None else replaced_before
        while (stored := self._load()) is not None:
            ids = sweeping.expired(stored.metadata, before // 1000, replaced // 1000)
            if len(ids) < at_least:
                return 0
            for url in sweeping.superseded(stored):
                sweeping.remove(stored.io, url)
            # Another writer may be first, or expire the same snapshots.
            with catalog_errors(self._location), suppress(CommitFailedException, ValueError):
                stored.maintenance.expire_snapshots().by_ids(ids).commit()
                return len(ids)
        return 0

    def drop_branches(self, before: int | None) -> None:
        """Remove the branches and tags of builds that began before this instant (microseconds) and
        never ended; with None, all that are not at the present snapshot."""
        while (stored := self._load()) is not None:
            present = _main(stored.metadata)
            dead = [
                name
                for name, ref in stored.metadata.refs.items()
                if (ref.snapshot_id != present if before is None else 0 < began_at(name) < before)
            ]
            if not dead:
                return
            with (
                catalog_errors(self._location),
                suppress(CommitFailedException),
                stored.manage_snapshots() as manage,
            ):
                for name in dead:
                    manage.remove_branch(name)  # or a tag

    def sweep(self, before: int) -> int:
        """Remove files that no snapshot lists and that were written before this instant
        (microseconds); return their number.

        Other engines write files and commit them later, so leave them a day. Writers of ours need
        no such time: the sweep makes a snapshot first, which refuses each of them that has begun
        earlier.
        """
        stored = self._load()
        if stored is None:
            return 0
        with catalog_errors(self._location):
            found = sweeping.unreachable(stored, before)
            if not found:
                return 0
            self._mark_swept({})
            stored = self._load()
            assert stored is not None
            listed = sweeping.reachable(stored)
            gone = sorted(url for url in found if sweeping.path_of(url) not in listed)
            return sum(sweeping.remove(stored.io, url) for url in gone)

    def tend(self, now: int) -> None:
        """Expire snapshots whenever 60 of them can be expired: hourly, with a commit a minute.
        Once a day, remove files that no snapshot has listed for a day."""
        if not self.expire_unneeded(now, _MANY):
            return
        seen, old = self.state(), now - DAY_US
        if int(seen.properties.get(_SWEPT, 0)) <= old:
            self.sweep(old)
            self._mark_swept({_SWEPT: str(now)})

    def _mark_swept(self, properties: Mapping[str, str]) -> None:
        """Make a snapshot without a change of rows."""
        while not self._commit(self.state(), _nothing, properties):
            pass

    # one commit -----------------------------------------------------------------------------------

    def _commit(
        self,
        seen: TableState,
        change: Callable[[Transaction, IcebergTable], None],
        properties: Mapping[str, str | None],
    ) -> bool:
        """Commit a change with properties. Return False if the table has changed since `seen`, also
        if a sweep has removed what `seen` names. Raise BrokenLake for a missing list of files."""
        stored = seen.stored
        if stored is None:
            stored = self._create()
            if _main(stored.metadata) is not None:
                return False
        # Another engine may have changed the property. A commit changes its object, and `seen` may
        # be used again.
        properties_now = {**stored.properties, **NO_RETRIES}
        metadata = stored.metadata.model_copy(update={"properties": properties_now})
        transaction = Transaction(
            IcebergTable(self._name, metadata, stored.metadata_location, stored.io, self._catalog)
        )
        with catalog_errors(self._location):
            try:
                with data_files.list_errors(self.table.name):
                    change(transaction, stored)
                    news = {name: value for name, value in properties.items() if value is not None}
                    gone = (properties.keys() - news.keys()) & stored.properties.keys()
                    if news:
                        transaction.set_properties(news)
                    if gone:
                        transaction.remove_properties(*sorted(gone))
                    transaction.commit_transaction()
            except (CommitFailedException, ValidationException):
                return False
            except BrokenLake:  # also a list of files that `seen` names
                if self.state().snapshot != seen.snapshot:
                    return False
                raise
        return True

    def _load(self, tries: int = 2) -> IcebergTable | None:
        try:
            with catalog_errors(self._location):
                stored = self._catalog.load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except FileNotFoundError as error:
            # The metadata is lost, or was superseded ten times between two reads.
            if tries > 1:
                return self._load(tries - 1)
            raise BrokenLake(
                f"{self.table.name}: the metadata that its catalog names is missing: {error};"
                f" {RESTORE}"
            ) from None
        except (ValidationError, ValueError) as error:
            raise BrokenLake(f"{self.table.name}: its metadata is damaged; {RESTORE}") from error
        self._refuse_copy(stored)
        return stored

    def _refuse_copy(self, stored: IcebergTable) -> None:
        """Raise BrokenLake if the files of the table are in another lake, of which this one is a
        copy: both would write there, and remove files of each other."""
        old, new = stored.location(), self._location.url_of(self.table)
        if not sweeping.is_same_folder(old, new):
            raise BrokenLake(
                f"{self.table.name}: the lake at {self._location.shown} was moved or copied, and"
                f" its files name {sweeping.path_of(old)}; run `fairlead pipeline restore` while"
                " nobody writes to it"
            )

    def _create(self) -> IcebergTable:
        """Return the table, created if missing."""
        if (found := self._load()) is not None:
            return found
        properties = properties_of(self.table) | {IDENTITY: self._identity()}
        url = self._location.url_of(self.table)
        if (
            sweeping.has_history(load_file_io(self._catalog.properties, url), url)
            and self._load() is None
        ):
            raise BrokenLake(f"{self.table.name}: its catalog has lost it; {RESTORE}")
        schema = schema_of(self.table)
        with catalog_errors(self._location):
            try:
                return self._catalog.create_table(
                    self._name,
                    schema,
                    url,
                    spec_of(self.table, schema),
                    properties=properties,
                )
            except (TableAlreadyExistsError, IntegrityError):
                return self._catalog.load_table(self._name)


def branch_name(now: int) -> str:
    """Return a new name for the branches of a build that begins now, in microseconds."""
    return f"{BRANCH}{now}_{uuid.uuid4().hex[:8]}"


def began_at(name: str) -> int:
    """Return the instant at which the build with this branch began; 0 for another name."""
    if not name.startswith(BRANCH):
        return 0
    digits = name.removeprefix(BRANCH).partition("_")[0]
    return int(digits) if digits.isdecimal() else 0


def made_by_housekeeping(snapshot: Snapshot) -> bool:
    """Return whether housekeeping made a snapshot, also a compaction in another engine."""
    if snapshot.summary is None:
        return False
    is_ours = snapshot.summary.get(next(iter(_HOUSEKEEPING))) is not None
    return is_ours or snapshot.summary.operation == Operation.REPLACE


def _nothing(transaction: Transaction, stored: IcebergTable) -> None:
    """Change no rows."""
    with transaction.update_snapshot(_HOUSEKEEPING).merge_append():
        pass


def _main(metadata: TableMetadata) -> int | None:
    snapshot = metadata.current_snapshot()
    return None if snapshot is None else snapshot.snapshot_id


def _named(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        name.removeprefix(prefix): value
        for name, value in properties.items()
        if name.startswith(prefix)
    }


def _between(metadata: TableMetadata, since: int, until: int | None) -> list[Snapshot] | None:
    """Return the snapshots after `since` up to `until`, by default the present one; None if one of
    them is gone."""
    found = []
    snapshot = metadata.current_snapshot() if until is None else metadata.snapshot_by_id(until)
    while snapshot is not None and snapshot.snapshot_id != since:
        found.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)
    return None if snapshot is None else found
