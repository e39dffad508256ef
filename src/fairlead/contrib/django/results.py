"""Results of Django tasks, read from the tables of Fairlead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from django.core.exceptions import SuspiciousOperation
from django.utils.module_loading import import_string

from fairlead.clock import to_datetime
from fairlead.contrib.django.compat import TaskError, TaskResult, TaskResultStatus
from fairlead.contrib.django.runs import local
from fairlead.contrib.django.task import FairleadTask
from fairlead.core.payload import unpack
from fairlead.model import AttemptRecord, State, TaskRecord
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Steps

STATUS = {
    State.WAITING: TaskResultStatus.READY,
    State.SUBMITTED: TaskResultStatus.READY,
    State.PROCESSING: TaskResultStatus.RUNNING,
    State.DONE: TaskResultStatus.SUCCESSFUL,
    State.ERROR: TaskResultStatus.FAILED,
    State.FAILED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
"""Status in Django by state. READY includes a task that waits for its next try."""


class Found(NamedTuple):
    """A task as the tables have it."""

    record: TaskRecord
    attempts: list[AttemptRecord]
    data: dict[str, Any]
    """Arguments, priority and return value; empty if the task left without a success."""


def read(records: SqlStore, task_id: str) -> Steps[Found | None]:
    """Return the task with this id; None if there is none."""
    record = yield from records.task(task_id)
    if record is None:
        return None
    attempts = yield from records.attempts(task_id)
    if record.state is State.DONE:
        kept = yield from records.result(task_id)
    else:
        payload = yield from records.payload(task_id)
        kept = None if payload is None else unpack(*payload)
    data = {} if kept is None else msgspec.json.decode(kept)
    return Found(record, attempts, data if isinstance(data, dict) else {})


def is_id(task_id: object) -> bool:
    """Return whether a task can have this id."""
    try:
        return isinstance(task_id, str) and str(UUID(task_id)) == task_id
    except ValueError:
        return False


def result_of(found: Found, backend: str, task_at: Callable[[str], FairleadTask]) -> Any:
    """Return the task as a result of Django. Raise ImportError for a function that is gone,
    SuspiciousOperation for a name that leads to no Django task."""
    record, data = found.record, found.data
    runs = [each for each in found.attempts if each.node]
    started = [each.started_at for each in runs if each.started_at is not None]
    workers = [str(each.node) for each in runs]
    if record.state is State.PROCESSING and record.node:
        started.append(record.claimed_at or record.submitted_at)
        workers.append(record.node)
    is_finished = STATUS[record.state] in (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)
    task = task_at(record.name).stored(record.queue, data.get("priority"))
    result: Any = TaskResult(
        task=task,
        id=record.id,
        status=STATUS[record.state],
        enqueued_at=_local(record.submitted_at),
        started_at=_local(started[0] if started else None),
        finished_at=_local(found.attempts[-1].finished_at if is_finished else None),
        last_attempted_at=_local(started[-1] if started else None),
        args=data.get("args", []),
        kwargs=data.get("kwargs", {}),
        backend=backend,
        errors=[_error_of(each) for each in found.attempts if each.error_type],
        worker_ids=workers,
    )
    if record.state is State.DONE:
        object.__setattr__(result, "_return_value", data.get("return_value"))
    return result


def imported(path: str) -> FairleadTask:
    """Import the Django task at this path. Raise ImportError, or SuspiciousOperation for something
    else."""
    found = import_string(path)
    if not isinstance(found, FairleadTask):
        raise SuspiciousOperation(f"{path!r} is no Django task of Fairlead")
    return found


def _error_of(attempt: AttemptRecord) -> Any:
    kind = str(attempt.error_type)
    return TaskError(
        exception_class_path=kind if "." in kind else f"builtins.{kind}",
        traceback=attempt.error_text or "",
    )


def _local(micros: int | None) -> Any:
    return None if micros is None else local(to_datetime(micros))
