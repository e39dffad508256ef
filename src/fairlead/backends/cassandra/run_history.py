"""The history of ordered queues that stays in Cassandra, for readers that follow it.

A run is in `fairlead_history`, in the hour of its task, so that one batch writes it together with
the completion. `fairlead_history_hours` finds these hours by the hour in which runs ended. The
owner of a partition raises its horizon from time to time: no further row comes at or below it. A
reader reads one window after the other: all runs after the last window, through the horizon at the
time at which it begins. Every statement reads one partition of Cassandra from one position, at most
PAGE rows, and nothing is filtered.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from fairlead.backends.cassandra.database import APP
from fairlead.backends.cassandra.schedule_writes import bucket_of
from fairlead.backends.sql.rows import NIL, canonical
from fairlead.errors import SchemaMismatch
from fairlead.model import FINAL_STATES, AttemptRecord, PartitionKey, TaskKey
from fairlead.model.columns import ATTEMPTS
from fairlead.model.reading import Reader
from fairlead.ports.run_history import KEEP_READER, RunCursor, RunPage, RunPosition
from fairlead.ports.schedule_store import HOUR, hour_of
from fairlead.ports.statements import Database, Row, Statement, Steps

PAGE = 1000
"""Rows of one statement, at most."""

_LARGEST = 1 << 63
_read: Reader[Row] = Reader(
    msgspec.json.Decoder(
        tuple.__class_getitem__(tuple(column.values for column in ATTEMPTS))
    ).decode
)
log = logging.getLogger("fairlead.cassandra")


class CassandraRunHistory:
    """A `fairlead.ports.run_history.RunHistory` on Cassandra."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def store_id(self) -> Steps[str]:
        """Return the id of the store. Raise SchemaMismatch before its migration."""
        found = yield from stored_id()
        if found is None:
            raise SchemaMismatch(f"{self.database.location} has no id: run `fairlead migrate`")
        return found

    def horizons(self) -> Steps[dict[PartitionKey, int]]:
        rows = yield Statement("horizons")
        return {
            PartitionKey(queue, partition): horizon
            for queue, partition, horizon in rows
            if horizon is not None
        }

    def page(
        self, partition: PartitionKey, cursor: RunCursor, horizon: int, limit: int
    ) -> Steps[RunPage]:
        found: list[Row] = []
        done = cursor.done
        through = horizon if cursor.through is None else cursor.through
        if through <= done:
            return RunPage([], cursor)
        last = cursor.last or RunPosition(done // HOUR, -(1 << 62), done + 1, "", 0)
        hours = yield Statement("run_hours", (*partition, *last[:2], through // HOUR))
        for end_hour, hour in hours:
            # No position of a run is equal to the first one of an instant, which has no id.
            first = max(done + 1, end_hour * HOUR)
            after = last[2:] if (end_hour, hour) == last[:2] else (first, "", 0)
            until = min(through, (end_hour + 1) * HOUR - 1)
            while True:
                count = min(PAGE, limit - len(found))
                rows = yield Statement("runs", (*partition, hour, *after, until, count))
                for ended_at, task_id, attempt, text in rows:
                    after = ended_at, task_id, attempt
                    if (run := read_run(partition, after, text)) is not None:
                        found.append((0, ended_at, *run))
                last = RunPosition(end_hour, hour, *after)
                if len(found) == limit:
                    return RunPage(found, RunCursor(done, through, last))
                if len(rows) < count:
                    break
        return RunPage(found, RunCursor(through))

    def advance(self, reader: str, read: Mapping[PartitionKey, int]) -> Steps[None]:
        for partition, through in read.items():
            yield Statement("advance", (*partition, reader, through, KEEP_READER))

    def last_attempt(self, task_id: str) -> Steps[AttemptRecord | None]:
        """Read one index row of each partition at most, and then three rows.

        The index row of an ended task says when its last run ended, and so where the run is. A
        crash may leave the index row as it was before the end: then the completion, which is
        written with the run, says it.
        """
        if (task_id := canonical(task_id)) == NIL:
            return None
        bucket = bucket_of(task_id)
        for *partition, _ in (yield Statement("horizons")):
            index = yield Statement("ended_id", (*partition, bucket, task_id))
            for *key, ended_at in index:
                hour = hour_of(TaskKey(*key))
                at = yield Statement("completed_at", (*partition, hour, *key))
                for instant in {ended_at, *(row[0] for row in at)} - {None}:
                    where = (*partition, hour, instant, task_id)
                    for number, text in reversed((yield Statement("runs_of", where))):
                        at = (instant, task_id, number)
                        if (run := read_run(PartitionKey(*partition), at, text)) is not None:
                            attempt = AttemptRecord(0, *run)
                            if attempt.task_id == task_id and attempt.next_state in FINAL_STATES:
                                return attempt
        return None


def stored_id() -> Steps[str | None]:
    """Return the id of the store; None before its migration."""
    rows = yield Statement("store_id", (APP,))
    return rows[0][0] if rows else None


def read_run(partition: PartitionKey, at: object, text: str | None) -> Row | None:
    """Return the row of the history in the text, as `attempt_row` made it; None if the text cannot
    be read. `at`: its place, for the log."""
    try:
        row = _read(text or "")
    except msgspec.DecodeError as error:
        fields = {"partition": partition, "run": at, "error": str(error)}
        log.error("a run cannot be read, and is left out", extra=fields)
        return None
    if any(isinstance(value, int) and not -_LARGEST <= value < _LARGEST for value in row):
        log.error("a run has a number out of range", extra={"partition": partition, "run": at})
        return None
    return row
