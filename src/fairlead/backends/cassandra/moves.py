"""The writes that move tasks and completed keys between partitions of the schedule on Cassandra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from fairlead.backends.cassandra.schedule_writes import Write, key_insert
from fairlead.backends.cassandra.session import bytes_of
from fairlead.backends.sql.schedule_rows import moved_text
from fairlead.core.sharding.partitions import partition_of
from fairlead.model import BEFORE_ALL, PartitionKey, TaskKey
from fairlead.ports.schedule_store import hour_of
from fairlead.ports.statements import Row

ROWS_AT_ONCE = 500
"""Rows that one step of `move_tasks` reads."""


class Position(NamedTuple):
    """Position in the rows of a partition."""

    hours: tuple[int, ...]
    """Hours that are left; the first one is being read."""
    after: TaskKey = BEFORE_ALL
    is_completed: bool = False
    """Whether the completed keys of the hour are read, after its tasks."""

    def following(self, rows: Sequence[Row]) -> Position:
        """Return the position after these rows."""
        if len(rows) == ROWS_AT_ONCE:
            return self._replace(after=TaskKey(*rows[-1][:3]))
        if not self.is_completed:
            return Position(self.hours, is_completed=True)
        return Position(self.hours[1:])


def rows_to_move(
    rows: Sequence[Row], source: PartitionKey, partitions: int, is_completed: bool
) -> dict[int, list[Row]]:
    """Return those of the rows that belong to other partitions, by partition: unfinished tasks, or
    completed keys."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        is_moving = is_completed or (row[3] is not None and not row[6])
        target = partition_of(row[1], 0, partitions)
        if is_moving and target != source.partition:
            found.setdefault(target, []).append(row)
    return found


def moved_row(target: PartitionKey, row: Row, stamp: int) -> Write:
    """Return the write of an unfinished task into another partition, and of its key."""
    run_at, ordering_key, unique_key, task_id, task, runs, _ = row
    key = TaskKey(run_at, ordering_key, unique_key)
    hour = hour_of(key)
    text = moved_text(task or "", target.partition)
    runs = runs or msgspec.json.encode((task_id, 0, 0, None)).decode()
    return Write(
        hour,
        [
            ("move_tasks", (*target, hour, *key, task_id, text, runs, stamp)),
            key_insert(target, key, stamp),
        ],
        bytes_of(task_id, text, runs, *key, *key),
    )


def moved_completion(target: PartitionKey, row: Row, stamp: int) -> Write:
    """Return the write of a completed key into another partition."""
    key = TaskKey(*row[:3])
    hour = hour_of(key)
    return Write(hour, [("complete", (*target, hour, *row, stamp))], bytes_of(*key))


def row_left(source: PartitionKey, row: Row, stamp: int) -> Write:
    """Return the write that ends a row in the partition that its task has left. A later deletion of
    a range deletes the row, as it does with rows of completed tasks."""
    key = TaskKey(*row[:3])
    hour = hour_of(key)
    return Write(hour, [("mark_done", (stamp, *source, hour, *key))], bytes_of(*key))
