"""Rows of a store's history as tables of the lake."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairlead.model.history import ATTEMPT_FIELDS, EVENT_FIELDS, SUBMITTED_FIELDS
from fairlead.pipeline.models import ATTEMPTS, EVENTS
from fairlead.pipeline.schema import Table
from fairlead.ports.statements import Row

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_ERROR = 500
"""Maximum number of characters of an error's text."""

_DIGITS = re.compile(r"\d+")


def attempts_table(store_id: str, rows: Sequence[Row], exported_at: int) -> pa.Table:
    """Return rows of ATTEMPT_FIELDS as bronze.attempts."""
    columns = _by_column(ATTEMPT_FIELDS, rows)
    columns["unique_key_hash"] = tuple(
        None if k is None else zlib.crc32(k.encode()) for k in columns["unique_key"]
    )
    columns["error_fp"] = tuple(map(fingerprint, columns["error_type"], columns["error_text"]))
    columns["error_text"] = tuple(
        None if text is None else text[:LONGEST_ERROR] for text in columns["error_text"]
    )
    return _table(store_id, columns, exported_at, ATTEMPTS)


def events_table(store_id: str, rows: Sequence[Row], exported_at: int) -> pa.Table:
    """Return rows of EVENT_FIELDS as bronze.events."""
    return _table(store_id, _by_column(EVENT_FIELDS, rows), exported_at, EVENTS)


def submitted_table(store_id: str, rows: Sequence[Row], exported_at: int) -> pa.Table:
    """Return rows of SUBMITTED_FIELDS as bronze.events of kind `submitted`."""
    columns = _by_column(SUBMITTED_FIELDS, rows)
    del columns["position"]
    same = {"version": 1, "kind": "submitted", "xid": 0, "seq": 0}
    return _table(store_id, columns, exported_at, EVENTS, same)


def fingerprint(error_type: str | None, error_text: str | None) -> int | None:
    """Return a fingerprint that ignores the numbers in an error; None without an error."""
    if error_type is None:
        return None
    first_line = (error_text or "").partition("\n")[0][:LONGEST_ERROR]
    return zlib.crc32(f"{error_type}: {_DIGITS.sub('#', first_line)}".encode(errors="replace"))


def _by_column(fields: Sequence[str], rows: Sequence[Row]) -> dict[str, Sequence[Any]]:
    """Return rows of these fields as columns by name."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(fields)
    return dict(zip(fields, columns, strict=True))


def _table(
    store_id: str,
    columns: Mapping[str, Sequence[Any]],
    exported_at: int,
    table: Table,
    same: Mapping[str, Any] = {},
) -> pa.Table:
    """Return columns by name as an Arrow table; columns that a store does not record are null.

    same: values of further columns that all rows share.
    """
    import pyarrow as pa

    count = len(columns["task_id"])
    own = {"store_id": store_id, "exported_at": exported_at}
    constants = {**own, **same}
    schema = table.arrow()
    arrays = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name in columns:
            # Integers become instants faster by a cast.
            plain = pa.int64() if pa.types.is_timestamp(kind) else kind
            arrays.append(pa.array(columns[name], plain).cast(kind))
        else:
            arrays.append(pa.repeat(pa.scalar(constants.get(name), kind), count))
    return pa.table(arrays, schema=schema)
