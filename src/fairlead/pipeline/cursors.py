"""Cursors of bronze.attempts, in the properties of the table. One commit adds the files of a batch
and moves the cursors."""

from __future__ import annotations

from fairlead.model.history import START, Position
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.warehouse.table import TableState


def attempts_cursor(seen: TableState, store_id: str) -> Position:
    """Return the position up to which the lake has all attempts of the store. Raise BrokenLake if
    the cursor cannot be read."""
    name = f"{store_id}/attempts"
    try:
        position = Position.of(seen.cursors.get(name, str(START)))
    except ValueError as error:
        raise broken_cursor(name, error) from error
    if not 0 <= min(position) <= max(position) < 1 << 63:
        raise broken_cursor(name, f"{position} is out of range")
    return position


def broken_cursor(name: str, error: object) -> BrokenLake:
    """Return the error of a cursor that cannot be read."""
    return BrokenLake(
        f"the cursor {name!r} of bronze.attempts cannot be read: {error}; restore the"
        " catalog of the lake"
    )
