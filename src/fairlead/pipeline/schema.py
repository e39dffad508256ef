"""The declaration of a table, in the header of its model: the source of its Arrow schema, its Spark
schema, its checks and its page of the data dictionary."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class Column(NamedTuple):
    """One column. `type` is one of the types in `Table.arrow`, by its name in SQL. Instants are UTC
    with microseconds; durations are `bigint` with a name that ends in `_us`."""

    name: str
    type: str
    doc: str
    nullable: bool = False


class Refusal(NamedTuple):
    """A rule for the rows of a table: a row that meets the condition goes to quarantine."""

    column: str
    condition: str
    """Condition in the SQL of Spark and DuckDB."""
    reason: str


class Table(NamedTuple):
    """A table of the lake: `key` identifies a row, and the hour or date of the column `instant` is
    its partition."""

    name: str
    doc: str
    key: tuple[str, ...]
    instant: str
    columns: tuple[Column, ...]
    by: str = "hour"
    """Partitioned by "hour" or by "date" of `instant`, UTC."""
    refusals: tuple[Refusal, ...] = ()
    """Rules in order. A row goes to quarantine for the first rule that it breaks."""
    query: str = ""
    """Statement of Spark SQL that computes the rows; empty for a table that no model computes."""

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order."""
        return [column.name for column in self.columns]

    def arrow(self) -> pa.Schema:
        """Return the schema for pyarrow."""
        import pyarrow as pa

        types = {
            "string": pa.string(),
            "bigint": pa.int64(),
            "int": pa.int32(),
            "smallint": pa.int16(),
            "tinyint": pa.int8(),
            "double": pa.float64(),
            "boolean": pa.bool_(),
            "date": pa.date32(),
            "timestamp": pa.timestamp("us", tz="UTC"),
            "decimal(18,6)": pa.decimal128(18, 6),
        }
        return pa.schema([pa.field(c.name, types[c.type], c.nullable) for c in self.columns])

    def spark(self) -> StructType:
        """Return the schema for Spark. All columns are nullable there, because Spark does not check
        nulls; `quality` finds nulls in attempts."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(pa.schema([field.with_nullable(True) for field in self.arrow()]))


def columns_in(text: str) -> tuple[Column, ...]:
    """Return columns from a text that lists them.

    A line of the text has the name, the type, with a ? if the value may be null, and the meaning; a
    line that is indented further continues the meaning.
    """
    found = []
    for line in re.split(r"\n(?! )", dedent(text).strip()):
        name, type_, doc = line.split(maxsplit=2)
        found.append(Column(name, type_.rstrip("?"), " ".join(doc.split()), type_.endswith("?")))
    return tuple(found)


def declared(text: str) -> Table:
    """Return the table of a model: a header of comments, and a query.

    A line of the header begins a field, and lines that are indented continue it: `table`, `doc`,
    `key`, `partition` ("hour of" or "date of" an instant) and `columns` (see `columns_in`). In
    bronze, `required` names columns that, like texts, must have a value in every row, and `refused`
    has a line "column if condition: reason" for each rule. `given` tells people what the query
    needs besides tables.
    """
    lines = text.splitlines(keepends=True)
    end = next((n for n, line in enumerate(lines) if not line.startswith("--")), len(lines))
    header = "".join(line.removeprefix("--").removeprefix(" ") for line in lines[:end])
    fields = dict(field.split(":", 1) for field in re.split(r"\n(?! )", header.strip()))
    columns = columns_in(fields["columns"])
    by, _, instant = fields["partition"].split()
    # A missing value comes first, because a comparison with null breaks no rule.
    texts = [c.name for c in columns if c.type == "string" and not c.nullable]
    needed = [*texts, *_words(fields["required"])] if "required" in fields else []
    refusals = []
    for value in needed:
        column = value.rpartition(".")[2]
        refusals.append(Refusal(column, f"{value} IS NULL", f"{column} is missing"))
    for rule in re.split(r"\n(?! {3})", fields.get("refused", "").strip()):
        if found := re.fullmatch(r"(\w+) if (.*?): (.*)", " ".join(rule.split())):
            refusals.append(Refusal(*found.groups()))
    return Table(
        fields["table"].strip(),
        " ".join(fields["doc"].split()),
        tuple(_words(fields["key"])),
        instant,
        columns,
        by,
        refusals=tuple(refusals),
        query="".join(lines[end:]).strip(),
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]
