"""Landing of history: write rows to files that no snapshot lists yet, with hashed keys in a hashed
lake, and without the rows of erased keys.

The exporter and the stream land rows, and then list the files by one `append`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from fairlead.pipeline import ledger
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.hashing import Hashing
from fairlead.pipeline.schema import Table
from fairlead.pipeline.tombstones import parted
from fairlead.pipeline.warehouse.data_files import Written
from fairlead.pipeline.warehouse.table import TableState
from fairlead.pipeline.warehouse.warehouse import Warehouse

Moves = Mapping[str, tuple[str | None, str | None]]
"""Moves of cursors from one position to the next, by cursor. None: there is no such cursor."""


class BronzeTable:
    """Table of bronze to which exporters add rows, each exactly once."""

    def __init__(self, lake: Warehouse, table: Table) -> None:
        self._lake = lake
        self._table = lake.table(table)

    def state(self) -> TableState:
        """Return the present state."""
        return self._table.state()

    def land(
        self,
        rows: pa.Table,
        name: str,
        seen: TableState,
        hashing: Hashing | None,
    ) -> list[Written]:
        """Write rows, without those of keys erased in the state `seen`, to files that no snapshot
        lists yet; their names begin with `name`. Erased attempts go into the ledger."""
        hidden = rows if hashing is None else hashing.hidden(rows)
        kept, erased = parted(self._lake, hidden, seen.erased)
        if self._table.table is ATTEMPTS:
            ledger.add(self._lake, erased, name)
        return self._table.write(kept, name, seen)

    def append(self, landed: Sequence[Written], moves: Moves, seen: TableState) -> bool:
        """List the files and move cursors, in one commit. Return False, and change nothing, if
        another writer has changed the table since the state `seen`."""
        if any(seen.cursors.get(name) != position for name, (position, _) in moves.items()):
            return False
        after = {name: position for name, (_, position) in moves.items()}
        return self._table.append(landed, after, seen)

    def take_away(self, landed: Sequence[Written]) -> None:
        """Remove landed files of a refused commit. Remove them at once, because they may contain
        rows of a key that was erased meanwhile."""
        self._table.take_away(landed)

    def tend(self, now: int) -> None:
        """Keep what describes the table small, as far as each commit makes it grow."""
        self._table.tend(now)
