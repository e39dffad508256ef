"""The columns of a task that a submit gives, listed once: statements, parameters and COPY rows of
both dialects are made from this list."""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple


class Column(NamedTuple):
    """A column of `fairlead_tasks` with the name of the field of `NewTask`."""

    name: str
    type: str
    """Type of PostgreSQL."""
    may_be_null: bool = False


COLUMNS = (
    Column("id", "uuid"),
    Column("queue", "text"),
    Column("partition", "smallint"),
    Column("name", "text"),
    Column("priority", "smallint"),
    Column("fairness_key", "text"),
    Column("weight", "double precision"),
    Column("ordering_key", "text", may_be_null=True),
    Column("unique_key", "text", may_be_null=True),
    Column("keep_result", "boolean"),
    Column("submitted_at", "bigint"),
    Column("run_at", "bigint"),
    Column("context", "text", may_be_null=True),
    Column("payload_format", "text"),
    Column("payload", "bytea"),
)

fields_of = attrgetter(*(column.name for column in COLUMNS))
"""Return the values of a new task in the order of the columns."""


def with_columns(sql: str, first: int, mark: str = "$") -> str:
    """Return a statement with the columns in place of `{columns}`, and with their parameters, of
    which `first` is the number of the first one, in place of `{parameters}`, or typed for
    PostgreSQL in place of `{values}` and `{arrays}`. In arrays an empty text stands for NULL, which
    `{given}` brings back."""
    numbered = [(f"{mark}{number}", column) for number, column in enumerate(COLUMNS, first)]
    parts = {
        "columns": [column.name for column in COLUMNS],
        "parameters": [parameter for parameter, _ in numbered],
        "values": [f"{parameter}::{column.type}" for parameter, column in numbered],
        "arrays": [f"{parameter}::{column.type}[]" for parameter, column in numbered],
        "given": [
            f"nullif({column.name}, '') AS {column.name}" if column.may_be_null else column.name
            for column in COLUMNS
        ],
    }
    for name, texts in parts.items():
        sql = sql.replace(f"{{{name}}}", ", ".join(texts))
    return sql
