"""Landing of history: write rows to files that no snapshot lists yet, without the rows of
erased keys.

The exporter and the stream land rows, and then list the files by one `append`.
"""

from __future__ import annotations

import pyarrow as pa

from fairlead.pipeline import ledger
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.schema import Table
from fairlead.pipeline.tombstones import parted
from fairlead.pipeline.warehouse.data_files import Written
from fairlead.pipeline.warehouse.table import TableState
from fairlead.pipeline.warehouse.warehouse import Warehouse


def land(
    lake: Warehouse,
    table: Table,
    rows: pa.Table,
    name: str,
    seen: TableState,
) -> list[Written]:
    """Write rows of a table of bronze, without those of keys erased in the state `seen`, to files
    that no snapshot lists yet; their names begin with `name`. Erased attempts go into the
    ledger."""
    kept, erased = parted(lake, rows, seen.erased)
    if table is ATTEMPTS:
        ledger.add(lake, erased, name)
    return lake.table(table).write(kept, name, seen)
