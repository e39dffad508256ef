"""Reconciliation of the lake with the store. The store may delete only attempts that agree."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from fairlead.clock import Clock
from fairlead.pipeline import ledger
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.errors import BrokenLake, CheckFailed
from fairlead.pipeline.stream.cursors import store_position
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.table import TableState
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.history import FINGERPRINT_MODULUS, START, HistoryStore, Position, Totals

PIECE = 1_000_000
"""Rows in one comparison."""


class Reconciled(msgspec.Struct, frozen=True):
    """Result of a comparison."""

    rows: int
    busy_us: int
    more: bool
    """Whether the comparison ended after the requested number of pieces and attempts are left."""


def reconcile(
    history: HistoryStore,
    lake: Warehouse,
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
    seen = lake.table(ATTEMPTS).state()
    reader = read(history.reader(lake.reader))
    position = START if reader is None or reader.checked is None else reader.checked
    end = max(position, store_position(seen, store_id))
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
        on_rows(in_store.rows)
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
    condition, by the formula of the stores. Skip row groups that cannot contain any. Raise
    BrokenLake for a missing or damaged file."""
    columns = list(ledger.COLUMNS[1:])
    try:
        found = rows.to_table(columns=columns, filter=condition)
    except (FileNotFoundError, pa.ArrowInvalid, OSError) as error:
        raise BrokenLake(f"bronze.attempts: a file cannot be read: {error}; restore it") from error
    position = ["xid", "seq"]
    lost = erased.filter(condition).join(found.select(position), position, join_type="left anti")
    found = pa.concat_tables([found, lost.select(columns).cast(found.schema)])
    started, finished = (found[name].cast(pa.int64()) for name in ("started_at", "finished_at"))
    prints = pc.add(pc.multiply(_modulo(finished), 31), pc.multiply(_modulo(found["seq"]), 17))
    prints = _modulo(pc.add(prints, found["version"].cast(pa.int64())))
    return Totals(
        found.num_rows,
        pc.sum(pc.subtract(finished, started)).as_py() or 0,
        pc.sum(prints).as_py() or 0,
    )


def _modulo(numbers: pa.ChunkedArray) -> pa.ChunkedArray:
    # Arrow and the stores both round the quotients of integers towards zero.
    quotients = pc.divide(numbers, FINGERPRINT_MODULUS)
    return pc.subtract(numbers, pc.multiply(quotients, FINGERPRINT_MODULUS))


def _lies_between(store_id: str, after: Position, until: Position) -> pc.Expression:
    xid, seq = pc.field("xid"), pc.field("seq")
    is_behind = (xid > after.xid) | ((xid == after.xid) & (seq > after.seq))
    is_in = (xid < until.xid) | ((xid == until.xid) & (seq <= until.seq))
    return (pc.field("store_id") == store_id) & is_behind & is_in
