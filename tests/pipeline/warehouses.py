"""Lakes in Iceberg for tests: rows as the exporter appends them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.warehouse import Warehouse


def export(
    warehouse: Warehouse, table: Table, rows: Iterable[Mapping[str, Any]], cursor: str
) -> None:
    """Append rows and move the cursor `store` in one commit, as the exporter does."""
    here = warehouse.table(table)
    data = pa.Table.from_pylist([dict(row) for row in rows], table.arrow())
    while True:
        seen = here.state()
        written = here.write(data, "export", seen)
        if here.append(written, {"store": cursor}, seen):
            return
        here.take_away(written)
