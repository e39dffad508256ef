"""The ledger of erased attempts: what `reconcile` must still count of them, since the store has
them. No key, no task.

A row says where the attempt stood in its store, how long its run took and what it adds to the
fingerprint of a stretch of history: with these the lake still agrees with the store, which may then
clean.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec

from fairlead.pipeline.lake import durable
from fairlead.pipeline.lake.manifest import Manifest
from fairlead.pipeline.lake.table import LakeTable
from fairlead.ports.history import Position

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("store_id", "xid", "seq", "version", "started_at", "finished_at")
"""What reconcile reads of an attempt."""

FOLDER = "_ledger"


def write(table: LakeTable, erased: pa.Table) -> list[str]:
    """Put these attempts into a file of the ledger that does not count yet; answers its name, or
    none for no rows."""
    import pyarrow.parquet as pq

    if not erased.num_rows:
        return []
    path = durable.folder(table.folder / FOLDER) / f"{uuid.uuid4().hex}.parquet"
    durable.write(
        path, lambda aside: pq.write_table(erased.select(COLUMNS), aside, compression="zstd")
    )
    return [str(path.relative_to(table.folder))]


def settle(table: LakeTable, store_id: str, checked: Position, now: int) -> None:
    """Let go of files that tell only of attempts of this store up to `checked`: they were compared,
    and agreed."""
    import pyarrow.parquet as pq

    settled = {
        file
        for file in table.manifests.newest().ledger
        if all(
            row["store_id"] == store_id and Position(row["xid"], row["seq"]) <= checked
            for row in pq.read_table(
                table.folder / file, columns=["store_id", "xid", "seq"]
            ).to_pylist()
        )
    }

    def change(before: Manifest) -> Manifest | None:
        if not settled & set(before.ledger):
            return None
        return msgspec.structs.replace(
            before, ledger=[file for file in before.ledger if file not in settled]
        )

    if settled:
        table.manifests.update(
            change, now
        )  # the files go with `gc`, a day later: an older manifest may list them
