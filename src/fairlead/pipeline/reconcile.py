"""Reconciliation of the lake with the store. The store may delete only attempts that agree."""

from __future__ import annotations

from operator import add

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import Clock
from fairlead.model.history import FINGERPRINT_MODULUS, START, Position, Totals
from fairlead.pipeline import ledger
from fairlead.pipeline.cursors import attempts_cursor
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.warehouse.data_files import file_errors
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.table import TableState
from fairlead.pipeline.warehouse.warehouse import Warehouse

PIECE = 1_000_000
"""Rows in one comparison."""


class Reconciled(msgspec.Struct, frozen=True):
    """Result of a comparison."""

    rows: int
    busy_us: int
    more: bool
    """Whether the comparison ended after the requested number of pieces and attempts are left."""


def reconcile(
    history: SqlHistory,
    lake: Warehouse,
    clock: Clock,
    piece: int = PIECE,
    pieces: int | None = None,
) -> Reconciled:
    """Compare the attempts exported since the last comparison, in pieces.

    If all pieces agree, record their end in the store, which may then delete the attempts. Raise
    CheckFailed with each piece that differs, and record nothing. Raise BrokenLake if a file cannot
    be read, and StoreUnavailable.

    piece: rows of a piece. pieces: greatest number of pieces; None for all.
    """
    read = history.database.read_now
    store_id = read(history.store_id())
    seen = lake.table(ATTEMPTS).state()
    reader = read(history.reader(lake.reader))
    position = START if reader is None or reader.checked is None else reader.checked
    end = max(position, attempts_cursor(seen, store_id))
    if reader is None and position < end:
        raise CheckFailed(
            f"the store has no reader {lake.reader!r}; `fairlead pipeline ingest` registers it"
        )
    # Go back a day, because clocks may differ by less than a day.
    since = 0 if reader is None else (reader.checked_at or 0) - DAY_US
    exported = _exported_since(lake, seen, since)
    erased = ledger.rows_after(lake, store_id, position)
    rows = busy_us = done = 0
    differences = []
    while position < end and done != pieces:
        until = read(history.position_after(position, end, piece))
        in_store: Totals = read(history.attempts_between(position, until))
        in_lake = _totals_of(exported, erased, _lies_between(store_id, position, until))
        if in_lake != in_store:
            named = zip(Totals._fields, in_store, in_lake, strict=True)
            texts = [f"{n} {a:,} in the store and {b:,} in the lake" for n, a, b in named if a != b]
            differences.append(f"{position} to {until}: {', '.join(texts)}")
        rows, busy_us = rows + in_store.rows, busy_us + in_store.busy_us
        done, position = done + 1, until
    if differences:
        raise CheckFailed(f"the lake differs from the store {store_id}. " + ". ".join(differences))
    if reader is not None:
        history.database.run(history.checked(lake.reader, position, clock.now()))
        ledger.settle(lake, store_id, position, clock.now())
    return Reconciled(rows, busy_us, position < end)


def _exported_since(lake: Warehouse, seen: TableState, instant: int) -> ds.Dataset:
    """Return all files of a snapshot that may have rows exported at or after an instant
    (microseconds since the epoch)."""
    files = [
        file
        for file in ([] if seen.snapshot is None else lake.table(ATTEMPTS).files(seen=seen))
        if file.span.get("exported_at", (0, instant))[1] >= instant
    ]
    schema = ATTEMPTS.arrow()
    if seen.stored is None or not files:
        return ds.dataset(schema.empty_table())
    return lake.table(ATTEMPTS).dataset(seen.stored, files, schema)


def _totals_of(rows: ds.Dataset, erased: pa.Table, condition: pc.Expression) -> Totals:
    """Return the totals of the rows, and of the erased ones that are not among them, that meet the
    condition. Skip row groups that cannot contain any. Raise BrokenLake for a missing or damaged
    file."""
    found, here = Totals(0, 0, 0), erased.filter(condition)
    missing = {(row["xid"], row["seq"]) for row in here.select(["xid", "seq"]).to_pylist()}
    columns = list(ledger.COLUMNS[1:])
    with file_errors(ATTEMPTS):
        for batch in rows.to_batches(columns=columns, filter=condition):
            found = Totals(*map(add, found, _totals(batch)))
            if missing:
                missing -= set(zip(batch["xid"].to_pylist(), batch["seq"].to_pylist(), strict=True))
    positions = here.select(["xid", "seq"]).to_pylist()
    is_missing = pa.array([(row["xid"], row["seq"]) in missing for row in positions], pa.bool_())
    for batch in here.filter(is_missing).to_batches():
        found = Totals(*map(add, found, _totals(batch)))
    return found


def _lies_between(store_id: str, after: Position, until: Position) -> pc.Expression:
    xid, seq = pc.field("xid"), pc.field("seq")
    is_behind = (xid > after.xid) | ((xid == after.xid) & (seq > after.seq))
    is_in = (xid < until.xid) | ((xid == until.xid) & (seq <= until.seq))
    return (pc.field("store_id") == store_id) & is_behind & is_in


def _totals(batch: pa.RecordBatch) -> Totals:
    """Return the totals of a batch, by the formula of the stores. Arrow and the stores both round
    the quotients of integers towards zero."""

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
