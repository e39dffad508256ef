"""Landing of history: write rows to files that no commit lists yet, with hashed keys in a hashed
lake, and without the rows of erased keys.

The exporter and the stream land rows, and then list the files by one `append`. `bronze_of` gives
the exporter a table of bronze in either format: Parquet under our manifests, or Iceberg.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.hashing import Hashing
from fairlead.pipeline.lake import ledger
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.manifest import Manifest
from fairlead.pipeline.lake.table import LakeTable, Written
from fairlead.pipeline.lake.tombstones import parted
from fairlead.pipeline.schema import Table

if TYPE_CHECKING:
    import pyarrow as pa

    from fairlead.pipeline.warehouse.data_files import Written as WrittenFile
    from fairlead.pipeline.warehouse.table import TableState, WarehouseTable
    from fairlead.pipeline.warehouse.warehouse import Warehouse

FIRST_GENERATION = "0"
"""Generation of the uncompacted files of a partition."""


class Landed(NamedTuple):
    """Files on disk that no manifest lists yet."""

    written: list[Written]
    noted: list[str]
    """Files of the ledger."""


def land(
    lake: Lake,
    table: LakeTable,
    rows: pa.Table,
    name: str,
    stones: Collection[str],
    hashing: Hashing | None,
) -> Landed:
    """Write the rows into files that begin with this name. `stones`: tombstones of the erased keys,
    whose rows are left out.

    Each call writes new files. When two exporters land the same rows, the manifest lists the files
    of only one.
    """
    kept, erased = parted(lake, rows if hashing is None else hashing.hidden(rows), stones)
    written = table.write(kept, FIRST_GENERATION, f"{name}-{uuid.uuid4().hex[:8]}.parquet")
    return Landed(written, ledger.write(table, erased) if table.table is ATTEMPTS else [])


def take_away(table: LakeTable, landed: Iterable[Landed]) -> None:
    """Remove landed files that will never be listed. Remove them at once, because they may contain
    rows of a key that was erased meanwhile."""
    for one in landed:
        for file in (*(each.file for each in one.written), *one.noted):
            (table.folder / file).unlink(missing_ok=True)


Moves = Mapping[str, tuple[str | None, str | None]]
"""Moves of cursors from one position to the next, by cursor. None: there is no such cursor."""

LEDGER = Table(
    "bronze.ledger",
    "Erased attempts without keys and tasks, which `reconcile` still counts.",
    ("store_id", "xid", "seq"),
    "finished_at",
    tuple(column for column in ATTEMPTS.columns if column.name in ledger.COLUMNS),
    by="date",
)


class BronzeState(Protocol):
    """State of a table of bronze when it was read."""

    @property
    def cursors(self) -> Mapping[str, str]:
        """Positions up to which the table has rows."""

    @property
    def erased(self) -> Sequence[str]:
        """Tombstones of erased keys."""


class BronzeTable(Protocol):
    """Table of bronze to which an exporter adds rows, each exactly once."""

    def state(self) -> Any:
        """Return the present state, a BronzeState."""

    def land(self, rows: pa.Table, name: str, seen: Any, hashing: Hashing | None) -> Any:
        """Write rows, without those of keys erased in the state `seen`, to files that no commit
        lists yet."""

    def append(self, landed: Any, moves: Moves, seen: Any, now: int) -> int | None:
        """List the files (None: no files) and move cursors, in one commit; return the number of
        files. Return None, and change nothing, if another writer has changed a cursor or tombstone
        since the state `seen`."""

    def take_away(self, landed: Any) -> None:
        """Remove landed files of a refused commit."""

    def tend(self, now: int) -> None:
        """Keep what describes the table small, as far as each commit makes it grow."""


def bronze_of(lake: Lake | Warehouse, table: Table) -> BronzeTable:
    """Return a table of bronze of this lake."""
    return _InLake(lake, table) if isinstance(lake, Lake) else _InWarehouse(lake, table)


class _InLake:
    """Table of bronze under our manifests."""

    def __init__(self, lake: Lake, table: Table) -> None:
        self._lake = lake
        self._table = lake.table(table)

    def state(self) -> Manifest:
        return self._table.manifests.newest()

    def land(self, rows: pa.Table, name: str, seen: Manifest, hashing: Hashing | None) -> Landed:
        return land(self._lake, self._table, rows, name, seen.erased, hashing)

    def append(self, landed: Landed | None, moves: Moves, seen: Manifest, now: int) -> int | None:
        files = Landed([], []) if landed is None else landed
        done = self._table.append(
            files.written,
            moves,
            now,
            files.noted,
            seen.erased,
            only_if=lambda before: before.cursors == seen.cursors,
        )
        return None if done is None else len(files.written)

    def take_away(self, landed: Landed) -> None:
        take_away(self._table, [landed])

    def tend(self, now: int) -> None:
        """Do nothing: each commit removes old manifests."""


class _InWarehouse:
    """Table of bronze in Iceberg."""

    def __init__(self, lake: Warehouse, table: Table) -> None:
        self._lake = lake
        self._table: WarehouseTable = lake.table(table)
        self._ledger = lake.table(LEDGER) if table is ATTEMPTS else None

    def state(self) -> TableState:
        return self._table.state()

    def land(
        self, rows: pa.Table, name: str, seen: TableState, hashing: Hashing | None
    ) -> list[WrittenFile]:
        hidden = rows if hashing is None else hashing.hidden(rows)
        kept, erased = parted(self._lake, hidden, seen.erased)
        if self._ledger is not None and erased.num_rows:
            self._note(self._ledger, erased, name)
        return self._table.write(kept, name, seen)

    def append(
        self, landed: list[WrittenFile] | None, moves: Moves, seen: TableState, now: int
    ) -> int | None:
        files = landed or []
        if any(seen.cursors.get(name) != position for name, (position, _) in moves.items()):
            return None
        after = {name: position for name, (_, position) in moves.items()}
        return len(files) if self._table.append(files, after, seen) else None

    def take_away(self, landed: list[WrittenFile]) -> None:
        self._table.take_away(landed)

    def tend(self, now: int) -> None:
        self._table.tend(now)

    def _note(self, table: WarehouseTable, erased: pa.Table, name: str) -> None:
        """Add erased attempts to the ledger before the commit that passes them, so that a crash
        between both loses none. A repeated attempt has one position, which counts once."""
        while True:
            seen = table.state()
            written = table.write(erased.select(list(ledger.COLUMNS)), name, seen)
            if table.append(written, {}, seen):
                return
            table.take_away(written)
