"""One task as a person sees it: its attempts, arguments, progress and log lines, and why it is in
its state."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import msgspec

from fairlead.errors import FairleadError, InvalidTask, UnknownTask
from fairlead.model import AttemptRecord, Progress, RunNotes, TaskRecord
from fairlead.operate.caller import Caller
from fairlead.operate.doctor import explanation
from fairlead.operate.doctor.explain import Reason

MOST_LOG_CHARS = 100_000
"""Maximum characters of all log lines that are shown for a task, those of the latest runs."""

_MOST_ATTEMPTS = 200
_MOST_ARGUMENT_BYTES = 100_000
_HEX = frozenset("0123456789abcdef")


class TaskDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A task with its latest attempts, first to last, and why it is in its state.

    `progress` is that of the latest run that reported any. `logs` has the lines that attempts have
    logged, if the task keeps them, first to last; `more_logs` earlier attempts have lines that are
    too many for one response. `arguments` is JSON as text, so that no number loses digits; null if
    they are not kept or not shown, and `arguments_hidden` then says why.
    """

    task: TaskRecord
    reasons: list[Reason]
    progress: Progress | None
    attempts: list[AttemptRecord]
    more_attempts: int
    logs: list[RunNotes]
    more_logs: int
    arguments: str | None
    arguments_hidden: str | None
    trace_url: str | None


def task_detail(caller: Caller, id: str, indent: int | None = None) -> TaskDetail:
    """Return a task, by its id or the beginning of it, with its arguments in lines of this indent.
    Raise UnknownTask, InvalidTask."""
    management, scope = caller.management, caller.tenants
    try:
        task = management.named(id, tenants=scope)
    except UnknownTask as error:
        raise UnknownTask(f"{error}{_unread(caller)}") from None
    attempts = management.attempts(task.id, tenants=scope)
    notes = management.notes(task.id, tenants=scope)
    logged = [each for each in notes if each.lines]
    logs, more_logs = (logged, 0) if caller.is_command else _shown_logs(logged)
    arguments, hidden = _arguments(caller, task, indent)
    return TaskDetail(
        task=task,
        reasons=caller.wait(explanation(caller.context, task.id, tenants=scope)).reasons,
        progress=next((each.progress for each in reversed(notes) if each.progress), None),
        attempts=attempts[-_MOST_ATTEMPTS:],
        more_attempts=max(len(attempts) - _MOST_ATTEMPTS, 0),
        logs=logs,
        more_logs=more_logs,
        arguments=arguments,
        arguments_hidden=hidden,
        trace_url=trace_address(caller.trace_url, task.context),
    )


def _unread(caller: Caller) -> str:
    """Return where a task may be that no table has: in the logs of ordered queues, which only a
    command reads."""
    if not caller.is_command or caller.context.connector.connections.log is None:
        return ""
    found = caller.wait(caller.management.ordered.unread())
    return "".join(
        f"; {count:,} entries of the log of {queue!r} are not read yet, and the task may be one of"
        " them"
        for queue, count in found.items()
    )


def _shown_logs(logged: Sequence[RunNotes]) -> tuple[list[RunNotes], int]:
    """Return the notes of the runs whose log lines are shown, first to last, and the number of
    earlier runs whose lines are left out. The latest run with lines is always shown."""
    shown: list[RunNotes] = []
    left = MOST_LOG_CHARS
    for each in reversed(logged):
        left -= sum(len(line.text) for line in each.lines)
        if left < 0 and shown:
            break
        shown.append(each)
    return shown[::-1], len(logged) - len(shown)


def trace_address(trace_url: Callable[[str], str | None] | None, context: str | None) -> str | None:
    """Return the address of the trace that a task's context names; None without one. Only the id of
    a trace, 32 hexadecimal digits, goes into an address."""
    if trace_url is None or context is None:
        return None
    try:
        trace_id = msgspec.json.decode(context, type=dict[str, str])["traceparent"].split("-")[1]
        if len(trace_id) != 32 or not _HEX.issuperset(trace_id):
            return None
        found = trace_url(trace_id)
    except (msgspec.DecodeError, KeyError, IndexError, FairleadError):
        return None
    return found if found is not None and found.startswith(("https://", "http://")) else None


def _arguments(
    caller: Caller, task: TaskRecord, indent: int | None
) -> tuple[str | None, str | None]:
    """Return the arguments as JSON, or None and why they are not shown."""
    if not caller.shows_arguments:
        return None, "arguments are shown through a mask only"
    try:
        payload = caller.management.payload(task.id, tenants=caller.tenants)
    except InvalidTask as error:
        return None, str(error)
    if payload is None:
        return None, "arguments of finished tasks are not kept"
    if len(payload) > _MOST_ARGUMENT_BYTES:
        return None, f"arguments of {len(payload):,} bytes are not shown"
    try:
        arguments = msgspec.json.decode(payload)
    except msgspec.DecodeError as error:
        return None, f"arguments cannot be read: {error}"
    except RecursionError:
        return None, "arguments of too many levels are not shown"
    shown = caller.shown(task.name, arguments)
    try:
        return json.dumps(shown, indent=indent, ensure_ascii=False, default=repr), None
    except RecursionError:
        return None, "arguments of too many levels are not shown"
