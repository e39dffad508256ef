"""The arguments of a batch of tasks as JSON objects, from the columns that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from fairlead.core.payload import COMPRESS_ABOVE, pack
from fairlead.core.values import is_finite
from fairlead.model import PayloadFormat
from fairlead.pipeline.bulk.checks import Problems
from fairlead.pipeline.bulk.options import BulkOptions

_encode = msgspec.json.Encoder().encode


def encoded(batch: pa.RecordBatch, options: BulkOptions, problems: Problems) -> list[bytes]:
    """Return the JSON object of each row, as a submit writes it. Values of refused rows are unused.

    The arguments come from `args_columns` (the names of the columns), or from the column `args`
    (its fields or keys), or from `payload` (JSON text, stored without white space). Without these
    columns the tasks have no arguments.
    """
    found = _found(batch, options, problems)
    for row, payload in enumerate(found):
        if len(payload) > options.payload_limit:
            name = options.task or (batch.column("name").cast("binary")[row].as_py() or b"").decode(
                errors="replace"
            )
            problems.note(
                row,
                "payload",
                payload[:100],
                f"task {name!r}: its payload has {len(payload):,} bytes, more than"
                f" {options.payload_limit:,}; store large data elsewhere and submit a reference, or"
                " raise payload_limit",
            )
    return found


def packed(payloads: Sequence[bytes]) -> tuple[pa.Array, pa.Array]:
    """Return the payloads as they are stored, and their formats."""
    if all(len(payload) <= COMPRESS_ABOVE for payload in payloads):
        return pa.array(payloads, pa.binary()), pa.repeat(PayloadFormat.JSON.value, len(payloads))
    stored, formats = zip(*map(pack, payloads), strict=True)
    return pa.array(stored, pa.binary()), pa.array(map(str, formats), pa.string())


def _found(batch: pa.RecordBatch, options: BulkOptions, problems: Problems) -> list[bytes]:
    if options.args_columns:
        columns = [_values(name, batch.column(name), problems) for name in options.args_columns]
        return _objects(options.args_columns, columns)
    if "args" in batch.schema.names:
        args = batch.column("args")
        for row in pc.indices_nonzero(args.is_null()).to_pylist():
            problems.note(row, "args", None, "args None: give a struct or a map")
        if t.is_struct(args.type) and args.type.num_fields:
            names = [field.name for field in args.type]
            return _objects(names, [_values("args", column, problems) for column in args.flatten()])
        return [_encode(value) for value in _values("args", args, problems)]
    if "payload" in batch.schema.names:
        texts = batch.column("payload").cast("binary").to_pylist()
        return [_object(row, text, problems) for row, text in enumerate(texts)]
    return [b"{}"] * batch.num_rows


def _objects(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[bytes]:
    return [_encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def _object(row: int, text: bytes | None, problems: Problems) -> bytes:
    if text is None:
        problems.note(row, "payload", text, "payload None: give a JSON object")
        return b""
    try:
        compact = msgspec.json.format(text, indent=-1)
        msgspec.json.decode(compact)  # also refuses numbers and escapes that no handler could read
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problems.note(row, "payload", text, f"payload: {error}")
        return b""
    if not compact.startswith(b"{"):
        problems.note(row, "payload", text, "payload: not a JSON object")
    return compact


def _values(column: str, values: pa.Array, problems: Problems) -> list[Any]:
    """Return the values as Python objects that JSON can carry; refuse rows with other values."""
    is_number = t.is_integer(values.type) or t.is_floating(values.type)
    try:
        # NumPy is ten times faster, and has the same values as Python; only a null among numbers
        # would become NaN.
        found: list[Any] = (
            values.to_numpy(zero_copy_only=False).tolist()
            if t.is_string(values.type) or (is_number and not values.null_count)
            else values.to_pylist(maps_as_pydicts="strict")
        )
        _encode(found)
        # Only types with floats inside hold what JSON changes without an error.
        if t.is_floating(values.type):
            is_kept = pc.all(pc.is_finite(values.drop_null())).as_py()
        else:
            is_kept = not t.is_nested(values.type) or is_finite(found)
        if is_kept:
            return found
    except (pa.ArrowException, ValueError, TypeError, OverflowError, KeyError):
        pass
    return [_one(column, value, row, problems) for row, value in enumerate(values)]


def _one(column: str, scalar: pa.Scalar, row: int, problems: Problems) -> Any:
    number = getattr(scalar, "value", None)
    # Show a value that Python cannot hold by its number, if it has one, and its type.
    value: Any = f"{number} {scalar.type}" if isinstance(number, int) else str(scalar.type)
    try:
        value = scalar.as_py(maps_as_pydicts="strict")
        _encode(value)
        if is_finite(value):
            return value
        reason = "JSON has no NaN or infinity; use a text, or null"
    except (ValueError, TypeError, OverflowError, KeyError) as error:
        reason = f"cannot be written as JSON ({error})"
    problems.note(row, column, value, f"{column}: {reason}")
    return None
