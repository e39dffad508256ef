"""A table's columns, said once: its Arrow schema, its Spark schema and its page of the data
dictionary follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SCHEMA_VERSION = 1
"""Raised when a column is added; every row and every manifest says under which version it was
written."""


class Column(NamedTuple):
    """One column: `type` is one of those in `_SPARK`; instants are UTC with microseconds, durations
    are `bigint` named `_us`."""

    name: str
    type: str
    doc: str
    nullable: bool = False


class Table(NamedTuple):
    """A table of the lake: `key` identifies a row, `instant` names the column whose hour (or date)
    is its partition."""

    name: str
    doc: str
    key: tuple[str, ...]
    instant: str
    columns: tuple[Column, ...]
    by: str = "hour"
    """Partitioned by "hour" or by "date" of `instant`, UTC."""
    together: bool = False
    """Whether the function that makes it brings the rows of a partition together: writing need not
    move them once more."""

    @property
    def column_names(self) -> list[str]:
        """Names in order."""
        return [column.name for column in self.columns]

    def arrow(self) -> pa.Schema:
        """As pyarrow writes and reads it."""
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
        """As Spark writes and reads it. Everything may be null to Spark, which checks no nulls:
        `checks` does."""
        from pyspark.sql import types as t

        types: dict[str, t.DataType] = {
            "string": t.StringType(),
            "bigint": t.LongType(),
            "int": t.IntegerType(),
            "smallint": t.ShortType(),
            "tinyint": t.ByteType(),
            "double": t.DoubleType(),
            "boolean": t.BooleanType(),
            "date": t.DateType(),
            "timestamp": t.TimestampType(),
            "decimal(18,6)": t.DecimalType(18, 6),
        }
        return t.StructType([t.StructField(c.name, types[c.type], True) for c in self.columns])


WRITTEN_UNDER = Column(
    "schema_version", "smallint", "the version of these tables under which the row was written"
)
