"""The tenants: who waits, who got what, and who was due what; one tenant with its part of every
queue."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.operate.tenants import settings_of_key
from fairlead.web.api.operations import read
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

NAVIGATION = Navigation(title="Tenants", route="tenants", order=30)

_ORDERS = [
    ("backlog", "most tasks ready"),
    ("wait", "longest wait"),
    ("share", "greatest share"),
    ("name", "name"),
]


def routes() -> list[ScreenRoute]:
    """Return the routes of these screens."""
    return [
        screen("/tenants", show_tenants, name="tenants", scoped=True),
        screen("/tenants/tenant", show_tenant, name="tenant", scoped=True),
    ]


def show_tenants(page: Page) -> Response:
    """Show a page of tenants."""
    found = read(page, "tenants", of_facts=True)
    chosen = {name: text for name in ("queue", "search") if (text := page.query.text(name))}
    return page.render(
        "tenants.html",
        found=found,
        order=page.query.text("order") or "backlog",
        orders=_ORDERS,
        queue=chosen.get("queue"),
        search=chosen.get("search"),
        matching={f"matching.{name}": text for name, text in chosen.items()},
        now=page.context.clock.now(),
        **page.pager(found.next),
    )


def show_tenant(page: Page) -> Response:
    """Show one tenant, by any of its fairness keys. Raise UnknownTask for one that the viewer may
    not see."""
    key = page.query.exact("key") or ""
    found = read(page, "tenant", of_facts=True)
    settings, queues = page.of_facts(
        ("settings of key", key),
        lambda facts: (
            settings_of_key(page.context, key, facts=facts),
            sorted(facts.settings),
        ),
    )
    return page.render(
        "tenant.html",
        found=found,
        key=key,
        settings=[] if key == found.tenant else settings,
        known=queues if page.has("set_limit") else [],
        now=page.context.clock.now(),
    )
