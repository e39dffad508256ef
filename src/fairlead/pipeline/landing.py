"""Landed rows of history: files on disk that do not count yet, with hidden keys and without erased
ones.

The exporter and the stream land their rows here, and publish them by one `append`.
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
"""Names of uncompacted files of a partition."""


class Landed(NamedTuple):
    """Files on disk that do not count yet."""

    written: list[Written]
    noted: list[str]
    """Files of the ledger."""


def land(
    lake: Lake,
    table: LakeTable,
    rows: pa.Table,
    name: str,
    stones: Collection[str],
    hashing: Hashing | None,
) -> Landed:
    """Write the rows, except those of erased keys (`stones`), into files that begin with this name.

    Names are unique to an exporter: of two that read the same rows, the files of one count.
    """
    kept, erased = parted(lake, rows if hashing is None else hashing.hidden(rows), stones)
    written = table.write(kept, FIRST_GENERATION, f"{name}-{uuid.uuid4().hex[:8]}.parquet")
    return Landed(written, ledger.write(table, erased) if table.table is ATTEMPTS else [])


def take_away(table: LakeTable, landed: Iterable[Landed]) -> None:
    """Remove landed files that will never count, at once, because they may hold rows of a key
    erased meanwhile."""
    for one in landed:
        for file in (*(each.file for each in one.written), *one.noted):
            (table.folder / file).unlink(missing_ok=True)
