"""Small tables of a lake, whose rows fit into memory, read and written without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from functools import cached_property
from typing import Any

import pyarrow as pa

from fairlead.pipeline.parts import PartsOf, all_parts
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.reading.snapshots import Snapshots
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.warehouse import Warehouse


class SmallTables:
    """Tables of a lake as they are at the first read, and writes of the tables that no build
    makes."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    @cached_property
    def _frames(self) -> Frames:
        return Frames(self._warehouse, Snapshots(self._warehouse).look())

    def parts(self, table: Table) -> list[str]:
        """Return the partitions with rows, ascending."""
        return self._frames.parts(table)

    def select(self, text: str, parts: PartsOf = all_parts, **given: Any) -> list[dict[str, Any]]:
        """Return the few rows of a statement with these parameters, as `Frames.totals` does. Raise
        BrokenLake for a missing file."""
        return self._frames.totals(text, parts, given)

    def replace(self, table: Table, rows: pa.Table, parts: Collection[str]) -> None:
        """Replace the rows of these partitions, in one commit; start again if another writer was
        first."""
        here = self._warehouse.table(table)
        while True:
            seen = here.state()
            if not rows.num_rows and not here.files(parts, seen=seen):
                return
            written = here.write(rows, uuid.uuid4().hex, seen)
            if here.replace(parts, written, seen):
                return
            here.take_away(written)
