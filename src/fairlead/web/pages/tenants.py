"""The tenants: who waits, who got what, and who was due what; one tenant with its part of every
queue."""

from __future__ import annotations

from typing import get_args

from starlette.responses import Response

from fairlead.core.values import MOST_COUNT
from fairlead.errors import UnknownTask
from fairlead.model import tenant_of
from fairlead.operate import tenants as reads
from fairlead.operate.read_operations import MOST_SKIPPED
from fairlead.web.page import Page
from fairlead.web.routing import Navigation, ScreenRoute, action, screen

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
        action("/tenants/weight", set_weight, name="tenant_weight", action="weight"),
        action("/tenants/limit", set_limit, name="tenant_limit", action="limit"),
    ]


def show_tenants(page: Page) -> Response:
    """Show a page of tenants."""
    order = page.query.one_of("order", get_args(reads.TenantOrder), "backlog") or "backlog"
    queue, search = page.query.text("queue"), page.query.text("search")
    skip, rows = page.query.whole("skip", 0, MOST_SKIPPED, 0), page.query.rows()
    scope = page.access.tenants
    found = page.of_facts(
        ("tenants", order, queue, search, skip, rows, scope),
        lambda facts: reads.tenants(
            page.context,
            reads.TenantSearch(queue=queue, search=search),
            order=order,  # type: ignore[arg-type]
            skip=skip,
            limit=rows,
            tenants=scope,
            facts=facts,
        ),
    )
    return page.render(
        "tenants.html",
        found=found,
        order=order,
        orders=_ORDERS,
        queue=queue,
        search=search,
        matching={
            name: text for name, text in (("queue", queue), ("search", search)) if text is not None
        },
        first=page.with_query(skip=None) if skip else None,
        following=None if found.next is None else page.with_query(skip=found.next),
        now=page.context.clock.now(),
    )


def show_tenant(page: Page) -> Response:
    """Show one tenant, by any of its fairness keys. Raise UnknownTask for one that the viewer may
    not see."""
    key = page.query.exact("key") or ""
    if not page.access.sees(key):
        raise UnknownTask(f"no tenant {tenant_of(key)!r}")
    scope = page.access.tenants
    found = page.of_facts(
        ("tenant", key, scope),
        lambda facts: reads.tenant(page.context, tenant_of(key), tenants=scope, facts=facts),
    )
    settings, queues = page.of_facts(
        ("settings of key", key),
        lambda facts: (
            reads.settings_of_key(page.context, key, facts=facts),
            sorted(facts.settings),
        ),
    )
    return page.render(
        "tenant.html",
        found=found,
        key=key,
        settings=[] if key == found.tenant else settings,
        known=queues if page.has("tenant_limit") else [],
        now=page.context.clock.now(),
    )


def set_weight(page: Page) -> Response:
    """Set the weight of a key in one queue, or return to the weights of its tasks."""
    key, queue = page.form.exact("key") or "", page.form.required("queue")
    weight = page.form.number("weight", 0.001, 1000.0)
    page.management.set_weight(queue, key, weight, actor=page.access.name)
    what = "the weights of its tasks hold" if weight is None else f"weight {weight:g}"
    return page.done(f"{key or '(no key)'} in {queue}: {what} from now on.", "tenant", key=key)


def set_limit(page: Page) -> Response:
    """Set how many tasks of a key each node runs at once in one queue, or lift the limit."""
    key, queue = page.form.exact("key") or "", page.form.required("queue")
    limit = None
    if page.form.text("limit") is not None:
        limit = page.form.whole("limit", 1, MOST_COUNT, 1)
    page.management.set_limit(queue, key, limit, actor=page.access.name)
    what = "no limit set at run time" if limit is None else f"at most {limit:,} on each node"
    return page.done(f"{key or '(no key)'} in {queue}: {what} from now on.", "tenant", key=key)
