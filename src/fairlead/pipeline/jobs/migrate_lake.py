"""`migrate-lake`: moves a lake of 0.1 into Iceberg tables, each row once. The job can be run again
after a crash.

The first commit to a table takes over its cursors and tombstones, so that an exporter into the new
lake continues where the old one ended. Each later commit adds rows and moves the cursor
`migration`, which counts the files of the old manifest that are moved. Silver and gold are built
again from bronze.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.definitions.capacity import CAPACITY
from fairlead.pipeline.definitions.incidents import INCIDENTS
from fairlead.pipeline.definitions.replays import REPLAY_WAITS, REPLAYS
from fairlead.pipeline.ledger import LEDGER
from fairlead.pipeline.old_lake import OldLake, OldManifest
from fairlead.pipeline.runs import RUNS, OnRows
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.table import CURSOR, ERASED, TableState
from fairlead.pipeline.warehouse.warehouse import Warehouse

ROWS = 500_000
"""Rows of one commit, about."""

MOVED = (ATTEMPTS, EVENTS, INCIDENTS, CAPACITY, REPLAYS, REPLAY_WAITS, RUNS)
"""Tables that no build makes."""

_MIGRATION = "migration"


class Migrated(msgspec.Struct, frozen=True):
    """Result of the job."""

    identity: str
    """Identity of both lakes, by which stores know them."""
    rows: dict[str, int]
    """Number of rows of the old lake, by table."""
    ledger: int
    """Number of files of erased attempts that `reconcile` still counts."""


def migrate_lake(
    old: OldLake,
    lake: Warehouse,
    on_rows: OnRows = lambda table, rows: None,
    rows: int = ROWS,
) -> Migrated:
    """Move the lake `old`, which no exporter may change meanwhile, into a new one.

    Raise ConfigurationError if the new lake has rows of its own, if both lie in one folder, or if
    the old one has changed since the job began; BrokenLake, StoreUnavailable.

    rows: number of rows of one commit, about.
    """
    _check_folders(old.root, lake.location.folder)
    lake.take_identity(old.identity)
    if old.hash_proof is not None:
        lake.keep_hash_proof(old.hash_proof)
    done = {}
    attempts = old.manifest(ATTEMPTS)
    for table in MOVED:
        manifest = attempts if table is ATTEMPTS else old.manifest(table)
        done[table.name] = manifest.rows
        if table is ATTEMPTS:
            _move(old, lake, ATTEMPTS, LEDGER, _only_ledger(manifest), on_rows, rows)
        if manifest.number:
            _move(old, lake, table, table, manifest, on_rows, rows)
    return Migrated(old.identity, done, len(attempts.ledger))


def _check_folders(old: Path, new: Path | None) -> None:
    if new is not None and (old.resolve() in (new.resolve(), *new.resolve().parents)):
        raise ConfigurationError(
            f"lake {new} lies in the old one; give another folder with --lake, because old and new"
            " files do not mix"
        )


def _only_ledger(manifest: OldManifest) -> OldManifest:
    """Return a manifest that lists the files of the ledger as rows."""
    return OldManifest(manifest.number, ledger=manifest.ledger)


def _move(
    old: OldLake,
    lake: Warehouse,
    source: Table,
    target: Table,
    manifest: OldManifest,
    on_rows: OnRows,
    rows: int,
) -> None:
    """Move the files of a manifest, each once."""
    here, files = lake.table(target), manifest.files or manifest.ledger
    first = {CURSOR + name: at for name, at in manifest.cursors.items()}
    first |= dict.fromkeys((ERASED + stone for stone in manifest.erased), "1")

    def begin(seen: TableState) -> dict[str, str | None] | None:
        if _moved(seen, target, manifest) is not None:
            return None
        return {**first, CURSOR + _MIGRATION: f"{manifest.number}/0"}

    here.update(begin)
    done = _moved(here.state(), target, manifest)
    assert done is not None
    first_file = done
    for number, batch in old.batches(source, files[first_file:], target, rows):
        while True:
            seen = here.state()
            if _moved(seen, target, manifest) != done:
                raise ConfigurationError(f"{target.name} is moved by another process already")
            written = here.write(batch, "migrated", seen)
            moved = {_MIGRATION: f"{manifest.number}/{first_file + number}"}
            if here.append(written, moved, seen):
                break
            here.take_away(written)
        done = first_file + number
        on_rows(target.name, batch.num_rows)


def _moved(seen: TableState, table: Table, manifest: OldManifest) -> int | None:
    """Return the number of files that are moved; None before the first commit. Raise
    ConfigurationError for a table with other rows, or of another manifest."""
    text = seen.cursors.get(_MIGRATION)
    if text is None:
        if seen.cursors or (seen.stored is not None and seen.stored.current_snapshot() is not None):
            raise ConfigurationError(
                f"the new lake has rows in {table.name} already: give a new one with --lake"
            )
        return None
    number, _, files = text.partition("/")
    if int(number) != manifest.number:
        raise ConfigurationError(
            f"{table.name} of the old lake has changed since its move began: stop its exporters,"
            " and move it into a new lake"
        )
    return int(files)
