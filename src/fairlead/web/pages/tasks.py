"""The list of tasks: the filter is the address, pages go on by a cursor, counts are capped."""

from __future__ import annotations

from starlette.responses import Response

from fairlead.model import FINAL_STATES, State
from fairlead.operate.filters import Counted
from fairlead.operate.operations import Filter
from fairlead.web.api.operations import read
from fairlead.web.page import FACTS_SECONDS, Page
from fairlead.web.routing import Navigation, ScreenRoute, screen

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
    fields = Filter.__struct_fields__
    chosen = {name: text for name, text in page.query.pairs() if name in fields and text}
    if page.query.flag("no_key"):
        chosen["no_key"] = "on"
    found = read(page, "tasks")
    if page.query.text("after") is None and len(found.tasks) < page.query.rows():
        # The page has walked as far as a count would.
        number = Counted(len(found.tasks), found.next is not None)
    else:
        number = read(page, "task_count", seconds=FACTS_SECONDS)
    return page.render(
        "tasks.html",
        tasks=found.tasks,
        number=number,
        chosen=chosen,
        matching=_hidden(chosen),
        has_filter=any(name != "state" for name in chosen),
        order=page.query.text("order") or "newest",
        orders=_ORDERS,
        states=[("", "unfinished"), *((state.value, state.value) for state in State)],
        ages=_AGES,
        is_final=chosen.get("state") in FINAL_STATES,
        is_cut=found.is_cut,
        not_searched=found.not_searched,
        now=page.context.clock.now(),
        **page.pager(found.next),
    )


def _hidden(chosen: dict[str, str]) -> dict[str, str]:
    """Return the fields by which a form selects the tasks of the list."""
    found = {f"filter.{name}": given for name, given in chosen.items() if name != "no_key"}
    return found | ({"filter.fairness_key": ""} if "no_key" in chosen else {})
