"""Arrow batches as rows of PostgreSQL's binary COPY format, at about half a microsecond a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_FORMATS = {
    "int16": ">i2",
    "int64": ">i8",
    "double": ">f8",
    "bool": "i1",
    "fixed_size_binary[16]": "V16",
}


def binary_rows(batch: pa.RecordBatch, job: int, attempt: bytes) -> bytes:
    """Return the rows without header and trailer, one after the other; see `row_bytes`."""
    rows = row_bytes(batch, job, attempt)
    if not len(rows):
        return b""
    _, offsets, joined = rows.buffers()
    rows_end = int(np.frombuffer(offsets, "i4")[len(rows)])
    return bytes(joined.slice(0, rows_end).to_pybytes())


def row_bytes(batch: pa.RecordBatch, job: int, attempt: bytes) -> pa.Array:
    """Return each row as bytes: job, attempt (16 bytes), then the columns of the batch. Columns of
    fixed size without nulls come first, as in `columns.STAGED`."""
    fixed = [
        field.name for field in batch.schema if not field.nullable and _FORMATS.get(str(field.type))
    ]
    parts = [_heads(batch, fixed, job, attempt)]
    for name in batch.schema.names[len(fixed) :]:
        values = _bytes(batch.column(name))
        lengths = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False)
        parts += [_elements_as_bytes(lengths.astype(">i4")), values.fill_null(b"")]
    # Join the fields row by row in the order in which the server reads them.
    return pc.binary_join_element_wise(*parts, b"").cast(pa.binary())


def _heads(batch: pa.RecordBatch, fixed: list[str], job: int, attempt: bytes) -> pa.Array:
    """Return the number of fields of each row, and the fields of fixed size with their lengths."""
    formats = {name: np.dtype(_FORMATS[str(batch.schema.field(name).type)]) for name in fixed}
    formats = {"job": np.dtype(">i8"), "attempt": np.dtype("V16"), **formats}
    fields: list[Any] = [("fields", ">i2")]
    for name, format in formats.items():
        fields += [(f"{name} length", ">i4"), (name, format)]
    heads = np.zeros(batch.num_rows, dtype=fields)
    heads["fields"] = 2 + batch.num_columns
    for name, format in formats.items():
        heads[f"{name} length"] = format.itemsize
    heads["job"], heads["attempt"] = job, np.void(attempt)
    for name in fixed:
        column = batch.column(name)
        if formats[name].kind == "V":
            heads[name] = np.frombuffer(column.buffers()[1], formats[name])[column.offset :][
                : len(column)
            ]
        else:
            heads[name] = column.to_numpy(zero_copy_only=False)
    return _elements_as_bytes(heads)


def _elements_as_bytes(values: npt.NDArray[np.void]) -> pa.Array:
    """Return the bytes of each element."""
    size = pa.binary(values.dtype.itemsize)
    buffer = pa.py_buffer(values.tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(size, len(values), [None, buffer]).cast(pa.binary())


def _bytes(values: pa.Array) -> pa.Array:
    """Return each value as bytes: texts in UTF-8, numbers in big-endian order."""
    if not pa.types.is_int64(values.type):
        return values.cast(pa.binary())
    whole = _elements_as_bytes(values.fill_null(0).to_numpy().astype(">i8"))
    return pc.if_else(values.is_valid(), whole, pa.scalar(None, pa.binary()))
