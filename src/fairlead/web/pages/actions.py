"""Bulk actions with their progress, and the log of what people did."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.operate.change_operations import interrupt_action, resume_action
from fairlead.operate.operations import MOST_ID
from fairlead.operate.store.actions import ActionState
from fairlead.operate.store.audit import AuditEntry
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, action, screen

NAVIGATION = Navigation(title="Actions", route="actions", order=130)

_VERBS = frozenset({"retry", "resume", "reschedule", "change", "cancel", "fail", "weight", "limit"})
"""Verbs of bulk actions. Who interrupts or resumes one must have the right to its verb."""
_OVER = frozenset({ActionState.DONE, ActionState.FAILED})


def routes() -> list[ScreenRoute]:
    """Return the routes of these screens."""
    return [
        screen("/actions", show_actions, name="actions", scoped=True),
        screen("/actions/action", show_action, name="action", scoped=True),
        screen("/audit", show_audit, name="audit", scoped=True),
        action(
            "/actions/interrupt", interrupt, name="action_interrupt", action=_VERBS, scoped=True
        ),
        action("/actions/resume", resume, name="action_resume", action=_VERBS, scoped=True),
    ]


def show_actions(page: Page) -> Response:
    """Show bulk actions, the latest first."""
    rows, scope = page.query.rows(), page.access.tenants
    before = page.query.whole("before", 0, MOST_ID, 0) or None
    found = page.shared(
        ("actions", before, rows, scope),
        lambda: page.management.actions.list(before=before, limit=rows + 1, tenants=scope),
    )
    shown = found[:rows]
    return page.render(
        "actions.html",
        actions=shown,
        first=page.with_query(before=None) if before else None,
        following=page.with_query(before=shown[-1].id) if len(found) > rows else None,
        now=page.context.clock.now(),
    )


def show_action(page: Page) -> Response:
    """Show one bulk action with its progress."""
    number, scope = page.query.whole("id", 1, MOST_ID, 0), page.access.tenants
    found = page.management.actions.show(number, tenants=scope)
    is_allowed = page.access.may(found.verb)
    entries = page.management.audit.list(action=number, tenants=scope, limit=50)
    return page.render(
        "action.html",
        action=found,
        is_over=found.state in _OVER or not is_allowed,
        is_interrupted=is_allowed and found.state == ActionState.INTERRUPTED,
        entries=entries,
        now=page.context.clock.now(),
    )


def show_audit(page: Page) -> Response:
    """Show what people did, the latest first."""
    rows, scope = page.query.rows(), page.access.tenants
    before = page.query.whole("before", 0, MOST_ID, 0) or None
    texts = {
        name: page.query.text(name)
        for name in ("actor", "verb", "queue", "fairness_key", "task_id")
    }
    found: list[AuditEntry] = page.management.audit.list(
        action=None, before=before, limit=rows + 1, tenants=scope, **texts
    )
    shown = found[:rows]
    return page.render(
        "audit.html",
        entries=shown,
        chosen=texts,
        first=page.with_query(before=None) if before else None,
        following=page.with_query(before=shown[-1].id) if len(found) > rows else None,
    )


def interrupt(page: Page) -> Response:
    """Let a bulk action stop after its present batch."""
    number = page.form.whole("id", 1, MOST_ID, 0)
    interrupt_action(page.caller, id=number)
    return page.done("The action stops after its present batch.", "action", id=number)


def resume(page: Page) -> Response:
    """Let a worker go on with an interrupted bulk action."""
    number = page.form.whole("id", 1, MOST_ID, 0)
    resume_action(page.caller, id=number)
    return page.done("A worker goes on with the action.", "action", id=number)
