"""Conversion of a store's rows, and of the Arrow arrays of drivers, to the columns of a read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from fairlead.core.payload import unpack
from fairlead.pipeline.schema import Table

_FORMAT = "payload_format"


def fetched(columns: Sequence[str]) -> list[str]:
    """Return the names to read from the store: a payload comes with its format."""
    return [*columns, _FORMAT] if "payload" in columns else list(columns)


def arrow_schema(table: Table, columns: Sequence[str]) -> pa.Schema:
    """Return the schema of the chosen columns, in their order."""
    every = table.arrow()
    return pa.schema([every.field(name) for name in columns])


def from_rows(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return one batch of at least one row with the columns of `fetched`; instants are
    microseconds."""
    return from_arrays(list(zip(*rows, strict=True)), schema)


def from_arrays(arrays: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return one batch of the columns of `fetched`, each a sequence or an Arrow array, with the
    schema's types."""
    named = dict(zip(fetched(schema.names), arrays, strict=True))
    if "payload" in named:
        named["payload"] = _texts(named["payload"], named[_FORMAT])
    return pa.RecordBatch.from_arrays(
        [_typed(named[field.name], field.type) for field in schema], schema=schema
    )


def _typed(values: Any, type: pa.DataType) -> pa.Array:
    return values.cast(type) if isinstance(values, pa.Array) else pa.array(values, type)


def _texts(payloads: Iterable[Any], formats: Iterable[Any]) -> list[str]:
    return [
        unpack(_plain(payload), _plain(format)).decode()
        for payload, format in zip(payloads, formats, strict=True)
    ]


def _plain(value: Any) -> Any:
    return value.as_py() if isinstance(value, pa.Scalar) else value
