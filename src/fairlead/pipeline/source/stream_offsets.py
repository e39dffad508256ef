"""Offsets of the stream, and the calls of different versions of Spark about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

from fairlead.errors import ConfigurationError
from fairlead.ports.history import Position

try:
    from pyspark.sql.streaming.datasource import (  # type: ignore[import-not-found]
        ReadAllAvailable,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
        """Base for Spark 4.2 and later, which passes start and limit, and runs availableNow to its
        end."""

except ImportError:
    ReadAllAvailable = ReadMaxRows = None

    class StreamReader(DataSourceStreamReader):  # type: ignore[no-redef]
        """Base before Spark 4.2, which asks only for the latest offset and runs availableNow as one
        batch."""


def read_limit(most: int) -> Any:
    """Return Spark's limit of rows, from 4.2 on."""
    return ReadMaxRows(most)


def most_rows(limit: Any, most: int) -> int | None:
    """Return the most rows of the next batch from the `limit` of Spark, which is None before 4.2;
    None for all rows."""
    if limit is None:
        return most
    if isinstance(limit, ReadAllAvailable):
        return None
    return min(most, getattr(limit, "max_rows", most))


_FIELDS = {"rowid": "seq", "xid": "xid", "seq": "seq"}
"""Field of a position for each name in a checkpoint."""


def to_offset(position: Position, names: Sequence[str]) -> dict[str, int]:
    """Return a position as the offset in a checkpoint."""
    return {name: getattr(position, _FIELDS[name]) for name in names}


def to_position(offset: Mapping[str, int], names: Sequence[str]) -> Position:
    """Return the position of an offset. Raise ConfigurationError if the offset is of another kind
    of store."""
    if offset.keys() != set(names):
        raise ConfigurationError(
            f"the checkpoint's offset {dict(offset)} is not of this store, whose offsets have"
            f" {' and '.join(names)}: give the URL it was begun with, or begin a new checkpoint"
        )
    fields = {"xid": 0} | {_FIELDS[name]: value for name, value in offset.items()}
    return Position(**fields)
