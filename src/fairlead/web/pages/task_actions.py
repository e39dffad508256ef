"""Actions on tasks: on one, on selected ones, or on all that match, after a confirmation that says
how many and shows the first few."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from fairlead.clock import to_micros
from fairlead.core.values import instant
from fairlead.core.visible import visible
from fairlead.errors import FairleadError
from fairlead.operate.changes import CHANGES, Change, NewValues, Reschedule
from fairlead.operate.filters import task_filter
from fairlead.ports.task_records import TaskFilter
from fairlead.web.inputs import BadInput, Inputs
from fairlead.web.page import Page
from fairlead.web.routing import Handler, ScreenRoute, action
from fairlead.web.task_filters import filters_of, pairs_of

MOST_SELECTED = 200
"""Tasks that may be selected in one list."""

_SHOWN = 5
_QUESTIONS = {
    "retry": "Run these tasks now, and count their tries from zero?",
    "resume": "Run these tasks now?",
    "reschedule": "Run these tasks at another time?",
    "change": "Give these tasks another priority or fairness key?",
    "fail": "End these tasks as FAILED? They do not run again.",
    "cancel": "End these tasks as CANCELLED? Running handlers are stopped.",
}


def routes() -> list[ScreenRoute]:
    """Return the routes of all actions on tasks; each needs the access of its own verb."""
    found = []
    for verb in _QUESTIONS:
        found += [
            action(
                f"/tasks/task/{verb}", _one(verb), name=f"task_{verb}", action=verb, scoped=True
            ),
            action(
                f"/tasks/confirm/{verb}",
                _confirm(verb),
                name=f"tasks_confirm_{verb}",
                action=verb,
                scoped=True,
            ),
            action(f"/tasks/{verb}", _many(verb), name=f"tasks_{verb}", action=verb, scoped=True),
        ]
    return found


def _one(verb: str) -> Handler:
    def change_one(page: Page) -> Response:
        """Change one task, if it still has the version that the viewer saw."""
        task_id = page.form.required("id", 100)
        version = page.form.whole("version", 0, (1 << 31) - 1, -1)
        page.management.apply(
            _change(verb, page.form, page.access.name),
            task_id,
            None if version < 0 else version,
            tenants=page.access.tenants,
        )
        return page.done(f"Done: {verb}.", "task", id=task_id)

    return change_one


def _confirm(verb: str) -> Handler:
    def confirm(page: Page) -> Response:
        """Show how many tasks would be changed, and the first few. Changes nothing."""
        ids, matching = _chosen(page.form)
        if ids:
            show, scope = page.management.show, page.access.tenants
            records = [show(task_id, tenants=scope) for task_id in ids[:_SHOWN]]
            number = f"{len(ids):,}"
        else:
            found = page.management.actions.preview(
                _preview_change(verb, page.access.name),
                _where(page),
                first=_SHOWN,
                tenants=page.access.tenants,
                with_any_values=True,
            )
            records, number = found.first, f"{found.changed:,}{'+' if found.is_more else ''}"
        return page.render(
            "confirm.html",
            verb=verb,
            question=_QUESTIONS[verb],
            number=number,
            first=records,
            fields={"task": ids, **matching} if ids else {"scope": "matching", **matching},
            back=page.link("tasks", **matching),
        )

    return confirm


def _many(verb: str) -> Handler:
    def change_many(page: Page) -> Response:
        """Change the selected tasks at once, or let a worker change all that match."""
        ids, matching = _chosen(page.form)
        change = _change(verb, page.form, page.access.name)
        if not ids:
            asked = page.management.actions.ask(change, _where(page), tenants=page.access.tenants)
            return page.done("A worker makes the change in batches.", "action", id=asked.id)
        results = page.management.apply_all(change, ids, tenants=page.access.tenants)
        refused = [error for error in results.values() if error is not None]
        message = f"{change.done}: {len(results) - len(refused):,}"
        if refused:
            message += f"; refused: {len(refused):,}, the first because {_text(refused[0])}"
        return page.done(message, "tasks", **{name: each[0] for name, each in matching.items()})

    return change_many


def _chosen(form: Inputs) -> tuple[list[str], Mapping[str, list[str]]]:
    """Return the selected ids, empty for all that match, and the filter of the list. Raise BadInput
    if nothing is selected."""
    ids = list(dict.fromkeys(form.many("task", MOST_SELECTED)))
    is_matching = form.one_of("scope", ["selected", "matching"], "selected") == "matching"
    if not ids and not is_matching:
        raise BadInput("no task is selected: select some, or choose all that match")
    return ([], pairs_of(form)) if is_matching else (ids, pairs_of(form))


def _where(page: Page) -> TaskFilter:
    filters = page.caller.searchable(filters_of(page.form))
    return task_filter(filters, page.access.tenants, page.context.clock.now())


def _preview_change(verb: str, actor: str) -> Change:
    """Return a change of this kind whose values do not matter for a count."""
    values = [("run_at", "2100-01-01T00:00"), ("priority", "0")]
    return _change(verb, Inputs(values), actor)


def _change(verb: str, form: Inputs, actor: str) -> Change:
    """Return the change that a form asks for. Raise BadInput."""
    if verb == "reschedule":
        run_at = instant("run_at", form.required("run_at", 64), BadInput)
        return Reschedule(run_at=to_micros(run_at), actor=actor)
    if verb != "change":
        return CHANGES[verb](actor=actor)
    priority = form.whole("priority", 0, 9, -1)
    return NewValues(
        priority=None if priority < 0 else priority,
        fairness_key=form.text("new_key"),
        actor=actor,
    )


def _text(error: FairleadError) -> str:
    return visible(str(error))
