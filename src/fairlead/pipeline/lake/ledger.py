"""The ledger of erased attempts, which `reconcile` still counts, because the store has them. The
ledger holds no fairness key and no task id.

A row holds the position of the attempt in its store, its run time, and its part of the fingerprint
of a range of history. With these rows the lake agrees with the store, which may then clean its
history.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec

from fairlead.pipeline import durable
from fairlead.pipeline.lake.manifest import Manifest
from fairlead.pipeline.lake.table import LakeTable
from fairlead.ports.history import Position

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("store_id", "xid", "seq", "version", "started_at", "finished_at")
"""Columns of an attempt that `reconcile` reads."""

FOLDER = "_ledger"


def write(table: LakeTable, erased: pa.Table) -> list[str]:
    """Write these attempts to a ledger file that no manifest lists yet. Return a list of its name,
    or an empty list if there are no attempts."""
    import pyarrow.parquet as pq

    if not erased.num_rows:
        return []
    path = durable.folder(table.folder / FOLDER) / f"{uuid.uuid4().hex}.parquet"
    durable.write(
        path,
        lambda temporary: pq.write_table(erased.select(COLUMNS), temporary, compression="zstd"),
    )
    return [str(path.relative_to(table.folder))]


def settle(table: LakeTable, store_id: str, checked: Position, now: int) -> None:
    """Drop from the manifest the files with only attempts of this store at or before `checked`,
    because these attempts agreed with the store."""
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
        )  # `gc` removes the files a day later, because an older manifest may list them
