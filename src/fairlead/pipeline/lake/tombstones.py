"""Tombstones: keys that were erased, so that a late export does not bring them back. They do not
tell the key."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.manifest import Manifest
from fairlead.pipeline.lake.table import LakeTable

if TYPE_CHECKING:
    import pyarrow as pa


def tombstone(lake: Lake, key: str) -> str:
    """A digest of the key, another one in each lake. Who has the lake and guesses a key can check
    it; nobody can list them."""
    return hmac.new(
        lake.identity.encode(), key.encode(errors="surrogatepass"), hashlib.sha256
    ).hexdigest()


def bury(table: LakeTable, stones: Collection[str], now: int) -> None:
    """From here on, rows of these keys are not let into the table: an export under way is refused,
    and made again."""

    def change(before: Manifest) -> Manifest | None:
        if set(stones) <= set(before.erased):
            return None
        return msgspec.structs.replace(before, erased=sorted({*before.erased, *stones}))

    table.manifests.update(change, now)


def readmit(table: LakeTable, stones: Collection[str], now: int) -> bool:
    """What is exported from here on may hold rows of these keys again; False: none of them was
    erased."""

    def change(before: Manifest) -> Manifest | None:
        if not set(stones) & set(before.erased):
            return None
        return msgspec.structs.replace(
            before, erased=[stone for stone in before.erased if stone not in stones]
        )

    return table.manifests.update(change, now) is not None


def parted(lake: Lake, rows: pa.Table, stones: Collection[str]) -> tuple[pa.Table, pa.Table]:
    """The rows (with a `fairness_key`) that may be kept, and those of erased keys."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not stones:
        return rows, rows.slice(0, 0)
    gone = [
        key for key in pc.unique(rows["fairness_key"]).to_pylist() if tombstone(lake, key) in stones
    ]
    is_gone = pc.is_in(rows["fairness_key"], value_set=pa.array(gone, pa.string()))
    return rows.filter(pc.invert(is_gone)), rows.filter(is_gone)
