"""Tombstones of erased keys, which keep late exports from bringing them back. A tombstone does not
reveal its key."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

import msgspec

from fairlead.pipeline.lake.manifest import Manifest
from fairlead.pipeline.lake.table import LakeTable

if TYPE_CHECKING:
    import pyarrow as pa


class WithIdentity(Protocol):
    """A lake of either format."""

    @property
    def identity(self) -> str:
        """Identity of the lake."""


def tombstone(lake: WithIdentity, key: str) -> str:
    """Return a digest of the key, different in each lake. An owner of the lake who guesses a key
    can check it, but cannot list the keys."""
    return hmac.new(
        lake.identity.encode(), key.encode(errors="surrogatepass"), hashlib.sha256
    ).hexdigest()


def bury(table: LakeTable, stones: Collection[str], now: int) -> None:
    """Refuse rows of these keys from now on. An export that has already begun is refused, and
    repeats its work."""

    def change(before: Manifest) -> Manifest | None:
        if set(stones) <= set(before.erased):
            return None
        return msgspec.structs.replace(before, erased=sorted({*before.erased, *stones}))

    table.manifests.update(change, now)


def readmit(table: LakeTable, stones: Collection[str], now: int) -> bool:
    """Accept rows of these keys in later exports; return False when none of them was erased."""

    def change(before: Manifest) -> Manifest | None:
        if not set(stones) & set(before.erased):
            return None
        return msgspec.structs.replace(
            before, erased=[stone for stone in before.erased if stone not in stones]
        )

    return table.manifests.update(change, now) is not None


def parted(
    lake: WithIdentity, rows: pa.Table, stones: Collection[str]
) -> tuple[pa.Table, pa.Table]:
    """Return the rows (with a `fairness_key`) to keep, and those of erased keys."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not stones:
        return rows, rows.slice(0, 0)
    gone = [
        key for key in pc.unique(rows["fairness_key"]).to_pylist() if tombstone(lake, key) in stones
    ]
    is_gone = pc.is_in(rows["fairness_key"], value_set=pa.array(gone, pa.string()))
    return rows.filter(pc.invert(is_gone)), rows.filter(is_gone)
