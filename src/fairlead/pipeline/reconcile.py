"""Reconciliation of the lake with the store. The store may delete only attempts that agree."""

from __future__ import annotations

import msgspec

from fairlead.backends.sql.history import SqlHistory
from fairlead.backends.sql.sql_file import load
from fairlead.clock import Clock
from fairlead.model.history import FINGERPRINT_MODULUS, START, Position, Totals
from fairlead.pipeline import ledger
from fairlead.pipeline.cursors import attempts_cursor
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.reading.snapshots import Seen, Snapshots
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.warehouse import Warehouse

PIECE = 1_000_000
"""Rows in one comparison."""

_STATEMENTS = load("reconcile.sql", __package__)


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
    cursors = lake.table(ATTEMPTS).state()
    reader = read(history.reader(lake.reader))
    position = START if reader is None or reader.checked is None else reader.checked
    end = max(position, attempts_cursor(cursors, store_id))
    if reader is None and position < end:
        raise CheckFailed(
            f"the store has no reader {lake.reader!r}; `fairlead pipeline ingest` registers it"
        )
    # Go back a day, because clocks may differ by less than a day.
    since = 0 if reader is None else (reader.checked_at or 0) - DAY_US
    rows = busy_us = done = 0
    differences = []
    with Frames(lake, _exported_since(lake, since)) as tables:
        while position < end and done != pieces:
            until = read(history.position_after(position, end, piece))
            in_store: Totals = read(history.attempts_between(position, until))
            in_lake = _totals_between(tables, store_id, position, until)
            if in_lake != in_store:
                named = zip(Totals._fields, in_store, in_lake, strict=True)
                texts = [
                    f"{n} {a:,} in the store and {b:,} in the lake" for n, a, b in named if a != b
                ]
                differences.append(f"{position} to {until}: {', '.join(texts)}")
            rows, busy_us = rows + in_store.rows, busy_us + in_store.busy_us
            done, position = done + 1, until
    if differences:
        raise CheckFailed(f"the lake differs from the store {store_id}. " + ". ".join(differences))
    if reader is not None:
        history.database.run(history.checked(lake.reader, position, clock.now()))
        ledger.settle(lake, store_id, position, clock.now())
    return Reconciled(rows, busy_us, position < end)


def _exported_since(lake: Warehouse, instant: int) -> Seen:
    """Return the ledger, and all files of attempts that may have rows exported at or after an
    instant (microseconds since the epoch)."""
    # The ledger last: it gets its rows before they leave the attempts.
    seen = Snapshots(lake).read([ATTEMPTS, ledger.LEDGER])
    tables = dict(seen.tables)
    if (at := tables.get(ATTEMPTS)) is not None:
        recent = [f for f in at.files if f.span.get("exported_at", (0, instant))[1] >= instant]
        tables[ATTEMPTS] = at._replace(files=recent)
    return seen._replace(tables=tables)


def _totals_between(tables: Frames, store_id: str, after: Position, until: Position) -> Totals:
    """Return the totals of the attempts, and of the erased ones that are not among them, by the
    formula of the stores. Raise BrokenLake for a missing or damaged file."""
    given = {
        "store_id": store_id,
        "modulus": FINGERPRINT_MODULUS,
        "after_xid": after.xid,
        "after_seq": after.seq,
        "until_xid": until.xid,
        "until_seq": until.seq,
    }
    [row] = tables.totals(_STATEMENTS["totals"], given=given)
    return Totals(**row)
