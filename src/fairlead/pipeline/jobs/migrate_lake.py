"""`migrate-lake`: moves a lake of 0.1 into Iceberg tables, each row once. The job can be run again
after a crash.

A lake of 0.1 has folders of Parquet files, each listed by the newest manifest of its table. One
commit to each new table adds all rows of the old one, takes over its cursors and tombstones, so
that an exporter into the new lake continues where the old one ended, and sets the cursor
`migration` to the number of the manifest. Silver and gold are built again from bronze.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from fairlead.errors import ConfigurationError
from fairlead.model.reading import json_reader
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.definitions.capacity import CAPACITY
from fairlead.pipeline.definitions.incidents import INCIDENTS
from fairlead.pipeline.definitions.replays import REPLAY_WAITS, REPLAYS
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.ledger import LEDGER
from fairlead.pipeline.runs import RUNS, OnRows
from fairlead.pipeline.schema import SCHEMA_VERSION, Table
from fairlead.pipeline.warehouse.data_files import Written
from fairlead.pipeline.warehouse.layout import part_name
from fairlead.pipeline.warehouse.table import CURSOR, ERASED, TableState
from fairlead.pipeline.warehouse.warehouse import Warehouse

ROWS = 500_000
"""Rows of one file, about."""

MOVED = (ATTEMPTS, EVENTS, INCIDENTS, CAPACITY, REPLAYS, REPLAY_WAITS, RUNS)
"""Tables that no build makes."""

_MIGRATION = "migration"


class OldPart(msgspec.Struct, frozen=True):
    """One partition of a table."""

    files: list[str]
    """Paths below the table's folder."""
    rows: int


class OldManifest(msgspec.Struct, frozen=True):
    """Newest manifest of a table."""

    number: int = 0
    schema_version: int = SCHEMA_VERSION
    parts: dict[str, OldPart] = {}
    cursors: dict[str, str] = {}
    erased: list[str] = []
    """Tombstones of erased keys."""
    ledger: list[str] = []
    """Files of erased attempts that `reconcile` still counts."""

    @property
    def files(self) -> list[str]:
        """Files of all partitions."""
        return [file for name in sorted(self.parts) for file in self.parts[name].files]


class Migrated(msgspec.Struct, frozen=True):
    """Result of the job."""

    identity: str
    """Identity of both lakes, by which stores know them."""
    rows: dict[str, int]
    """Number of rows of the old lake, by table."""
    ledger: int
    """Number of files of erased attempts that `reconcile` still counts."""


_decode = json_reader(OldManifest)


def migrate_lake(
    old: Path,
    lake: Warehouse,
    on_rows: OnRows = lambda table, rows: None,
    rows: int = ROWS,
) -> Migrated:
    """Move the lake in the folder `old`, which no exporter may change meanwhile, into a new one.

    Raise ConfigurationError if `old` has no lake of 0.1, if the new lake has rows of its own, if
    both lie in one folder, or if the old one has changed since the job began; BrokenLake,
    StoreUnavailable.

    rows: number of rows of one file, about.
    """
    require_lake(old)
    new = lake.location.folder
    if new is not None and (old.resolve() in (new.resolve(), *new.resolve().parents)):
        raise ConfigurationError(
            f"lake {new} lies in the old one; give another folder with --lake, because old and new"
            " files do not mix"
        )
    identity = (old / "_lake").read_text()
    lake.take_identity(identity)
    if (old / "_hashed").exists():
        lake.keep_hash_proof((old / "_hashed").read_text())
    manifests = {table: manifest_of(old, table) for table in MOVED}
    erased = manifests[ATTEMPTS].ledger
    if manifests[ATTEMPTS].number:
        number = OldManifest(manifests[ATTEMPTS].number)
        _move(old / ATTEMPTS.name, erased, lake, LEDGER, number, on_rows, rows)
    for table, manifest in manifests.items():
        if manifest.number:
            _move(old / table.name, manifest.files, lake, table, manifest, on_rows, rows)
    counts = {
        table.name: sum(part.rows for part in manifest.parts.values())
        for table, manifest in manifests.items()
    }
    return Migrated(identity, counts, len(erased))


def require_lake(old: Path) -> None:
    """Raise ConfigurationError unless the folder is a lake of Fairlead 0.1."""
    if not (old / "_lake").is_file():
        raise ConfigurationError(f"{old}: there is no lake of Fairlead 0.1")


def manifest_of(old: Path, table: Table) -> OldManifest:
    """Return the newest manifest of a table; an empty one without any. Raise BrokenLake, and
    ConfigurationError when a newer Fairlead wrote it."""
    path = max((old / table.name / "_manifest").glob("[0-9]" * 12 + ".json"), default=None)
    if path is None:
        return OldManifest()
    try:
        found = _decode(path.read_bytes())
        _check(found, int(path.stem))
    except (OSError, ValueError) as error:  # also that of msgspec
        raise BrokenLake(f"{path} cannot be read: {error}; restore it") from error
    if found.schema_version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"{path} was written under schema version {found.schema_version}; this Fairlead"
            f" knows up to {SCHEMA_VERSION}: upgrade Fairlead"
        )
    return found


def _check(manifest: OldManifest, number: int) -> None:
    """Raise ValueError for a manifest that leads out of its table."""
    if manifest.number != number:
        raise ValueError(f"it is the manifest {manifest.number}")
    for file in (*manifest.files, *manifest.ledger):
        if file.startswith("/") or ".." in file.split("/") or "\0" in file:
            raise ValueError(f"{file!r} is no path below the table")


def _move(
    folder: Path,
    files: list[str],
    lake: Warehouse,
    target: Table,
    manifest: OldManifest,
    on_rows: OnRows,
    rows: int,
) -> None:
    """Move these files below a folder in one commit, unless that is done."""
    here = lake.table(target)
    seen = here.state()
    if _is_moved(seen, target, manifest):
        return
    written: list[Written] = []
    found: list[pa.Table] = []
    for number, file in enumerate(files, 1):
        found.append(_load(folder / file, target))
        if sum(each.num_rows for each in found) >= rows or number == len(files):
            batch = pa.concat_tables(found)
            written += here.write(batch, "migrated", seen)
            on_rows(target.name, batch.num_rows)
            found = []
    news = {CURSOR + name: at for name, at in manifest.cursors.items()}
    news |= dict.fromkeys((ERASED + stone for stone in manifest.erased), "1")
    news[CURSOR + _MIGRATION] = str(manifest.number)
    if not here.replace({part_name(target, each.number) for each in written}, written, seen, news):
        here.take_away(written)
        raise ConfigurationError(f"{target.name} is moved by another process already")


def _is_moved(seen: TableState, table: Table, manifest: OldManifest) -> bool:
    """Return whether the files of this manifest are in the table. Raise ConfigurationError for a
    table with other rows, or of another manifest."""
    moved = seen.cursors.get(_MIGRATION)
    if moved is None and seen.snapshot is not None:
        raise ConfigurationError(
            f"the new lake has rows in {table.name} already: give a new one with --lake"
        )
    if moved is not None and "/" in moved:
        raise ConfigurationError(
            f"an earlier development version began to move {table.name} into this lake: move the"
            " old lake into a new one"
        )
    if moved not in (None, str(manifest.number)):
        raise ConfigurationError(
            f"{table.name} of the old lake has changed since its move began: stop its exporters,"
            " and move it into a new lake"
        )
    return moved is not None


def _load(path: Path, columns: Table) -> pa.Table:
    """Return the rows of a file with these columns; missing ones are null. Raise BrokenLake for a
    missing or damaged file."""
    schema = pa.schema([field.with_nullable(True) for field in columns.arrow()])
    try:
        return ds.dataset(str(path), schema=schema, format="parquet").to_table()
    except (OSError, pa.ArrowInvalid) as error:
        raise BrokenLake(f"{path} cannot be read: {error}; restore it") from error
