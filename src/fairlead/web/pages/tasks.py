"""The list of tasks: the filter is the address, pages go on by a cursor, counts are capped."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.model import FINAL_STATES, State
from fairlead.model.task_facts import TaskPage
from fairlead.operate.filters import Counted
from fairlead.web.page import FACTS_SECONDS, Page
from fairlead.web.routing import Navigation, ScreenRoute, screen
from fairlead.web.task_filters import filters_of, pairs_of

NAVIGATION = Navigation(title="Tasks", route="tasks", order=20)

_ORDERS = [("newest", "newest"), ("oldest", "oldest")]
_AGES = [
    ("", "any"),
    ("60", "1 minute"),
    ("600", "10 minutes"),
    ("3600", "1 hour"),
    ("21600", "6 hours"),
    ("86400", "1 day"),
    ("604800", "7 days"),
]


def routes() -> list[ScreenRoute]:
    """Return the routes of this screen."""
    return [screen("/tasks", show_tasks, name="tasks", scoped=True)]


def show_tasks(page: Page) -> Response:
    """Show a page of the tasks that match."""
    filters = page.caller.searchable(filters_of(page.query))
    rows = page.query.rows()
    order = page.query.one_of("order", ["newest", "oldest"], "newest")
    after = page.query.text("after")
    chosen = pairs_of(page.query)
    scope = page.access.tenants
    key = (str(sorted(chosen.items())), order, after, rows, scope)

    def read() -> TaskPage:
        return page.management.page(
            newest_first=order == "newest", after=after, limit=rows, tenants=scope, **filters
        )

    found = page.shared(("tasks", *key), read)
    if after is None and len(found.tasks) < rows:  # it has walked as far as a count would
        number = Counted(len(found.tasks), found.next is not None)
    else:
        number = page.shared(
            ("number of tasks", key[0], scope),
            lambda: page.management.count(tenants=scope, **filters),
            FACTS_SECONDS,
        )
    is_final = filters.get("state") in FINAL_STATES
    return page.render(
        "tasks.html",
        tasks=found.tasks,
        number=number,
        chosen={name: given[0] for name, given in chosen.items()},
        matching=chosen,
        has_filter=any(name != "state" for name in chosen),
        order=order,
        orders=_ORDERS,
        states=[("", "unfinished"), *((state.value, state.value) for state in State)],
        ages=_AGES,
        is_final=is_final,
        is_cut=found.is_cut,
        not_searched=found.not_searched,
        first=page.with_query(after=None) if after else None,
        following=page.with_query(after=found.next) if found.next else None,
        now=page.context.clock.now(),
    )
