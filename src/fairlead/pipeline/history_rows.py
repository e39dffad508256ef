"""Rows of a store's history as tables of the lake."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.schema import SCHEMA_VERSION, Table
from fairlead.ports.history import ATTEMPT_FIELDS, EVENT_FIELDS, SUBMITTED_FIELDS
from fairlead.ports.statements import Row

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_ERROR = 500
"""Maximum number of characters of an error's text."""

_DIGITS = re.compile(r"\d+")


RECORDED_FIELDS = (
    *(name for name in ATTEMPT_FIELDS if name != "unique_key"),
    "unique_key_hash",
    "error_fp",
)
"""Columns of bronze.attempts that a store records."""


def recorded(rows: Sequence[Row]) -> dict[str, Sequence[Any]]:
    """Return RECORDED_FIELDS of rows of ATTEMPT_FIELDS, as columns by name."""
    across = zip(*rows, strict=True) if rows else [()] * len(ATTEMPT_FIELDS)
    columns: dict[str, Sequence[Any]] = dict(zip(ATTEMPT_FIELDS, across, strict=True))
    columns["unique_key_hash"] = tuple(
        None if k is None else zlib.crc32(k.encode()) for k in columns["unique_key"]
    )
    columns["error_fp"] = tuple(map(fingerprint, columns["error_type"], columns["error_text"]))
    columns["error_text"] = tuple(
        None if text is None else text[:LONGEST_ERROR] for text in columns["error_text"]
    )
    return {name: columns[name] for name in RECORDED_FIELDS}


def attempts_table(store_id: str, rows: Sequence[Row], exported_at: int) -> pa.Table:
    """Return rows of ATTEMPT_FIELDS as bronze.attempts."""
    return recorded_table(store_id, recorded(rows), len(rows), exported_at)


def recorded_table(
    store_id: str, columns: Mapping[str, Sequence[Any]], count: int, exported_at: int
) -> pa.Table:
    """Return `count` attempts as bronze.attempts, from columns by name (RECORDED_FIELDS)."""
    return _table(ATTEMPTS, columns, count, store_id, exported_at)


def events_table(store_id: str, rows: Sequence[Row], exported_at: int) -> pa.Table:
    """Return rows of EVENT_FIELDS as bronze.events."""
    return _table(
        EVENTS,
        dict(zip(EVENT_FIELDS, zip(*rows, strict=True), strict=True)),
        len(rows),
        store_id,
        exported_at,
    )


def submitted_table(store_id: str, rows: Sequence[Row], exported_at: int) -> pa.Table:
    """Return rows of SUBMITTED_FIELDS as bronze.events of kind `submitted`."""
    columns = dict(zip(SUBMITTED_FIELDS, zip(*rows, strict=True), strict=True))
    del columns["position"]
    same = {"version": 1, "kind": "submitted", "xid": 0, "seq": 0}
    columns |= {name: (value,) * len(rows) for name, value in same.items()}
    return _table(EVENTS, columns, len(rows), store_id, exported_at)


def fingerprint(error_type: str | None, error_text: str | None) -> int | None:
    """Return a fingerprint that ignores the numbers in an error; None without an error."""
    if error_type is None:
        return None
    first_line = (error_text or "").partition("\n")[0][:LONGEST_ERROR]
    return zlib.crc32(f"{error_type}: {_DIGITS.sub('#', first_line)}".encode(errors="replace"))


def _table(
    table: Table, columns: Mapping[str, Sequence[Any]], count: int, store_id: str, exported_at: int
) -> pa.Table:
    """Return columns by name as an Arrow table; columns that a store does not record are null."""
    import pyarrow as pa

    same = {"store_id": store_id, "exported_at": exported_at, "schema_version": SCHEMA_VERSION}
    schema = table.arrow()
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if values is None:
            arrays.append(
                pa.repeat(pa.scalar(same.get(field.name), _plain(field.type)), count).cast(
                    field.type
                )
            )
        else:
            arrays.append(pa.array(values, _plain(field.type)).cast(field.type))
    return pa.table(arrays, schema=schema)


def _plain(type: pa.DataType) -> pa.DataType:
    """Return the type of the values that a store has; its instants are integers."""
    import pyarrow as pa

    return pa.int64() if pa.types.is_timestamp(type) else type
