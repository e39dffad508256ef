"""Tables whose rows fit into memory, read and replaced without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Collection

import pyarrow as pa

from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import Builds
from fairlead.pipeline.warehouse.warehouse import Warehouse


class SmallTables:
    """Tables whose rows fit into memory. Built tables are read as the newest build has them, others
    as they are now."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    def parts(self, table: Table) -> list[str]:
        """Return the partitions with rows, ascending."""
        files = self._warehouse.table(table).files(snapshot=self._snapshot(table))
        return sorted({file.part for file in files if file.rows})

    def load(self, table: Table, parts: Collection[str], columns: list[str]) -> pa.Table:
        """Return the rows of these partitions. Raise BrokenLake for a missing file."""
        here, snapshot = self._warehouse.table(table), self._snapshot(table)
        schema = pa.schema([table.arrow().field(name) for name in columns])
        return here.load(parts, columns, snapshot=snapshot).cast(schema)

    def replace(self, table: Table, rows: pa.Table, parts: Collection[str]) -> None:
        """Replace these partitions of a table that no build makes by `rows` at once. Raise
        BrokenLake when another job changed them meanwhile."""
        here = self._warehouse.table(table)
        before = here.files(parts)
        while True:
            seen = here.state()
            if here.files(parts, seen.snapshot) != before:
                raise BrokenLake(
                    f"{table.name} was changed by another process; run the command again"
                )
            if not before and not rows.num_rows:
                return
            written = here.write(rows, uuid.uuid4().hex, seen)
            if here.replace(parts, written, seen):
                return
            here.take_away(written)

    def _snapshot(self, table: Table) -> int | None:
        build, _ = Builds(self._warehouse).newest()
        return build.snapshots.get(table.name)
