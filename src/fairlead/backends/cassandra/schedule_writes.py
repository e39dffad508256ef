"""The writes of the schedule on Cassandra: rows with their keys, ends of runs and deletions of
ranges, in batches of one hour, which Cassandra applies to one partition."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from fairlead.backends.cassandra.session import MOST_BYTES, bytes_of
from fairlead.backends.sql.schedule import attempt_row
from fairlead.clock import MICROS
from fairlead.model import PartitionKey, RunEnd, TaskKey
from fairlead.ports.schedule_store import HOUR, KEEP_COMPLETIONS, hour_of
from fairlead.ports.statements import Row

MOST_LEFT = 1000
"""Unfinished tasks of an old hour beyond which `clean` leaves the rows of completed tasks between
them."""

ID_SECONDS = 366 * 24 * 3600
"""Seconds after its due time for which an unfinished task is found by its id. The index row of a
replaced task expires then."""

_LAST_SECOND = (1 << 31) - 2
"""Last second since the epoch at which Cassandra 4 lets a row expire."""

_ROW_BYTES = 100
_encode = msgspec.json.encode


class Write(NamedTuple):
    """Statements on one hour, or one bucket of ids, that stay in one batch."""

    hour: int
    statements: list[tuple[str, Row]]
    size: int = 0
    """Bytes of their texts."""


def batches_of(writes: Iterable[Write]) -> list[list[tuple[str, Row]]]:
    """Return batches of the writes of one hour, each of at most MOST_BYTES."""
    batches: list[list[tuple[str, Row]]] = []
    latest: dict[int, tuple[int, list[tuple[str, Row]]]] = {}
    for hour, statements, texts in writes:
        size = texts + len(statements) * _ROW_BYTES
        room, batch = latest.get(hour, (0, []))
        if room < size:
            room, batch = MOST_BYTES, []
            batches.append(batch)
        batch += statements
        latest[hour] = (room - size, batch)
    return batches


def insert(partition: PartitionKey, key: TaskKey, task_id: str, task: str, stamp: int) -> Write:
    """Return the write of a new row and of its key."""
    hour = hour_of(key)
    return Write(
        hour,
        [
            ("persist", (*partition, hour, *key, task_id, task, stamp)),
            key_insert(partition, key, stamp),
        ],
        bytes_of(task_id, task, *key, *key),
    )


def key_insert(partition: PartitionKey, key: TaskKey, stamp: int) -> tuple[str, Row]:
    """Return the write of a row's key by ordering key."""
    own = (key.ordering_key, key.run_at, key.unique_key)
    return "persist_key", (*partition, hour_of(key), *own, stamp)


def bucket_of(task_id: str) -> int:
    """Return the bucket of a task's id: for a UUIDv7, the hour in which it was made, in whole hours
    since the epoch; 0 for a text that is no id."""
    try:
        return int(task_id.replace("-", "")[:12], 16) // (HOUR // 1000)
    except ValueError:
        return 0


def id_insert(partition: PartitionKey, key: TaskKey, task_id: str, stamp: int) -> Write:
    """Return the write of the index row of a task's id. It belongs to another partition of
    Cassandra than the task."""
    bucket, now = bucket_of(task_id), int(time.time())
    until = max(now, key.run_at // MICROS) + ID_SECONDS
    seconds = until - now if until <= _LAST_SECOND else 0
    row = (*partition, bucket, task_id, *key, stamp, seconds)
    return Write(bucket, [("persist_id", row)], bytes_of(task_id, *key))


def id_end(partition: PartitionKey, end: RunEnd, ended_at: int, stamp: int) -> Write:
    """Return the write of the index row of a task that has ended. `ended_at`: instant of its last
    run in the history."""
    task_id, key = end.scheduled.task.id, end.scheduled.key
    bucket = bucket_of(task_id)
    row = (*partition, bucket, task_id, *key, ended_at, stamp, KEEP_COMPLETIONS)
    return Write(bucket, [("end_id", row)], bytes_of(task_id, *key))


def id_deletion(partition: PartitionKey, task_id: str, stamp: int) -> Write:
    """Return the deletion of the index row of a task's id."""
    bucket = bucket_of(task_id)
    deletion = ("drop_id", (stamp, *partition, bucket, task_id))
    return Write(bucket, [deletion], bytes_of(task_id))


def end_of_run(partition: PartitionKey, end: RunEnd, stamp: int, ended_at: int) -> Write:
    """Return the write of the end of a run, and of its row for the history. `ended_at`: instant of
    the run in the history."""
    key, task_id = end.scheduled.key, end.scheduled.task.id
    hour = hour_of(key)
    row = (*partition, hour, *key)
    attempt = _encode(attempt_row(end)).decode()
    run = (*partition, hour, ended_at, task_id, end.attempt, attempt, stamp)
    statements: list[tuple[str, Row]] = [("append_run", run)]
    size = bytes_of(attempt, task_id, *key)
    if end.completes:
        statements += [("complete", (*row, end.finished_at, stamp)), ("mark_done", (stamp, *row))]
        return Write(hour, statements, size + 2 * bytes_of(*key))
    runs = _encode((task_id, end.attempt, end.tries, end.retry_at)).decode()
    statements.append(("try_again", (stamp, runs, *row)))
    return Write(hour, statements, size + bytes_of(runs, *key))


def sweep_between(
    partition: PartitionKey, hour: int, stamp: int, above: TaskKey, below: TaskKey
) -> tuple[str, Row] | None:
    """Return the deletion of the rows of an hour between two keys; None if none can be there."""
    low = max(above, TaskKey(hour * HOUR, "", ""))
    high = min(below, TaskKey((hour + 1) * HOUR, "", ""))
    return ("sweep", (stamp, *partition, hour, *low, *high)) if low < high else None


def deletions_of(
    partition: PartitionKey, hour: int, stamp: int, later_stamp: int, left: Sequence[TaskKey]
) -> list[tuple[str, Row]]:
    """Return one batch that deletes all of an hour but its unfinished tasks `left`."""
    names = ["drop_completions"]
    statements: list[tuple[str, Row]] = []
    if not left:
        names += ["sweep_hour", "sweep_keys"]
    elif len(left) <= MOST_LEFT:
        names.append("sweep_keys")
        ends = [TaskKey(hour * HOUR, "", ""), *left, TaskKey((hour + 1) * HOUR, "", "")]
        for above, below in pairwise(ends):
            if (statement := sweep_between(partition, hour, stamp, above, below)) is not None:
                statements.append(statement)
        statements += [key_insert(partition, key, later_stamp) for key in left]
    return [*((name, (stamp, *partition, hour)) for name in names), *statements]
