"""One task: why it waits and what must happen, its attempts, arguments and times, and what a person
may do with it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from starlette.responses import Response

from fairlead.clock import MICROS
from fairlead.errors import InvalidTask
from fairlead.model import FINAL_STATES, AttemptRecord, State, TaskRecord
from fairlead.operate.doctor.explain import explanation
from fairlead.web.page import Page
from fairlead.web.routing import ScreenRoute, screen
from fairlead.web.run_logs import latest_progress, shown_logs
from fairlead.web.traces import trace_address

_MOST_ATTEMPTS = 200
"""Attempts that the screen shows, the latest ones."""
_MOST_ARGUMENT_BYTES = 100_000
"""Bytes of arguments that the screen shows."""
_TOO_DEEP = "not shown: too many levels"


class Step(msgspec.Struct, frozen=True):
    """One instant of a task's life."""

    at: int
    what: str
    node: str | None = None


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [screen("/tasks/task", show_task, name="task", scoped=True)]


def show_task(page: Page) -> Response:
    """Show one task, by its id or the beginning of it."""
    scope, management = page.access.tenants, page.management
    task = management.named(page.query.required("id", 100), tenants=scope)
    attempts = management.attempts(task.id, tenants=scope)
    notes = management.notes(task.id, tenants=scope)
    logs, more_logs = shown_logs(notes)
    found = page.wait(explanation(page.context, task.id, tenants=scope))
    return page.render(
        "task.html",
        task=task,
        reasons=found.reasons,
        attempts=attempts[-_MOST_ATTEMPTS:][::-1],
        hidden=max(len(attempts) - _MOST_ATTEMPTS, 0),
        logs=logs[::-1],
        more_logs=more_logs,
        progress=latest_progress(notes),
        steps=_steps(task, attempts[-_MOST_ATTEMPTS:]),
        arguments=_arguments(page, task),
        trace=trace_address(page.parts.settings.trace_url, task.context),
        verbs=_verbs(task),
        now=page.context.clock.now(),
        micros=MICROS,
    )


def _verbs(task: TaskRecord) -> list[str]:
    """Return the actions that fit the state of the task."""
    if task.state in FINAL_STATES:
        return []
    found = {
        State.ERROR: ["retry", "fail", "cancel"],
        State.WAITING: ["resume", "reschedule", "change", "cancel"],
        State.SUBMITTED: ["change", "cancel"],
        State.PROCESSING: ["cancel"],
    }
    return found[task.state]


def _steps(task: TaskRecord, attempts: list[AttemptRecord]) -> list[Step]:
    """Return the instants of the task, earliest first."""
    found = [Step(task.submitted_at, "submitted")]
    for each in attempts:
        number = f"attempt {each.attempt}"
        if each.claimed_at is not None:
            found.append(Step(each.claimed_at, f"{number} claimed", each.node))
        if each.started_at is not None:
            found.append(Step(each.started_at, f"{number} started", each.node))
        found.append(Step(each.finished_at, f"{number} ended: {each.outcome}", each.node))
    if task.state == State.PROCESSING and task.claimed_at is not None:
        found.append(Step(task.claimed_at, f"attempt {task.attempt} claimed", task.node))
    if task.state == State.WAITING:
        found.append(Step(task.run_at, "runs next"))
    return sorted(found, key=lambda step: step.at)


def _arguments(page: Page, task: TaskRecord) -> str | None:
    """Return the arguments as the viewer may see them; None if they are not kept any more."""
    try:
        payload = page.management.payload(task.id, tenants=page.access.tenants)
    except InvalidTask as error:
        return f"cannot be shown: {error}"
    if payload is None:
        return None
    if len(payload) > _MOST_ARGUMENT_BYTES:
        return f"not shown: {len(payload):,} bytes"
    try:
        arguments: Any = msgspec.json.decode(payload)
    except msgspec.DecodeError as error:
        return f"cannot be shown: {error}"
    except RecursionError:
        return _TOO_DEEP
    shown = page.arguments(task.name, arguments)
    try:
        return json.dumps(shown, indent=2, ensure_ascii=False, default=repr)
    except RecursionError:
        return _TOO_DEEP
