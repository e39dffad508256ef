"""States of tasks as Celery names them."""

from __future__ import annotations

from typing import NamedTuple

from fairlead.model import State, TaskRecord

PENDING = "PENDING"
RECEIVED = "RECEIVED"
STARTED = "STARTED"
SUCCESS = "SUCCESS"
FAILURE = "FAILURE"
REVOKED = "REVOKED"
REJECTED = "REJECTED"
RETRY = "RETRY"
IGNORED = "IGNORED"

READY_STATES = frozenset({SUCCESS, FAILURE, REVOKED})
UNREADY_STATES = frozenset({PENDING, RECEIVED, STARTED, REJECTED, RETRY})
EXCEPTION_STATES = frozenset({RETRY, FAILURE, REVOKED})
PROPAGATE_STATES = frozenset({FAILURE, REVOKED})
ALL_STATES = frozenset({PENDING, RECEIVED, STARTED, SUCCESS, FAILURE, RETRY, REVOKED})

BROKEN_DEPENDENCY = "a failed dependency: "
"""Beginning of the name under which a task is cancelled because one before it failed."""


class Broken(NamedTuple):
    """Why a task was cancelled because one before it failed."""

    reason: str


def state_of(record: TaskRecord) -> str:
    """Return Celery's name for the state of a task."""
    if record.state is State.CANCELLED:
        return FAILURE if broken(record) else REVOKED
    if record.state is State.WAITING and record.tries > 0 and record.error_type:
        return RETRY
    return {
        State.DONE: SUCCESS,
        State.ERROR: FAILURE,
        State.FAILED: FAILURE,
        State.PROCESSING: STARTED,
    }.get(record.state, PENDING)


def broken(record: TaskRecord) -> Broken | None:
    """Return why the task was cancelled if one before it failed; else None."""
    _, found, reason = (record.error_text or "").partition(BROKEN_DEPENDENCY)
    return Broken(reason) if found and record.state is State.CANCELLED else None
