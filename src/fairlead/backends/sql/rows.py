"""Rows and parameters of both dialects, from the model and to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from fairlead.model import Finish, Outcome, State, TaskRecord
from fairlead.ports.notification import Lane, Notification
from fairlead.ports.statements import Row

_json = msgspec.json.Encoder()

NIL = "00000000-0000-0000-0000-000000000000"
NODE_LOST = "fairlead.errors.NodeLost"


def batch(rows: Sequence[Any]) -> str:
    """Parameter rows as one JSON array."""
    return _json.encode(rows).decode()


def canonical(task_id: str) -> str:
    """A task id as both databases keep it; a text that can be no id becomes the nil one, which no
    task has."""
    try:
        return str(UUID(task_id))
    except ValueError:
        return NIL


def lanes_of(rows: Iterable[Row]) -> list[Lane]:
    """The lanes of rows (queue, partition, priority, ready_seq), each from its lowest sequence
    number."""
    first: dict[tuple[str, int, int], int] = {}
    for queue, partition, priority, seq in rows:
        lane = (queue, partition, priority)
        if seq < first.get(lane, seq + 1):
            first[lane] = seq
    return [Lane(*lane, seq) for lane, seq in first.items()]


def notification_for(rows: Sequence[Row]) -> Notification | None:
    """The wake for rows (queue, partition, priority, ready_seq) that became SUBMITTED; None for no
    rows."""
    return Notification(ready=lanes_of(rows)) if rows else None


def storable(finish: Finish) -> Finish:
    """As it can be kept: an error text may hold a NUL; PostgreSQL has no such text and SQLite's
    JSON ends at it."""
    if "\0" not in (finish.error_text or ""):
        return finish
    return msgspec.structs.replace(
        finish, error_text=(finish.error_text or "").replace("\0", "\N{REPLACEMENT CHARACTER}")
    )


def lost_attempt(task_id: str, version: int, to: State, now: int, reason: str) -> tuple[Any, ...]:
    """The row of an attempt whose node is gone, for `record_attempts`."""
    return (task_id, version, Outcome.LOST, to, None, now, NODE_LOST, reason)


def task_record(row: Row) -> TaskRecord:
    """Of a row of `task`, `tasks` or `incidents`."""
    fields = list(row)
    fields[4] = State(fields[4])
    return TaskRecord(*fields)
