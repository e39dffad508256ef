"""Tables that a read may name, and its options, checked before the read opens a connection."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

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

ONLY_BATCH = frozenset({"since", "until", "partitions"})
"""Options that a stream does not take."""

ONLY_STREAM = frozenset({"max_rows_per_batch", "reader"})
"""Options that a batch does not take."""

Count = Annotated[int, msgspec.Meta(ge=1)]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a read from a store."""

    url: str
    """URL of the store; default: $FAIRLEAD_URL."""
    table: Literal["tasks", "attempts"]
    columns: str | None = None
    """Names separated by commas; default: all but those read only on request."""
    queue: str | None = None
    """Name of a queue; default: all queues."""
    batch_rows: Count = BATCH_ROWS
    """Number of rows in an Arrow batch."""
    since: Instant | None = None
    """Earliest finished_at (attempts) or submitted_at (tasks) to read."""
    until: Instant | None = None
    """End of the period that starts at since; rows at or after it are not read."""
    partitions: Count | None = None
    """Number of Spark partitions; default: by the size of the table."""
    max_rows_per_batch: Count | None = None
    """Maximum rows in a micro-batch; default: all. A run with the trigger availableNow reads one
    micro-batch."""
    reader: str | None = None
    """Name under which the stream registers, so that the store keeps attempts that the stream has
    not read."""

    def __repr__(self) -> str:
        return f"ReadOptions({self.table!r})"  # the URL may have a password

    @classmethod
    def parse(
        cls, options: Mapping[str, str], refused: frozenset[str] = frozenset()
    ) -> ReadOptions:
        """Parse the options of a Spark read, whose names may be in upper or lower case. Raise
        ConfigurationError, with the known options if one is unknown or refused."""
        given = {name.lower(): value for name, value in options.items()}
        known = [name for name in cls.__struct_fields__ if name not in refused]
        if strange := sorted(given.keys() - known):
            raise ConfigurationError(
                f"unknown option {', '.join(strange)}; known: {', '.join(known)}"
            )
        given["url"] = given.get("url") or os.environ.get("FAIRLEAD_URL", "")
        if not given["url"]:
            raise ConfigurationError(
                "no URL is given: set the option url, or FAIRLEAD_URL before Spark starts"
            )
        try:
            found = msgspec.convert(given, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigurationError(
                f"options of a read: {error}; write instants as 2026-01-31T12:00:00Z"
            ) from error
        if found.since is not None and found.until is not None and found.since >= found.until:
            raise ConfigurationError("option since must be before until")
        found.chosen()
        return found

    @property
    def names(self) -> list[str]:
        """Names of the chosen columns."""
        if self.columns is None:
            every = TABLES[self.table].column_names
            return [name for name in every if name not in ONLY_ON_REQUEST]
        return [name.strip() for name in self.columns.split(",")]

    def chosen(self) -> Table:
        """Return the table with the chosen columns only, in their order. Raise ConfigurationError
        for an unknown or repeated column."""
        table, names = TABLES[self.table], self.names
        every = {column.name: column for column in table.columns}
        if strange := [name for name in names if name not in every]:
            raise ConfigurationError(
                f"{table.name} has no column {', '.join(map(repr, strange))}; known:"
                f" {', '.join(every)}"
            )
        if len(set(names)) < len(names):
            raise ConfigurationError(f"option columns names a column twice: {self.columns}")
        return table._replace(columns=tuple(every[name] for name in names))

    def with_schema(self, schema: StructType) -> ReadOptions:
        """Return the options with the columns of a user's schema. Raise ConfigurationError for a
        column that the table does not have, or has with another type."""
        found = msgspec.structs.replace(self, columns=",".join(schema.names))
        for given, ours in zip(schema.fields, found.chosen().spark().fields, strict=True):
            if given.dataType != ours.dataType:
                raise ConfigurationError(
                    f"column {given.name} of {self.table} is {ours.dataType.simpleString()}, not"
                    f" {given.dataType.simpleString()}"
                )
        return found
