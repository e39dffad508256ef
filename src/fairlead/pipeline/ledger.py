"""The ledger of erased attempts, which `reconcile` still counts, because the store has them. The
ledger holds no fairness key and no task id.

A row holds the position of the attempt in its store, its run time, and its part of the fingerprint
of a range of history. With these rows the lake agrees with the store, which may then clean its
history. Rows are added before the commit that passes or removes their attempts, so that a crash
loses none; a position that is there twice, or in bronze too, counts once.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from fairlead.model.history import Position
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.warehouse import Warehouse

COLUMNS = ("store_id", "xid", "seq", "version", "started_at", "finished_at")
"""Columns of an attempt that `reconcile` reads."""

LEDGER = Table(
    "bronze.ledger",
    "Erased attempts without keys and tasks, which `reconcile` still counts.",
    ("store_id", "xid", "seq"),
    "finished_at",
    tuple(column for column in ATTEMPTS.columns if column.name in COLUMNS),
    by="date",
)


def add(lake: Warehouse, erased: pa.Table, name: str) -> None:
    """Add these attempts to the ledger, in files that begin with `name`."""
    if erased.num_rows:
        lake.table(LEDGER).add(erased.select(list(COLUMNS)), name)


def settle(lake: Warehouse, store_id: str, checked: Position, now: int) -> None:
    """Remove the attempts of this store at or before `checked`, because they agreed with the
    store."""
    table = lake.table(LEDGER)
    stays = (pc.field("store_id") != store_id) | _is_behind(checked)

    def without_settled(rows: pa.Table) -> pa.Table | None:
        kept = rows.filter(stays)
        return None if kept.num_rows == rows.num_rows else kept

    for part in sorted({file.part for file in table.files()}):
        table.rewrite([part], without_settled, "settled")
    table.tend(now)


def _is_behind(position: Position) -> pc.Expression:
    xid, seq = pc.field("xid"), pc.field("seq")
    return (xid > position.xid) | ((xid == position.xid) & (seq > position.seq))
