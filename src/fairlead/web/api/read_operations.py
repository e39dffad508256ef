"""Operations of the JSON API that read."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import msgspec

from fairlead.model import State
from fairlead.operate.filters import Counted, TaskFilters
from fairlead.web.api import documents
from fairlead.web.api.operations import AFTER, ROWS, Parameter, Read, choice, text
from fairlead.web.api.reads import READ_METHODS, ReadMethod, Reads
from fairlead.web.masking import check_search
from fairlead.web.page import Page
from fairlead.web.task_filters import filters_of

_ORDERS = ["newest", "oldest"]

FILTERS = (
    choice("state", "State; without it, unfinished tasks.", list(State), None),
    text("queue", "Queue."),
    text("name", "Name of the task's function."),
    text("fairness_key", "Fairness key."),
    Parameter(
        name="no_key",
        description="`on`: tasks without a fairness key.",
        schema={"type": "string", "enum": ["on", "off", "1", "0"], "default": "off"},
    ),
    text("tenant", "Tenant: the first part of the fairness key."),
    text("ordering_key", "Ordering key."),
    text("unique_key", "Unique key."),
    text("id", "Beginning of the id."),
    text("argument", "PATH=VALUE, such as customer.id=7; unfinished tasks only."),
    text("error", "Part of the type or text of the last error."),
    Parameter(
        name="older_than",
        description="Seconds since the submit, at least.",
        schema={"type": "integer", "minimum": 0, "maximum": 10 * 365 * 86_400},
    ),
    text("submitted_from", "ISO 8601, in UTC without an offset."),
    text("submitted_before", "ISO 8601, in UTC without an offset."),
)
"""Parameters of a filter of tasks, the same as those of the screen."""


def reads_of(page: Page) -> Reads:
    """Return the reads of the viewer who sends a request."""
    return Reads(
        page.parts.app,
        tenants=page.access.tenants,
        show_arguments=page.arguments,
        trace_url=page.parts.settings.trace_url,
        read_loop=page.parts.read_loop,
        facts=lambda: page.facts,
    )


def _access(page: Page) -> documents.Rights:
    access = page.access
    return documents.Rights(
        name=access.name,
        actions=sorted(access.actions),
        tenants=None if access.tenants is None else sorted(access.tenants),
        csrf_token=page.csrf_token or None,
    )


def _filters(page: Page) -> TaskFilters:
    return check_search(page.parts.settings.mask, filters_of(page.query))


def _tasks(page: Page) -> documents.TaskList:
    return reads_of(page).tasks(
        _filters(page),
        order=page.query.one_of("order", _ORDERS, "newest") or "newest",
        after=page.query.text("after"),
        rows=page.query.rows(),
    )


def _read(found: ReadMethod) -> Read:
    """Return the operation that calls a method of Reads."""

    def respond(page: Page) -> msgspec.Struct:
        given = {each.name: each.read(page) for each in found.parameters if each.read is not None}
        return found.method(reads_of(page), **given)

    return Read(
        name=found.name,
        path=found.path,
        summary=(inspect.getdoc(found.method) or "").split("\n")[0],
        result=get_type_hints(found.method)["return"],
        respond=respond,
        parameters=found.parameters,
        scoped=found.scoped,
    )


READS: tuple[Read, ...] = (
    Read(
        name="access",
        path="/access",
        summary="Return the rights of the caller.",
        result=documents.Rights,
        respond=_access,
        scoped=True,
        is_shared=False,
    ),
    Read(
        name="tasks",
        path="/tasks",
        summary="List tasks that match a filter.",
        result=documents.TaskList,
        respond=_tasks,
        parameters=(*FILTERS, choice("order", "Order.", _ORDERS, "newest"), AFTER, ROWS),
        scoped=True,
    ),
    Read(
        name="task_count",
        path="/tasks/count",
        summary="Count tasks that match a filter, up to 1,000.",
        result=Counted,
        respond=lambda page: reads_of(page).count(_filters(page)),
        parameters=FILTERS,
        scoped=True,
    ),
    *map(_read, READ_METHODS),
)
"""All operations that read."""
