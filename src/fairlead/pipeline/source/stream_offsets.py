"""Offsets of the stream, and what versions of Spark ask of them: the one file that tells versions
apart."""

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
        """From Spark 4.2 on: says where to read from and how many rows, and runs availableNow to
        its end."""

except ImportError:
    ReadAllAvailable = ReadMaxRows = None

    class StreamReader(DataSourceStreamReader):  # type: ignore[no-redef]
        """Before Spark 4.2: asks for the latest offset, no more; availableNow is one batch."""


def read_limit(most: int) -> Any:
    """Spark's word for so many rows at most; from 4.2 on."""
    return ReadMaxRows(most)


def most_rows(limit: Any, most: int) -> int | None:
    """How many rows the next batch may have when Spark gives `limit`, None before 4.2; None: all
    there are."""
    if limit is None:
        return most
    if isinstance(limit, ReadAllAvailable):
        return None
    return min(most, getattr(limit, "max_rows", most))


_FIELDS = {"rowid": "seq", "xid": "xid", "seq": "seq"}
"""The field of a place that each name in a checkpoint stands for."""


def to_offset(place: Position, names: Sequence[str]) -> dict[str, int]:
    """Return the offset as the checkpoint keeps it: everything up to there is read."""
    return {name: getattr(place, _FIELDS[name]) for name in names}


def to_place(offset: Mapping[str, int], names: Sequence[str]) -> Position:
    """Return the place of an offset. Raises ConfigurationError for another kind of store's."""
    if offset.keys() != set(names):
        raise ConfigurationError(
            f"the checkpoint's offset {dict(offset)} is not of this store, whose offsets have"
            f" {' and '.join(names)}: give the URL it was begun with, or begin a new checkpoint"
        )
    fields = {"xid": 0} | {_FIELDS[name]: value for name, value in offset.items()}
    return Position(**fields)
