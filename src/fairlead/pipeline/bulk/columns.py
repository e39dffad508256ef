"""The columns of a DataFrame that describe a task, and the columns of a staged row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fairlead.errors import InvalidTask
from fairlead.pipeline.bulk.declared_types import ORDER, PLACE, PROBLEM, arrow_type
from fairlead.pipeline.bulk.options import BulkOptions

if TYPE_CHECKING:
    import pyarrow as pa

KNOWN_COLUMNS = (
    "name",
    "queue",
    "payload",
    "args",
    "priority",
    "fairness_key",
    "weight",
    "ordering_key",
    "unique_key",
    "run_at",
    "context",
)
"""Columns with a fixed meaning."""

_ADDED = (PLACE, PROBLEM, ORDER)

TEXTS = ("name", "queue", "fairness_key", "ordering_key", "unique_key", "payload")


def check(schema: pa.Schema, options: BulkOptions) -> None:
    """Raise InvalidTask with all problems: columns that are unknown, missing, repeated or of a
    wrong type."""
    schema, wrong = _declared(schema, options)
    names = schema.names
    known = known_columns(schema, options)
    wrong += [
        f"column {name} is there twice" for name in sorted(set(names)) if names.count(name) > 1
    ]
    wrong += [
        f"column {name} is missing (args_columns names it)"
        for name in options.args_columns
        if name not in names
    ]
    wrong += [problem for field in schema for problem in _repeated(field.name, field.type)]
    unknown = [
        name for name in names if name not in (*KNOWN_COLUMNS, *_ADDED, *options.args_columns)
    ]
    if unknown:
        wrong.append(
            f"unknown column {', '.join(unknown)}; known: {', '.join(KNOWN_COLUMNS)}, and the"
            " columns that args_columns names"
        )
    for column, option, value in (
        ("name", "task", options.task),
        ("queue", "queue", options.queue),
    ):
        if column not in known and value is None:
            wrong.append(f"column {column} is missing: add it, or give option {option}")
    sources: list[str] = [source for source in ("payload", "args") if source in known]
    sources += ["args_columns"] if options.args_columns else []
    if len(sources) > 1:
        wrong.append(f"arguments are given twice, by {' and by '.join(sources)}: leave one out")
    if options.submission_id is None and "unique_key" not in known:
        wrong.append(
            "without option submission_id every row needs a unique_key, or a repeat would double"
            " its tasks"
        )
    for name in known:
        is_fit, fit = _types()[name]
        if names.count(name) == 1 and not is_fit(schema.field(name).type):
            wrong.append(f"column {name} has type {schema.field(name).type}: use {fit}")
    if wrong:
        raise InvalidTask(f"these columns do not fit a bulk submit: {'; '.join(wrong)}")


def _declared(schema: pa.Schema, options: BulkOptions) -> tuple[pa.Schema, list[str]]:
    """Return the schema with the types of the option `types`, and its problems."""
    import pyarrow as pa

    wrong = []
    for name, type_ in options.types:
        for index in schema.get_all_field_indices(name):
            given = schema.field(index).type
            if not (pa.types.is_string(given) or pa.types.is_large_string(given)):
                wrong.append(f"types names column {name}, which has type {given}: leave it out")
            schema = schema.set(index, pa.field(name, arrow_type(type_)))
        if name not in schema.names:
            wrong.append(f"column {name} is missing (types names it)")
    return schema, wrong


def _repeated(path: str, type_: pa.DataType) -> Iterator[str]:
    """Yield a problem for each field that a struct, however deep inside, has twice."""
    import pyarrow as pa

    fields = [type_.field(index) for index in range(type_.num_fields)]
    names = [field.name for field in fields] if pa.types.is_struct(type_) else []
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"column {path} has the field {name} twice"
    for field in fields:
        yield from _repeated(f"{path}.{field.name}", field.type)


def known_columns(schema: pa.Schema, options: BulkOptions) -> list[str]:
    """Return the columns that describe the task. A column named in args_columns is only an
    argument."""
    return [
        name for name in KNOWN_COLUMNS if name in schema.names and name not in options.args_columns
    ]


def staged() -> pa.Schema:
    """Return the columns of a staged row: the future task, checked and encoded."""
    import pyarrow as pa

    return pa.schema(
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


def _types() -> dict[str, tuple[Callable[[pa.DataType], bool], str]]:
    """Return the accepted types of each known column, and their description."""
    from pyarrow import types as t

    def is_text(given: pa.DataType) -> bool:
        return bool(t.is_string(given) or t.is_large_string(given))

    def is_object(given: pa.DataType) -> bool:
        return bool(t.is_struct(given) or (t.is_map(given) and is_text(given.key_type)))

    def is_number(given: pa.DataType) -> bool:
        return bool(t.is_integer(given) or t.is_floating(given) or t.is_decimal(given))

    def is_instant(given: pa.DataType) -> bool:
        return bool(t.is_timestamp(given) and given.tz is not None)

    def is_text_map(given: pa.DataType) -> bool:
        return bool(t.is_map(given) and is_text(given.key_type) and is_text(given.item_type))

    return {
        **dict.fromkeys(TEXTS, (is_text, "string")),
        "args": (is_object, "a struct or a map with strings as keys"),
        "priority": (t.is_integer, "a whole number"),
        "weight": (is_number, "a number"),
        "run_at": (is_instant, "timestamp (an instant, not a local time)"),
        "context": (is_text_map, "map<string,string>"),
    }
