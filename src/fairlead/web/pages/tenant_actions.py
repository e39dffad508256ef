"""Weight and limit of selected tenants, or of all that match, after a confirmation that says how
many and names the first few; a worker makes the change as a bulk action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from starlette.responses import Response

from fairlead.core.values import MOST_COUNT
from fairlead.operate.change_operations import chosen_tenants
from fairlead.operate.changes import KeyChange, SetLimits, SetWeights
from fairlead.operate.operations import MOST_ROWS
from fairlead.operate.tenants import TenantSearch
from fairlead.web.inputs import BadInput
from fairlead.web.page import Page
from fairlead.web.routing import Handler, ScreenRoute, action


class Chosen(NamedTuple):
    """Tenants that a form is about."""

    names: list[str]
    fields: Mapping[str, str | list[str]]
    """Fields by which the next form chooses the same tenants."""
    is_sample: bool = False
    """Whether tenants with few tasks may be missing."""


def routes() -> list[ScreenRoute]:
    """Return the routes of these actions; each needs the access of its own verb."""
    found = []
    for verb in ("weight", "limit"):
        found += [
            action(
                f"/tenants/confirm/{verb}",
                _confirm(verb),
                name=f"tenants_confirm_{verb}",
                action=verb,
            ),
            action(f"/tenants/change/{verb}", _change(verb), name=f"tenants_{verb}", action=verb),
        ]
    return found


def _confirm(verb: str) -> Handler:
    def confirm(page: Page) -> Response:
        """Show how many tenants would be changed, and the first few. Changes nothing."""
        chosen = _chosen(page)
        return page.render(
            "tenants_confirm.html",
            verb=verb,
            names=chosen.names,
            fields=chosen.fields,
            is_sample=chosen.is_sample,
            queues=sorted(page.facts.settings),
            queue=page.form.text("queue"),
            back=page.link("tenants", **_filter(page)),
        )

    return confirm


def _change(verb: str) -> Handler:
    def change(page: Page) -> Response:
        """Let a worker make the change."""
        names = tuple(_chosen(page).names)
        asked = page.management.actions.ask(_change_of(verb, page, names))
        return page.done("A worker makes the change in batches.", "action", id=asked.id)

    return change


def _change_of(verb: str, page: Page, names: tuple[str, ...]) -> KeyChange:
    """Return the change that a form asks for. Raise BadInput."""
    queue, actor = page.form.required("of_queue"), page.access.name
    if verb == "weight":
        weight = page.form.number("weight", 0.001, 1000.0)
        return SetWeights(queue=queue, keys=names, weight=weight, actor=actor)
    limit = None
    if page.form.text("limit") is not None:
        limit = page.form.whole("limit", 1, MOST_COUNT, 1)
    return SetLimits(queue=queue, keys=names, limit=limit, actor=actor)


def _chosen(page: Page) -> Chosen:
    """Return the selected tenants, or all that match. Raise BadInput if none is selected."""
    if page.form.one_of("scope", ["selected", "matching"], "selected") == "matching":
        given = _filter(page)
        found = chosen_tenants(page.caller, None, TenantSearch(**given))
        return Chosen(found.names, {"scope": "matching", **given}, found.is_sample)
    names = list(dict.fromkeys(page.form.many("tenant", MOST_ROWS, may_be_empty=True)))
    if not names:
        raise BadInput("no tenant is selected: select some, or choose all that match")
    return Chosen(names, {"tenant": names, **_filter(page)})


def _filter(page: Page) -> dict[str, str]:
    """Return the filter of the list."""
    given = {name: page.form.text(name) for name in ("queue", "search")}
    return {name: text for name, text in given.items() if text is not None}
