"""Conversion between rows and the model, and parameters of statements, for both dialects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec

from fairlead.model import Finish, Outcome, State, TaskRecord
from fairlead.model.columns import ENDED, NEW
from fairlead.ports.notification import Lane, Notification
from fairlead.ports.statements import Row

_json = msgspec.json.Encoder(enc_hook=str.__str__)

NIL = "00000000-0000-0000-0000-000000000000"
ALL_ROWS = (1 << 62) - 1
"""Limit of a statement that returns all rows."""
NODE_LOST = "fairlead.errors.NodeLost"


def batch(rows: Sequence[Any]) -> str:
    """Return rows of parameters as one JSON array."""
    return _json.encode(rows).decode()


def shared() -> Callable[[str], str]:
    """Return a function that returns one object for equal texts, so that the rows of one read hold
    each text once."""
    known: dict[str, str] = {}
    return lambda text: known.setdefault(text, text)


def canonical(task_id: str) -> str:
    """Return a task id in the form that both databases store. A text that is not an id becomes the
    nil id, which no task has."""
    try:
        return str(UUID(task_id))
    except ValueError:
        return NIL


def lanes_of(rows: Iterable[Row]) -> list[Lane]:
    """Return the lanes of rows (queue, partition, priority, ready_seq), each with its lowest
    ready_seq."""
    first: dict[tuple[str, int, int], int] = {}
    for queue, partition, priority, seq in rows:
        lane = (queue, partition, priority)
        if seq < first.get(lane, seq + 1):
            first[lane] = seq
    return [Lane(*lane, seq) for lane, seq in first.items()]


def notification_for(rows: Sequence[Row]) -> Notification | None:
    """Return the notification for rows (queue, partition, priority, ready_seq) that became
    SUBMITTED, or None without rows."""
    return Notification(ready=lanes_of(rows)) if rows else None


def storable(finish: Finish) -> Finish:
    """Return `finish` with every NUL of its error text replaced.

    PostgreSQL rejects a NUL in a text, and SQLite's JSON ends there.
    """
    if "\0" not in (finish.error_text or ""):
        return finish
    return msgspec.structs.replace(
        finish, error_text=(finish.error_text or "").replace("\0", "\N{REPLACEMENT CHARACTER}")
    )


fields_of = attrgetter(*(column.name for column in NEW))
"""Return the values of a new task in the order of its columns."""

ended_attempt = attrgetter("id", "version", *(column.name for column in ENDED))
"""Return the row for `record_attempts` of a finish."""

_STATE = TaskRecord.__struct_fields__.index("state")


def lost_attempt(task_id: str, version: int, to: State, now: int, reason: str) -> tuple[Any, ...]:
    """Return the row for `record_attempts` of an attempt whose node died."""
    lost = Finish(task_id, version, Outcome.LOST, to, None, now, NODE_LOST, reason)
    return ended_attempt(lost)


def task_record(row: Row) -> TaskRecord:
    """Return the record of a row with the columns of a task."""
    fields = list(row)
    fields[_STATE] = State(fields[_STATE])
    return TaskRecord(*fields)
