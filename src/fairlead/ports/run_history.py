"""The history of ordered queues without a SQL database: runs by partition, for readers that follow
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from fairlead.model import AttemptRecord, PartitionKey
from fairlead.model.fields import Count, Runs, Time
from fairlead.model.reading import json_reader
from fairlead.ports.statements import Database, Row, Steps


class RunPosition(NamedTuple):
    """Position of a run in the history of its partition; positions are ordered."""

    end_hour: Count
    """Hour in which the run ended, in whole hours since 1970."""
    due_hour: int
    """Hour in which its task was due."""
    ended_at: Time
    """Instant of the end that orders the history, in microseconds since the epoch."""
    task_id: str
    attempt: Runs


class RunCursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """Progress of a reader through the history of one partition."""

    done: Time = 0
    """All runs that ended at or before this instant have been read (microseconds since the
    epoch)."""
    through: Time | None = None
    """End of the window that the reader reads at present, in the order of positions; None between
    two windows."""
    last: RunPosition | None = None
    """Position of the last run that was read in this window."""

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()


class RunPage(NamedTuple):
    """The next runs of one partition."""

    rows: Sequence[Row]
    """Rows with the columns ATTEMPT_FIELDS of `fairlead.model.history`."""
    cursor: RunCursor
    """Cursor after these rows."""


read_cursor = json_reader(RunCursor)


class RunHistory(Protocol):
    """Runs of ordered queues by partition, each once. Times are microseconds since the epoch. All
    methods raise StoreUnavailable."""

    @property
    def database(self) -> Database:
        """Database that runs the steps."""

    def store_id(self) -> Steps[str]:
        """Return the id of this store, which its migration made once."""

    def horizons(self) -> Steps[dict[PartitionKey, int]]:
        """Return, for each partition with runs, an instant up to which its history is complete: no
        further run of its owner will appear that ended at or before the instant."""

    def page(
        self, partition: PartitionKey, cursor: RunCursor, horizon: int, limit: int
    ) -> Steps[RunPage]:
        """Return the next runs after the cursor that ended at or before the `horizon`, at most
        `limit` rows. There are no more once the cursor is `done` through `horizon`."""

    def advance(self, reader: str, read: Mapping[PartitionKey, int]) -> Steps[None]:
        """Register a reader, or record that it has read all runs of these partitions that ended at
        or before the instants. Runs that a reader has not read are kept while it advances at least
        once in KEEP_READER seconds."""

    def last_attempt(self, task_id: str) -> Steps[AttemptRecord | None]:
        """Return the last attempt of a task that has ended; None if it has not, or if its history
        was cleaned."""


KEEP_READER = 30 * 86_400
"""Seconds for which the history keeps what a reader has not read, after its last `advance`."""
