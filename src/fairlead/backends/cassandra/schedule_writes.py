"""The writes of the schedule on Cassandra: rows with their keys, ends of runs and deletions of
ranges, in batches of one hour, which Cassandra applies to one partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from fairlead.backends.cassandra.session import MOST_BYTES, bytes_of
from fairlead.backends.sql.schedule import attempt_row
from fairlead.model import PartitionKey, RunEnd, TaskKey
from fairlead.ports.schedule_store import HOUR, hour_of
from fairlead.ports.statements import Row

MOST_LEFT = 1000
"""Unfinished tasks of an old hour beyond which `clean` leaves the rows of completed tasks between
them."""

_ROW_BYTES = 100
_encode = msgspec.json.encode


class Write(NamedTuple):
    """Statements on one hour that stay in one batch."""

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


def end_of_run(partition: PartitionKey, end: RunEnd, stamp: int) -> Write:
    """Return the write of the end of a run, and of its row for the history."""
    key, task_id = end.scheduled.key, end.scheduled.task.id
    hour = hour_of(key)
    row = (*partition, hour, *key)
    attempt = _encode(attempt_row(end)).decode()
    appended = (*row, task_id, end.attempt, end.finished_at, attempt, stamp)
    statements: list[tuple[str, Row]] = [("append_attempt", appended)]
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
