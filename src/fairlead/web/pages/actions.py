"""Bulk actions with their progress, and the log of what people did."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.operate.store.actions import ActionState
from fairlead.web.api.operations import read
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="Actions", route="actions", order=130)

_OVER = frozenset({ActionState.DONE, ActionState.FAILED})


def routes() -> list[ScreenRoute]:
    """Return the routes of these screens."""
    return [
        screen("/actions", show_actions, name="actions", scoped=True),
        screen("/actions/action", show_action, name="action", scoped=True),
        screen("/audit", show_audit, name="audit", scoped=True),
    ]


def show_actions(page: Page) -> Response:
    """Show bulk actions, the latest first."""
    found = read(page, "actions")
    now = page.context.clock.now()
    return page.render("actions.html", actions=found.rows, now=now, **page.pager(found.next))


def show_action(page: Page) -> Response:
    """Show one bulk action with its progress."""
    found = read(page, "action")
    is_allowed = page.access.may(found.verb)
    entries = page.management.audit.list(action=found.id, tenants=page.access.tenants, limit=50)
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
    found = read(page, "audit")
    chosen = {
        name: page.query.text(name)
        for name in ("actor", "verb", "queue", "fairness_key", "task_id")
    }
    return page.render("audit.html", entries=found.rows, chosen=chosen, **page.pager(found.next))
