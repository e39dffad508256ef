"""Rows of one table without a key: omit the rows of the key, and redact its mentions elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fairlead.pipeline.bronze import QUARANTINE
from fairlead.pipeline.definitions.cost import COST
from fairlead.pipeline.definitions.incidents import INCIDENTS
from fairlead.pipeline.definitions.latency import LATENCY, LATENCY_HIST
from fairlead.pipeline.definitions.windows import ALL
from fairlead.pipeline.erase.wanted import ERASED, KEY_COLUMNS, TEXT_COLUMNS, Wanted
from fairlead.pipeline.schema import Table

TOGETHER = (LATENCY_HIST.name, LATENCY.name, COST.name, INCIDENTS.name)
"""Tables in which '*' means all keys."""


class Without(NamedTuple):
    """The remaining rows, the omitted rows, and how many of the remaining rows were changed."""

    kept: pa.Table
    erased: pa.Table
    redacted: int


def columns_of(table: Table, names: Collection[str]) -> list[str]:
    """Return the columns in `names` that the table has, in the order of the table."""
    return [name for name in table.column_names if name in names]


def owner_of(table: Table) -> str | None:
    """Return the column with the key of a row; None if rows have no key."""
    if table.name == INCIDENTS.name:
        return "subject"
    return "fairness_key" if "fairness_key" in table.column_names else None


def is_of(table: Table, rows: pa.Table, wanted: Wanted) -> pa.ChunkedArray:
    """Return a mask of the rows of the key; `rows` may have only some of the table's columns."""
    nothing = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    if table.name == QUARANTINE.name:
        # Parse only rows that contain the key.
        mask = [
            any(form in raw for form in wanted.forms) and wanted.is_in_json(raw)
            for raw in rows["raw"].to_pylist()
        ]
        return pa.chunked_array([pa.array(mask, pa.bool_())])
    owner = owner_of(table)
    if owner is None:
        return nothing
    names = [name for name in wanted.names if name != ALL or table.name not in TOGETHER]
    return pc.fill_null(pc.is_in(rows[owner], value_set=pa.array(names, pa.string())), False)


def mentions(table: Table, rows: pa.Table, wanted: Wanted) -> pa.ChunkedArray:
    """Return a mask of the rows that mention the key, in a column of keys or in free text."""
    found = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    for name in columns_of(table, KEY_COLUMNS):
        if name != owner_of(table):
            found = pc.or_(found, _holds(rows[name], wanted))
    for name in columns_of(table, TEXT_COLUMNS):
        found = pc.or_(found, _in_text(rows[name], wanted))
    return found


def without(
    table: Table, rows: pa.Table, wanted: Wanted, to_clear: pa.ChunkedArray | None = None
) -> Without:
    """Return the rows without the key. Set `error_text` to null in the rows of the mask
    `to_clear`."""
    is_own = is_of(table, rows, wanted)
    kept, erased = rows.filter(pc.invert(is_own)), rows.filter(is_own)
    changed = mentions(table, kept, wanted)
    if to_clear is not None:
        cleared = to_clear.filter(pc.invert(is_own))
        changed = pc.or_(changed, cleared)
        kept = _replaced(kept, "error_text", pc.if_else(cleared, None, kept["error_text"]))
    for name in columns_of(table, KEY_COLUMNS):
        if name != owner_of(table):
            names = _holds(kept[name], wanted)
            kept = _replaced(kept, name, pc.if_else(names, ERASED, kept[name]))
    for name in columns_of(table, TEXT_COLUMNS):
        if pc.any(_in_text(kept[name], wanted)).as_py():
            texts = kept[name].to_pylist()
            redacted = [text and wanted.redacted(text) for text in texts]
            kept = _replaced(kept, name, pa.array(redacted, pa.string()))
    return Without(kept, erased, int(pc.sum(changed).as_py() or 0))


def _in_text(texts: pa.ChunkedArray, wanted: Wanted) -> pa.ChunkedArray:
    near = pa.chunked_array([pa.repeat(pa.scalar(False), len(texts))])
    for form in wanted.forms:
        near = pc.or_(near, pc.fill_null(pc.match_substring(texts, form), False))
    if not pc.any(near).as_py():
        return near
    # Arrow's regular expressions have no look-behind: check the remaining rows one by one.
    pairs = zip(near.to_pylist(), texts.to_pylist(), strict=True)
    return pa.chunked_array(
        [pa.array([n and wanted.mention.search(text) is not None for n, text in pairs], pa.bool_())]
    )


def _holds(keys: pa.ChunkedArray, wanted: Wanted) -> pa.ChunkedArray:
    """Return a mask of the values that are the key."""
    return pc.fill_null(
        pc.is_in(keys, value_set=pa.array(sorted(wanted.names), pa.string())), False
    )


def _replaced(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), values)
