"""Tables that a read may name, and its options, checked before the read opens a connection."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Self

from fairlead.clock import to_micros
from fairlead.errors import ConfigurationError
from fairlead.model.history import ATTEMPT_FIELDS
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.schema import Column, Table, columns_in

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_COLUMNS = {
    column.name: column
    for column in (
        *ATTEMPTS.columns,
        *columns_in(
            """
            state      string     WAITING, SUBMITTED, PROCESSING or ERROR
            unique_key string?    unique key, as submitted
            context    string?    JSON object of strings that accompanies the task
            payload    string     arguments as JSON
            """
        ),
    )
}


def _columns(names: str) -> tuple[Column, ...]:
    return tuple(_COLUMNS[name] for name in names.split())


ATTEMPTS_READ = Table(
    "attempts",
    "one run of a task, or the end of a task without a run, as stored",
    key=("task_id", "version"),
    instant="finished_at",
    columns=_columns(" ".join(ATTEMPT_FIELDS)),
)

TASKS_READ = Table(
    "tasks",
    "a task that has not ended; columns of attempts have their values for its next or present run",
    key=("task_id",),
    instant="submitted_at",
    columns=_columns(
        """
        task_id queue partition name state version attempt tries priority fairness_key weight
        ordering_key unique_key submitted_at run_at ready_at triggered_at claimed_at node
        trigger_path error_type error_text payload_bytes tags context payload
        """
    ),
)

TABLES = {table.name: table for table in (TASKS_READ, ATTEMPTS_READ)}

ONLY_ON_REQUEST = frozenset({"payload", "context"})
"""Columns with user data of any size; a read returns them only if the option `columns` names
them."""

BATCH_ROWS = 20_000
"""Default number of rows in an Arrow batch, about 6 MB of attempts."""

_BOTH = {
    "url": "sqlite:///tasks.db or postgresql://...; default: $FAIRLEAD_URL",
    "table": "tasks or attempts",
    "columns": "names separated by commas; default: all but payload and context",
    "queue": "name of a queue; default: all queues",
    "batch_rows": f"number of rows in an Arrow batch; default: {BATCH_ROWS}",
}
ONLY_BATCH = {
    **_BOTH,
    "since": (
        "earliest finished_at (attempts) or submitted_at (tasks) to read, such as"
        " 2026-01-31T12:00:00Z"
    ),
    "until": "end of the period that starts at since; rows at or after it are not read",
    "partitions": "number of Spark partitions; default: by the size of the table",
}
ONLY_STREAM = {
    **_BOTH,
    "max_rows_per_batch": (
        "maximum rows in a micro-batch; default: all. A run with the trigger availableNow reads one"
        " micro-batch"
    ),
    "reader": (
        "name under which the stream registers, so that the store keeps attempts it has not read"
    ),
}
_EVERY = ONLY_BATCH | ONLY_STREAM


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of a read from a store. Instants are microseconds since the epoch; None means no
    bound."""

    url: str = field(repr=False)
    table: Table
    columns: tuple[str, ...]
    queue: str | None
    batch_rows: int
    since: int | None
    until: int | None
    partitions: int | None
    max_rows_per_batch: int | None
    reader: str | None

    def chosen(self) -> Table:
        """Return the table with the chosen columns only, in their order."""
        every = {column.name: column for column in self.table.columns}
        return self.table._replace(columns=tuple(every[name] for name in self.columns))

    def with_schema(self, schema: StructType) -> Self:
        """Return the options with the columns of a user's schema. Raise ConfigurationError for a
        column that the table does not have, or has with another type."""
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

    @classmethod
    def parse(cls, options: Mapping[str, str], known: Mapping[str, str] = _EVERY) -> ReadOptions:
        """Parse the options of a Spark read, whose names may be in upper or lower case. Raise
        ConfigurationError; for an unknown option, the error lists the known ones."""
        given = known_of(options, known)
        table = table_of(given.get("table"))
        since, until = _instant("since", given.get("since")), _instant("until", given.get("until"))
        if since is not None and until is not None and since >= until:
            raise ConfigurationError("option since must be before until")
        return cls(
            url=url_of(given),
            table=table,
            columns=columns_of(table, given.get("columns")),
            queue=given.get("queue"),
            batch_rows=count_of("batch_rows", given) or BATCH_ROWS,
            since=since,
            until=until,
            partitions=count_of("partitions", given),
            max_rows_per_batch=count_of("max_rows_per_batch", given),
            reader=given.get("reader"),
        )


def known_of(options: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their names in lower case. Raise ConfigurationError for an unknown one,
    with the known ones."""
    given = {name.lower(): value for name, value in options.items()}
    if strange := sorted(given.keys() - known.keys()):
        lines = "".join(f"\n  {name}: {meaning}" for name, meaning in known.items())
        raise ConfigurationError(f"unknown option {', '.join(strange)}; known:{lines}")
    return given


def url_of(given: Mapping[str, str]) -> str:
    """Return the option `url`, by default $FAIRLEAD_URL. Raise ConfigurationError if both are
    missing."""
    url = given.get("url") or os.environ.get("FAIRLEAD_URL")
    if not url:
        raise ConfigurationError(
            "no URL is given: set the option url, or FAIRLEAD_URL before Spark starts"
        )
    return url


def table_of(text: str | None) -> Table:
    """Return the table with this name. Raise ConfigurationError without one."""
    if text not in TABLES:
        given = "missing" if text is None else f"{text!r} is unknown"
        raise ConfigurationError(f"option table: {given}; known: {', '.join(TABLES)}")
    return TABLES[text]


def columns_of(table: Table, text: str | None) -> tuple[str, ...]:
    """Return the chosen columns, by default all but those read only on request. Raise
    ConfigurationError for an unknown or repeated column."""
    if text is None:
        return tuple(name for name in table.column_names if name not in ONLY_ON_REQUEST)
    chosen = tuple(name.strip() for name in text.split(","))
    if strange := [name for name in chosen if name not in table.column_names]:
        raise ConfigurationError(
            f"{table.name} has no column {', '.join(map(repr, strange))}; known:"
            f" {', '.join(table.column_names)}"
        )
    if len(set(chosen)) < len(chosen):
        raise ConfigurationError(f"option columns names a column twice: {text}")
    return chosen


def count_of(option: str, given: Mapping[str, str]) -> int | None:
    """Return the number that an option gives, None without one. Raise ConfigurationError unless the
    number is at least 1."""
    text = given.get(option)
    if text is None:
        return None
    if not text.isdecimal() or not int(text):
        raise ConfigurationError(f"option {option}: {text!r} is not a whole number of at least 1")
    return int(text)


def _instant(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        problem = "is no instant"
    else:
        if instant.tzinfo is not None:
            return to_micros(instant)
        problem = "has no time zone"
    raise ConfigurationError(f"option {option}: {text!r} {problem}; write 2026-01-31T12:00:00Z")
