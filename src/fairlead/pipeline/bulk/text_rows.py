"""Rows of CSV and JSON lines files as they are written, without inferred types.

A CSV file gives columns of text. A line of JSON gives the columns with a fixed meaning, and its
arguments as the JSON text that the line holds. Every row says its file and line. A row that cannot
be read says why, and the gate of rows refuses it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa

from fairlead.errors import ConfigurationError
from fairlead.pipeline.bulk.columns import KNOWN_COLUMNS
from fairlead.pipeline.bulk.declared_types import ORDER, PLACE, PROBLEM
from fairlead.pipeline.bulk.files import DataFile, check_unchanged
from fairlead.pipeline.bulk.options import reason_against
from fairlead.pipeline.errors import RefusedRows

_ROWS_AT_ONCE, _BYTES_AT_ONCE = 10_000, 16 << 20
_MOST_FIELD_BYTES = 1 << 30
_FIXED = tuple(name for name in KNOWN_COLUMNS if name not in ("payload", "args"))
_WHOLE_FLOAT = 1 << 53
_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read, _write = msgspec.json.decode, msgspec.json.encode

Row = dict[str, Any]

# CSV ----------------------------------------------------------------------------------------------


def csv_header(files: Sequence[DataFile]) -> list[str]:
    """Return the columns of CSV files: those of the header, then those that folders give. Raise
    ConfigurationError unless all files have the same ones, each once."""
    found: dict[tuple[str, ...], str] = {}
    for file in files:
        with _opened(file) as lines:
            try:
                header = next(csv.reader(lines, strict=True), [])
            except csv.Error as error:
                raise ConfigurationError(
                    f"{file.path}: the first line cannot be read: {error}"
                ) from error
        if not all(map(_is_unicode, header)):
            raise ConfigurationError(f"{file.path}: the first line is not UTF-8; convert the file")
        names = [*header, *(name for name, _ in file.partition)]
        if not header or not all(name.strip() for name in header):
            raise ConfigurationError(f"{file.path}: the first line must name every column")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigurationError(f"{file.path}: column {', '.join(twice)} is there twice")
        found.setdefault(tuple(sorted(names)), file.path)
    if len(found) > 1:
        raise ConfigurationError(
            f"{' and '.join(list(found.values())[:2])} have different columns: submit them one by"
            " one"
        )
    return names


def csv_rows(file: DataFile, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a CSV file: texts as they are written. Raise RefusedRows for a quote that
    is not closed, behind which rows have no known end, and for a file that changed meanwhile."""
    given = dict(file.partition)
    with _opened(file) as lines:
        reader = csv.reader(lines, strict=True)
        header = next(reader)
        while True:
            line = reader.line_num + 1
            row: Row = {PLACE: f"{file.name} line {line}"}
            try:
                fields = next(reader, None)
            except csv.Error as error:
                if "unexpected end of data" in str(error):
                    raise RefusedRows(
                        f"{file.path}: a quote after line {line - 1} is not closed"
                    ) from error
                yield row | {PROBLEM: f"(row)\n{error}"}
                continue
            if fields is None:
                check_unchanged(file)
                return
            if len(fields) == len(header):
                values = {**dict(zip(header, fields, strict=True)), **given}
                yield row | _csv_row({name: values[name] for name in columns})
            elif fields:
                reason = f"{len(fields)} fields, but the header has {len(header)}"
                yield row | {PROBLEM: f"(row)\n{reason}"}


def _csv_row(values: Mapping[str, str | None]) -> Row:
    row: Row = {}
    for name, text in values.items():
        if text and not _is_unicode(text):
            row[PROBLEM] = f"{name}\n{name} {text[:80]!a}: not valid Unicode"
        elif text or name not in KNOWN_COLUMNS:
            row[name] = text
    return row


def csv_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the types of the rows of a CSV file."""
    return pa.schema([(name, pa.string()) for name in (*columns, PLACE, PROBLEM)])


def _opened(file: DataFile) -> io.TextIOWrapper:
    csv.field_size_limit(_MOST_FIELD_BYTES)
    return open(file.path, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# JSON lines ---------------------------------------------------------------------------------------


_OWN_TYPES = {
    "priority": pa.int64(),
    "weight": pa.float64(),
    "run_at": pa.timestamp("us", "UTC"),
    "context": pa.map_(pa.string(), pa.string()),
    ORDER: pa.struct([("number", pa.float64()), ("text", pa.string())]),
}
JSON_SCHEMA = pa.schema(
    [
        (name, _OWN_TYPES.get(name, pa.string()))
        for name in (*_FIXED, "payload", PLACE, PROBLEM, ORDER)
    ]
)
"""Types of the rows of a JSON lines file."""


def json_rows(file: DataFile, args: Sequence[str], order_by: str | None) -> Iterator[Row]:
    """Yield the rows of a file with one JSON object a line. `args`: fields that are arguments;
    without any, the field `args` or `payload` holds them. Raise RefusedRows for a file that changed
    meanwhile."""
    with open(file.path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if text := line.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").strip():
                row: Row = {PLACE: f"{file.name} line {number}"}
                try:
                    yield row | _json_row(text, dict(file.partition), args, order_by)
                except _Refused as refused:
                    yield row | {PROBLEM: "\n".join(refused.args)}
    check_unchanged(file)


class _Refused(Exception):
    """A row that cannot be read: the column, and the reason."""


def _json_row(
    line: bytes, given: dict[str, str | None], args: Sequence[str], order_by: str | None
) -> Row:
    try:
        fields = _read_object(line)
        values = {name: _read(raw) for name, raw in fields.items() if name in _FIXED}
        order = None if order_by is None or order_by not in fields else _read(fields[order_by])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _Refused("(row)", f"not a JSON object on one line: {error}") from error
    for name, text in given.items():
        if name in fields:
            raise _Refused(name, f"{name} is given twice: by the line, and by the name of a folder")
        fields[name] = msgspec.Raw(_write(text))
        if name in _FIXED:
            values[name] = text
    row: Row = {}
    for name, value in values.items():
        if name in args or value is None:
            continue
        if name == "run_at":
            try:
                value = datetime.fromisoformat(value)
            except (TypeError, ValueError) as error:
                raise _Refused(name, f"run_at {value!r}: use an instant: {error}") from error
        if (reason := reason_against(name, value)) is not None:
            raise _Refused(name, reason)
        row[name] = list(value.items()) if name == "context" else value
    row["payload"] = _payload(fields, args)
    if order is not None:
        row[ORDER] = _position(order_by, order)
    return row


def _payload(fields: dict[str, msgspec.Raw], args: Sequence[str]) -> str:
    """Return the arguments as JSON, each value as the line holds it; a missing field is null."""
    sources = [name for name in ("payload", "args") if name in fields and name not in args]
    known = {*_FIXED, *args, *sources}
    if strange := [name for name in fields if name not in known]:
        raise _Refused(
            strange[0], f"unknown field {strange[0]}: name it among the arguments, or leave it out"
        )
    if len(sources) + bool(args) > 1:
        raise _Refused(sources[0], "arguments are given twice")
    if args:
        pairs = [_write(name) + b":" + bytes(fields.get(name, b"null")) for name in args]
        return (b"{" + b",".join(pairs) + b"}").decode()
    if not sources:
        return "{}"
    raw = bytes(fields[sources[0]])
    return str(_read(raw)) if raw.startswith(b'"') else raw.decode()


def _position(column: str | None, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _WHOLE_FLOAT:
        raise _Refused(str(column), f"order_by {value!r}: use a text, or a number up to 2^53")
    return {"number": float(value)}


# batches ------------------------------------------------------------------------------------------


def batches(rows: Iterator[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches."""
    kept: list[Row] = []
    size = 0
    for row in rows:
        kept.append(row)
        size += sum(len(value) for value in row.values() if isinstance(value, str))
        if len(kept) == _ROWS_AT_ONCE or size > _BYTES_AT_ONCE:
            yield pa.RecordBatch.from_pylist(kept, schema)
            kept, size = [], 0
    yield pa.RecordBatch.from_pylist(kept, schema)
