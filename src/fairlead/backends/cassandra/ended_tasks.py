"""Ended tasks of an application without a SQL database, by their ids, for people.

The index row of an ended task says when its last run ended, and so where the run is in
`fairlead_history`. A crash may leave the index row as it was before the end: then the completion,
which is written with the run, says it.
"""

from __future__ import annotations

from fairlead.backends.cassandra.run_history import read_run
from fairlead.backends.cassandra.schedule_writes import bucket_of
from fairlead.backends.sql.rows import NIL, canonical, task_record
from fairlead.model import FINAL_STATES, AttemptRecord, PartitionKey, TaskKey, TaskRecord
from fairlead.ports.schedule_store import hour_of
from fairlead.ports.statements import Row, Statement, Steps


def ended_task(task_id: str) -> Steps[TaskRecord | None]:
    """Return the record of a task that has ended; None if it has not, or if its history was
    cleaned. Reads one index row of each partition at most, and then three rows."""
    run = yield from _last_run(task_id)
    if run is None:
        return None
    id_, attempt, tries, queue, name, partition, *who, version = run[:12]
    submitted_at, run_at, ready_at, _, claimed_at = run[12:17]
    *_, state, error_type, error_text, node, _, size = run
    first = (id_, queue, partition, name, state, version + 1, attempt, tries, *who)
    times = (submitted_at, run_at, ready_at, claimed_at)
    return task_record((*first, *times, node, error_type, error_text, None, size))


def last_attempt(task_id: str) -> Steps[list[AttemptRecord]]:
    """Return the last attempt of a task that has ended; nothing for any other."""
    run = yield from _last_run(task_id)
    return [] if run is None else [AttemptRecord(0, *run[:10], *run[11:])]


def _last_run(task_id: str) -> Steps[Row | None]:
    """Return the columns of `attempt_row` of the last run of a task that has ended."""
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
                for attempt, text in reversed((yield Statement("runs_of", where))):
                    run = read_run(PartitionKey(*partition), (instant, task_id, attempt), text)
                    if run is not None and run[0] == task_id and run[20] in FINAL_STATES:
                        return run
    return None
