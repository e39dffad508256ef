"""Offsets of the stream, and what versions of Spark ask of them: the one file that tells versions
apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

from fairlead.errors import ConfigurationError
from fairlead.ports.history import Place

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


def to_offset(place: Place, is_sqlite: bool) -> dict[str, int]:
    """As it is kept in the checkpoint: everything up to there is read."""
    return {"rowid": place.seq} if is_sqlite else {"xid": place.xid, "seq": place.seq}


def to_place(offset: Mapping[str, int], is_sqlite: bool) -> Place:
    """Raises ConfigurationError for an offset of another kind of store."""
    names = ("rowid",) if is_sqlite else ("xid", "seq")
    if offset.keys() != set(names):
        raise ConfigurationError(
            f"the checkpoint's offset {dict(offset)} is not of this store, whose offsets have"
            f" {' and '.join(names)}: give the URL it was begun with, or begin a new checkpoint"
        )
    return Place(0, offset["rowid"]) if is_sqlite else Place(offset["xid"], offset["seq"])
