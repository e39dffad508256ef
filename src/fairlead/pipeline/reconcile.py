"""Reconciliation of the lake with the store. The store may delete only attempts that agree."""

from __future__ import annotations

from collections.abc import Callable
from operator import add
from typing import TYPE_CHECKING

import msgspec

from fairlead.clock import Clock
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.lake import ledger
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.manifest import Manifest
from fairlead.pipeline.lake.table import DAY, LakeTable
from fairlead.pipeline.stream.cursors import store_position
from fairlead.ports.history import FINGERPRINT_MODULUS, START, HistoryStore, Position, Totals

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

PIECE = 1_000_000
"""Rows in one comparison."""


class Reconciled(msgspec.Struct, frozen=True):
    """Result of a comparison."""

    rows: int
    busy_us: int
    pieces: int
    position: str
    """Position up to which the lake agrees with the store."""
    more: bool = False
    """Whether the comparison ended after the requested number of pieces and attempts are left."""


def reconcile(
    history: HistoryStore,
    lake: Lake,
    clock: Clock,
    piece: int = PIECE,
    pieces: int | None = None,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Reconciled:
    """Compare the attempts exported since the last comparison, in pieces.

    If all pieces agree, record their end in the store, which may then delete the attempts. Raise
    CheckFailed with each piece that differs, and record nothing. Raise BrokenLake if a file cannot
    be read, and StoreUnavailable.

    piece: rows of a piece. pieces: greatest number of pieces; None for all. on_rows: callback with
    the number of rows of each compared piece.
    """
    read = history.database.read_now
    store_id = read(history.store_id())
    table = lake.table(ATTEMPTS)
    manifest = table.manifests.newest()
    reader = read(history.reader(lake.reader))
    position = START if reader is None or reader.checked is None else reader.checked
    end = max(position, store_position(manifest, store_id))
    if reader is None and position < end:
        raise CheckFailed(
            f"the store has no reader {lake.reader!r}; `fairlead pipeline ingest` registers it"
        )
    # Go back a day, because clocks may differ by less than a day.
    exported = _changed_since(
        table, manifest, 0 if reader is None else (reader.checked_at or 0) - DAY
    )
    erased = _ledger(table, manifest)
    rows = busy_us = done = 0
    differences = []
    while position < end and done != pieces:
        until = read(history.position_after(position, end, piece))
        in_store: Totals = read(history.attempts_between(position, until))
        lies_between = _lies_between(store_id, position, until)
        in_lake = Totals(
            *map(add, _totals_of(exported, lies_between), _totals_of(erased, lies_between))
        )
        if in_lake != in_store:
            differences.append(f"{position} to {until}: {_difference(in_store, in_lake)}")
        rows, busy_us, done, position = (
            rows + in_store.rows,
            busy_us + in_store.busy_us,
            done + 1,
            until,
        )
        on_rows(in_store.rows)
    if differences:
        raise CheckFailed(f"the lake differs from the store {store_id}. " + ". ".join(differences))
    if reader is not None:
        history.database.run(history.checked(lake.reader, position, clock.now()))
        ledger.settle(table, store_id, position, clock.now())
    return Reconciled(rows, busy_us, done, str(position), position < end)


def _changed_since(table: LakeTable, manifest: Manifest, instant: int) -> ds.Dataset:
    """Return the rows of all partitions that changed at or after an instant (microseconds since
    the epoch)."""
    import pyarrow.dataset as ds

    parts = [name for name, part in manifest.parts.items() if part.changed_at >= instant]
    table.check(manifest, parts)
    return ds.dataset(table.paths(manifest, parts), schema=table.table.arrow(), format="parquet")


def _ledger(table: LakeTable, manifest: Manifest) -> ds.Dataset:
    """Return the columns, for totals, of rows that were erased from the lake and not yet from the
    store."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    schema = pa.schema([table.table.arrow().field(name) for name in ledger.COLUMNS])
    return ds.dataset(
        [str(table.folder / file) for file in manifest.ledger], schema=schema, format="parquet"
    )


def _totals_of(rows: ds.Dataset, condition: pc.Expression) -> Totals:
    """Return the totals of the rows that meet the condition. Skip row groups that cannot contain
    any."""
    found = Totals(0, 0, 0)
    for batch in rows.to_batches(
        columns=["seq", "version", "started_at", "finished_at"], filter=condition
    ):
        found = Totals(*map(add, found, _totals(batch)))
    return found


def _lies_between(store_id: str, after: Position, until: Position) -> pc.Expression:
    import pyarrow.compute as pc

    xid, seq = pc.field("xid"), pc.field("seq")
    is_behind = (xid > after.xid) | ((xid == after.xid) & (seq > after.seq))
    is_in = (xid < until.xid) | ((xid == until.xid) & (seq <= until.seq))
    return (pc.field("store_id") == store_id) & is_behind & is_in


def _totals(batch: pa.RecordBatch) -> Totals:
    """Return the totals of a batch, by the formula of the stores. Arrow and the stores both round
    the quotients of integers towards zero."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def modulo(numbers: pa.Array) -> pa.Array:
        return pc.subtract(
            numbers, pc.multiply(pc.divide(numbers, FINGERPRINT_MODULUS), FINGERPRINT_MODULUS)
        )

    started, finished = batch["started_at"].cast(pa.int64()), batch["finished_at"].cast(pa.int64())
    prints = pc.add(pc.multiply(modulo(finished), 31), pc.multiply(modulo(batch["seq"]), 17))
    prints = modulo(pc.add(prints, batch["version"].cast(pa.int64())))
    return Totals(
        batch.num_rows,
        pc.sum(pc.subtract(finished, started)).as_py() or 0,
        pc.sum(prints).as_py() or 0,
    )


def _difference(store: Totals, lake: Totals) -> str:
    """Return a text with the totals that differ."""
    return ", ".join(
        f"{name} {in_store:,} in the store and {in_lake:,} in the lake"
        for name, in_store, in_lake in zip(Totals._fields, store, lake, strict=True)
        if in_store != in_lake
    )
