"""The columns of a DataFrame that describe a task, and the columns of a staged row."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyarrow import types as t

from fairlead.errors import InvalidTask
from fairlead.pipeline.bulk.declared_types import ORDER, PLACE, PROBLEM, TYPES
from fairlead.pipeline.bulk.options import BulkOptions


def _is_text(type_: pa.DataType) -> bool:
    return bool(t.is_string(type_) or t.is_large_string(type_))


_TEXT = (_is_text, "string")
_TYPES: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "name": _TEXT,
    "queue": _TEXT,
    "payload": _TEXT,
    "args": (
        lambda type_: t.is_struct(type_) or (t.is_map(type_) and _is_text(type_.key_type)),
        "a struct or a map with strings as keys",
    ),
    "priority": (t.is_integer, "a whole number"),
    "fairness_key": _TEXT,
    "weight": (
        lambda type_: t.is_integer(type_) or t.is_floating(type_) or t.is_decimal(type_),
        "a number",
    ),
    "ordering_key": _TEXT,
    "unique_key": _TEXT,
    "run_at": (
        lambda type_: t.is_timestamp(type_) and type_.tz is not None,
        "timestamp (an instant, not a local time)",
    ),
    "context": (
        lambda type_: t.is_map(type_) and _is_text(type_.key_type) and _is_text(type_.item_type),
        "map<string,string>",
    ),
}
"""Accepted types of each known column, and their description."""

KNOWN_COLUMNS = tuple(_TYPES)
"""Columns with a fixed meaning."""

TEXTS = tuple(name for name, type_ in _TYPES.items() if type_ is _TEXT)

STAGED = pa.schema(
    [
        pa.field("ordinal", pa.int64(), False),
        pa.field("id", pa.binary(16), False),
        pa.field("partition", pa.int16(), False),
        pa.field("priority", pa.int16(), False),
        pa.field("weight", pa.float64(), False),
        pa.field("keep_result", pa.bool_(), False),
        pa.field("queue", pa.string(), False),
        pa.field("name", pa.string(), False),
        pa.field("fairness_key", pa.string(), False),
        pa.field("ordering_key", pa.string()),
        pa.field("unique_key", pa.string()),
        pa.field("run_at", pa.int64()),
        pa.field("context", pa.string()),
        pa.field("payload_format", pa.string(), False),
        pa.field("payload", pa.binary(), False),
    ]
)
"""Columns of a staged row: the future task, checked and encoded."""


def check(schema: pa.Schema, options: BulkOptions) -> None:
    """Raise InvalidTask with all problems: columns that are unknown, missing, repeated or of a
    wrong type."""
    schema, wrong = _declared(schema, options)
    names, args = schema.names, options.args_columns
    known = known_columns(schema, options)
    wrong += [
        f"column {name} is there twice" for name in sorted(set(names)) if names.count(name) > 1
    ]
    wrong += [
        f"column {name} is missing (args_columns names it)" for name in args if name not in names
    ]
    wrong += [problem for field in schema for problem in _repeated(field.name, field.type)]
    expected = {*KNOWN_COLUMNS, PLACE, PROBLEM, ORDER, *args}
    if unknown := [name for name in names if name not in expected]:
        wrong.append(
            f"unknown column {', '.join(unknown)}; known: {', '.join(KNOWN_COLUMNS)}, and the"
            " columns that args_columns names"
        )
    for column, option in (("name", "task"), ("queue", "queue")):
        if column not in known and getattr(options, option) is None:
            wrong.append(f"column {column} is missing: add it, or give option {option}")
    sources: list[str] = [source for source in ("payload", "args") if source in known]
    sources += ["args_columns"] if args else []
    if len(sources) > 1:
        wrong.append(f"arguments are given twice, by {' and by '.join(sources)}: leave one out")
    if options.submission_id is None and "unique_key" not in known:
        wrong.append(
            "without option submission_id every row needs a unique_key, or a repeat would double"
            " its tasks"
        )
    for name in known:
        is_fit, fit = _TYPES[name]
        if names.count(name) == 1 and not is_fit(given := schema.field(name).type):
            wrong.append(f"column {name} has type {given}: use {fit}")
    if wrong:
        raise InvalidTask(f"these columns do not fit a bulk submit: {'; '.join(wrong)}")


def known_columns(schema: pa.Schema, options: BulkOptions) -> list[str]:
    """Return the columns that describe the task. A column named in args_columns is only an
    argument."""
    return [
        name for name in KNOWN_COLUMNS if name in schema.names and name not in options.args_columns
    ]


def _declared(schema: pa.Schema, options: BulkOptions) -> tuple[pa.Schema, list[str]]:
    """Return the schema with the types of the option `types`, and its problems."""
    wrong = []
    for name, type_ in options.types:
        for index in schema.get_all_field_indices(name):
            given = schema.field(index).type
            if not _is_text(given):
                wrong.append(f"types names column {name}, which has type {given}: leave it out")
            schema = schema.set(index, pa.field(name, TYPES[type_].arrow))
        if name not in schema.names:
            wrong.append(f"column {name} is missing (types names it)")
    return schema, wrong


def _repeated(path: str, type_: pa.DataType) -> Iterator[str]:
    """Yield a problem for each field that a struct, however deep inside, has twice."""
    fields = [type_.field(index) for index in range(type_.num_fields)]
    names = [field.name for field in fields] if t.is_struct(type_) else []
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"column {path} has the field {name} twice"
    for field in fields:
        yield from _repeated(f"{path}.{field.name}", field.type)
