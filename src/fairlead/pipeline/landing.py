"""Landing of history: write rows to files on disk that no manifest lists yet, with hashed keys in a
hashed lake, and without the rows of erased keys.

The exporter and the stream land rows, and then list the files in the manifest by one `append`.
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
"""Generation of the uncompacted files of a partition."""


class Landed(NamedTuple):
    """Files on disk that no manifest lists yet."""

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
    """Write the rows into files that begin with this name. `stones`: tombstones of the erased keys,
    whose rows are left out.

    Each call writes new files. When two exporters land the same rows, the manifest lists the files
    of only one.
    """
    kept, erased = parted(lake, rows if hashing is None else hashing.hidden(rows), stones)
    written = table.write(kept, FIRST_GENERATION, f"{name}-{uuid.uuid4().hex[:8]}.parquet")
    return Landed(written, ledger.write(table, erased) if table.table is ATTEMPTS else [])


def take_away(table: LakeTable, landed: Iterable[Landed]) -> None:
    """Remove landed files that will never be listed. Remove them at once, because they may contain
    rows of a key that was erased meanwhile."""
    for one in landed:
        for file in (*(each.file for each in one.written), *one.noted):
            (table.folder / file).unlink(missing_ok=True)
