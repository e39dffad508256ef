"""One task: why it waits and what must happen, its attempts, arguments and times, and what a person
may do with it."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from fairlead.clock import MICROS
from fairlead.model import FINAL_STATES, AttemptRecord, State, TaskRecord
from fairlead.operate.task_detail import task_detail
from fairlead.web.page import Page
from fairlead.web.routing import ScreenRoute, screen


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
    found = task_detail(page.caller, page.query.required("id", 100), indent=2)
    return page.render(
        "task.html",
        found=found,
        task=found.task,
        steps=_steps(found.task, found.attempts),
        verbs=_verbs(found.task),
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
