"""The options of a read, checked before anything is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from fairlead.errors import ConfigurationError
from fairlead.pipeline.schema import Table
from fairlead.pipeline.source.tables import ONLY_WHEN_ASKED, TABLES

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BATCH_ROWS = 20_000
"""Rows of an Arrow batch: some 6 MB of attempts."""

MOST_ROWS_PER_BATCH = 1_000_000
"""Maximum number of rows of a micro-batch, so that a first run over a long history commits in
steps."""

_BOTH = {
    "url": (
        "sqlite:///tasks.db, postgresql://..., cassandra://... (backlog only); else $FAIRLEAD_URL"
    ),
    "table": "tasks, attempts or backlog",
    "columns": "names with commas between; else all but payload and context",
    "queue": "a queue's name; else all",
    "batch_rows": f"rows of an Arrow batch, {BATCH_ROWS} by default",
}
ONLY_BATCH = {
    **_BOTH,
    "since": (
        "first instant, as 2026-01-31T12:00:00Z, of finished_at (attempts) or submitted_at (tasks)"
    ),
    "until": "first instant beyond",
    "partitions": "how many; else by size",
}
ONLY_STREAM = {
    **_BOTH,
    "startingoffsets": (
        "earliest (default), or latest: behind what was there when its reader was first seen"
    ),
    "max_rows_per_batch": f"of a micro-batch, {MOST_ROWS_PER_BATCH} by default",
    "reader": "a name under which the store keeps what this stream has not read",
}
_EVERY = ONLY_BATCH | ONLY_STREAM
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ReadOptions:
    """Options of a read. Instants are microseconds since the epoch; None means no bound."""

    url: str = field(repr=False)
    table: Table
    columns: tuple[str, ...]
    queue: str | None
    batch_rows: int
    since: int | None
    until: int | None
    partitions: int | None
    is_latest: bool
    """Whether a stream starts after the present rows instead of at the first."""
    max_rows_per_batch: int
    reader: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str], known: Mapping[str, str] = _EVERY) -> ReadOptions:
        """Read options of Spark, whose names ignore case. Raise ConfigurationError with the known
        options."""
        given = {name.lower(): value for name, value in options.items()}
        if strange := sorted(given.keys() - known.keys()):
            lines = "".join(f"\n  {name}: {meaning}" for name, meaning in known.items())
            raise ConfigurationError(f"unknown option {', '.join(strange)}; known:{lines}")
        table = TABLES[choice_of("table", given.get("table"), list(TABLES))]
        since, until = _instant("since", given.get("since")), _instant("until", given.get("until"))
        if not table.instant and (since is not None or until is not None):
            raise ConfigurationError(
                f"table {table.name} has no instant that since and until could go by"
            )
        if since is not None and until is not None and since >= until:
            raise ConfigurationError("option since must be before until")
        return cls(
            url=url_of(given.get("url")),
            table=table,
            columns=columns_of(table, given.get("columns")),
            queue=given.get("queue"),
            batch_rows=count_of("batch_rows", given.get("batch_rows")) or BATCH_ROWS,
            since=since,
            until=until,
            partitions=count_of("partitions", given.get("partitions")),
            is_latest=choice_of(
                "startingOffsets", given.get("startingoffsets", "earliest"), ["earliest", "latest"]
            )
            == "latest",
            max_rows_per_batch=count_of("max_rows_per_batch", given.get("max_rows_per_batch"))
            or MOST_ROWS_PER_BATCH,
            reader=given.get("reader"),
        )

    def schema(self) -> StructType:
        """Return the schema of the chosen columns, in their order."""
        from pyspark.sql.types import StructType

        every = self.table.spark()
        return StructType([every[name] for name in self.columns])

    def with_schema(self, schema: StructType) -> ReadOptions:
        """Return the columns of a user's schema. Raise ConfigurationError when the table lacks
        them."""
        every = self.table.spark()
        columns = columns_of(self.table, ",".join(schema.names))
        for given in schema.fields:
            if given.dataType != every[given.name].dataType:
                ours = every[given.name].dataType.simpleString()
                raise ConfigurationError(
                    f"column {given.name} of {self.table.name} is {ours}, not"
                    f" {given.dataType.simpleString()}"
                )
        return replace(self, columns=columns)


def is_kafka(options: Mapping[str, str]) -> bool:
    """Return whether the URL names Kafka, so that a topic is read (see `source.kafka`)."""
    return any(
        name.lower() == "url" and value.startswith("kafka:") for name, value in options.items()
    )


def url_of(text: str | None) -> str:
    """Return the URL given, or set before the start of Spark. Raise ConfigurationError."""
    url = text or os.environ.get("FAIRLEAD_URL")
    if not url:
        raise ConfigurationError(
            "no URL says what to read: give the option url, or set FAIRLEAD_URL before Spark starts"
        )
    return url


def choice_of(option: str, text: str | None, known: list[str]) -> str:
    """Return the value if it is one of these. Raise ConfigurationError."""
    if text not in known:
        given = "missing" if text is None else f"{text!r} is unknown"
        raise ConfigurationError(f"option {option}: {given}; known: {', '.join(known)}")
    return text


def columns_of(table: Table, text: str | None) -> tuple[str, ...]:
    """Return the chosen columns, by default all but those read only on request. Raise
    ConfigurationError."""
    if text is None:
        return tuple(name for name in table.column_names if name not in ONLY_WHEN_ASKED)
    chosen = tuple(name.strip() for name in text.split(","))
    if strange := [name for name in chosen if name not in table.column_names]:
        raise ConfigurationError(
            f"{table.name} has no column {', '.join(map(repr, strange))}; known:"
            f" {', '.join(table.column_names)}"
        )
    if len(set(chosen)) < len(chosen):
        raise ConfigurationError(f"option columns names one twice: {text}")
    return chosen


def count_of(option: str, text: str | None) -> int | None:
    """Return a number of at least 1; None if not given. Raise ConfigurationError."""
    if text is None:
        return None
    if not text.isdecimal() or not int(text):
        raise ConfigurationError(f"option {option}: {text!r} is no number from 1 on")
    return int(text)


def _instant(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"option {option}: {text!r} is no instant; write 2026-01-31T12:00:00Z"
        ) from None
    if instant.tzinfo is None:
        raise ConfigurationError(
            f"option {option}: {text!r} has no time zone; write 2026-01-31T12:00:00Z"
        )
    return (instant - _EPOCH) // timedelta(microseconds=1)
