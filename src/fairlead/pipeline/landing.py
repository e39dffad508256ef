"""Rows of history put on disk where they do not count yet: keys hidden, erased ones left out and
entered in the ledger.

Whoever exports (the poller's exporter, the stream) lands its rows so, and then lets them count by
one `append`.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.hashing import Hashing
from fairlead.pipeline.lake import ledger
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.table import LakeTable, Written
from fairlead.pipeline.lake.tombstones import parted

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_GENERATION = "0"
"""Of a partition's files until they are compacted."""


class Landed(NamedTuple):
    """Files that are on disk and do not count yet."""

    written: list[Written]
    noted: list[str]
    """Of the ledger."""


def land(
    lake: Lake,
    table: LakeTable,
    told: pa.Table,
    name: str,
    stones: Collection[str],
    hashing: Hashing | None,
) -> Landed:
    """Write the rows, but for those of erased keys (`stones`), into files that begin with this
    name.

    No two exporters ever write one name: of two that read the same rows, one has files that count.
    """
    kept, erased = parted(lake, told if hashing is None else hashing.hidden(told), stones)
    written = table.write(kept, FIRST_GENERATION, f"{name}-{uuid.uuid4().hex[:8]}.parquet")
    return Landed(written, ledger.write(table, erased) if table.table is ATTEMPTS else [])


def take_away(table: LakeTable, landed: Iterable[Landed]) -> None:
    """Remove what was landed and will never count. Not left to the sweep: it may hold rows of a key
    that was erased meanwhile."""
    for one in landed:
        for file in (*(each.file for each in one.written), *one.noted):
            (table.folder / file).unlink(missing_ok=True)
