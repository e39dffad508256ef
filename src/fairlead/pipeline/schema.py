"""The columns of a table: the source of its Arrow schema, its Spark schema and its page of the data
dictionary."""

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
    together: bool = False
    """Whether the function that computes the table already groups the rows by partition, so that
    writing does not shuffle them."""

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


def columns_in(*parts: str | Column) -> tuple[Column, ...]:
    """Return columns from texts that list them, and other columns, in this order.

    A line of a text has the name, the type, with a ? if the value may be null, and the meaning; a
    line that is indented further continues the meaning.
    """
    found = []
    for part in parts:
        if isinstance(part, Column):
            found.append(part)
            continue
        for line in re.split(r"\n(?! )", dedent(part).strip()):
            name, type_, doc = line.split(maxsplit=2)
            column = Column(name, type_.rstrip("?"), " ".join(doc.split()), type_.endswith("?"))
            found.append(column)
    return tuple(found)
