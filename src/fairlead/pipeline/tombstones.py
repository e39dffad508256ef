"""Tombstones of erased keys, which keep late exports from bringing them back. A tombstone does not
reveal its key."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from fairlead.pipeline.warehouse.table import ERASED, WarehouseTable
from fairlead.pipeline.warehouse.warehouse import Warehouse


def tombstone(lake: Warehouse, key: str) -> str:
    """Return a digest of the key, different in each lake. An owner of the lake who guesses a key
    can check it, but cannot list the keys."""
    return hmac.new(
        lake.identity.encode(), key.encode(errors="surrogatepass"), hashlib.sha256
    ).hexdigest()


def bury(table: WarehouseTable, stone: str) -> None:
    """Refuse rows of this key from now on. An export that has already begun is refused, and
    repeats its work."""
    table.update(lambda seen: None if stone in seen.erased else {ERASED + stone: "1"})


def readmit(table: WarehouseTable, stone: str) -> bool:
    """Accept rows of this key in later exports; return False if it was not erased."""
    return table.update(lambda seen: {ERASED + stone: None} if stone in seen.erased else None)


def parted(lake: Warehouse, rows: pa.Table, stones: Collection[str]) -> tuple[pa.Table, pa.Table]:
    """Return the rows (with a `fairness_key`) to keep, and those of erased keys."""
    if not stones:
        return rows, rows.slice(0, 0)
    gone = [
        key for key in pc.unique(rows["fairness_key"]).to_pylist() if tombstone(lake, key) in stones
    ]
    is_gone = pc.is_in(rows["fairness_key"], value_set=pa.array(gone, pa.string()))
    return rows.filter(pc.invert(is_gone)), rows.filter(is_gone)
