"""Filters of tasks as people give them, and the tenants that a person may see."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import TypedDict

import msgspec

from fairlead.core import values
from fairlead.core.arguments import argument_filter
from fairlead.declare.options import Options
from fairlead.errors import InvalidTask
from fairlead.model import FINAL_STATES, State, tenant_of
from fairlead.ports.task_records import TaskFilter

MOST_TENANTS = 10_000
"""Greatest number of tenants that one person may be given."""

_TEXTS = ("queue", "name", "fairness_key", "tenant", "ordering_key", "unique_key", "tags", "error")
"""Conditions that are texts, passed on as they are."""

_HEX = frozenset("0123456789abcdef")


class Counted(msgspec.Struct, frozen=True):
    """A number that was counted up to a bound."""

    number: int
    at_least: bool = False
    """Whether there may be more."""

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.at_least else ''}"


class TaskFilters(TypedDict, total=False):
    """Conditions on tasks; all must hold. Each that is absent or None selects any task."""

    state: State | str | None
    queue: str | None
    name: str | None
    fairness_key: str | None
    tenant: str | None
    """All fairness keys whose first part of the path is this tenant."""
    ordering_key: str | None
    unique_key: str | None
    tags: str | None
    id: str | None
    """Beginning of the id; hyphens do not count."""
    argument: str | None
    """`path=value`, such as `customer.id=7`; of unfinished tasks only."""
    older_than: timedelta | None
    submitted_from: datetime | None
    submitted_before: datetime | None
    error: str | None
    """Part of the type or text of the last error."""


def task_filter(
    filters: TaskFilters,
    scope: Collection[str] | None,
    now: int,
    after: str | None = None,
) -> TaskFilter:
    """Return the filter of a store. `scope`: the tenants that may be seen, None for all; `now`:
    microseconds since the epoch. Raise InvalidTask."""
    if unknown := set(filters) - set(TaskFilters.__annotations__):
        raise InvalidTask(f"filters {', '.join(sorted(unknown))} are unknown")
    texts = {
        what: values.text(what, given, may_be_empty=True, error=InvalidTask)
        for what in _TEXTS
        if (given := filters.get(what)) is not None
    }
    if after is not None:
        values.text("after", after, error=InvalidTask)
    tenant = texts.pop("tenant", None)
    tenants = scope_of(scope)
    if tenant is not None:
        tenants = frozenset({tenant}) if tenants is None else tenants & {tenant}
    argument = filters.get("argument")
    if (state := filters.get("state")) is not None:
        state = values.member("state", state, State, InvalidTask)
    if argument is not None and state in FINAL_STATES:
        raise InvalidTask("argument: the arguments of finished tasks are not kept")
    submitted_from = filters.get("submitted_from")
    return TaskFilter(
        state=state,
        older_than=_submitted_before(filters, now),
        after=after,
        submitted_from=(
            None if submitted_from is None else instant("submitted_from", submitted_from)
        ),
        id_prefix=_digits(filters.get("id")),
        argument=None if argument is None else argument_filter(argument),
        tenants=None if tenants is None else tuple(sorted(tenants)),
        **texts,
    )


def scope_of(tenants: Collection[str] | None) -> frozenset[str] | None:
    """Return the tenants that may be seen; None for all. Raise InvalidTask."""
    if tenants is None:
        return None
    found: set[str] = set()
    for tenant in values.many("tenants", tenants, InvalidTask):
        found.add(values.text("tenants", tenant, may_be_empty=True, error=InvalidTask))
        if len(found) > MOST_TENANTS:
            raise InvalidTask(f"tenants: give at most {MOST_TENANTS:,}")
    return frozenset(found)


def is_within(fairness_key: str, tenants: Collection[str] | None) -> bool:
    """Return whether a person who may see these tenants, or all for None, may see a task. Raise
    InvalidTask."""
    scope = scope_of(tenants)
    return scope is None or tenant_of(fairness_key) in scope


def checked_id(task_id: object) -> str:
    """Return a text that may be a task id. Raise InvalidTask."""
    return values.text("id", task_id, may_be_empty=True, error=InvalidTask)


def instant(what: str, at: datetime | None) -> int:
    """Return an instant in microseconds since the epoch. Raise InvalidTask for a naive datetime."""
    if at is None:
        raise InvalidTask(f"{what} None: use an aware datetime")
    try:
        return Options(run_at=at).run_at_micros(0)
    except InvalidTask as error:
        raise InvalidTask(str(error).replace("run_at", what, 1)) from None


def _submitted_before(filters: TaskFilters, now: int) -> int | None:
    older_than, before = filters.get("older_than"), filters.get("submitted_before")
    found = None if before is None else instant("submitted_before", before)
    if older_than is None:
        return found
    if not isinstance(older_than, timedelta):
        raise InvalidTask(f"older_than {values.brief(older_than)}: use a timedelta")
    at = min(max(now - older_than // timedelta(microseconds=1), 0), now)
    return at if found is None else min(at, found)


def _digits(beginning: str | None) -> str | None:
    """Return the hexadecimal digits of the beginning of an id."""
    if beginning is None:
        return None
    digits = values.text("id", beginning, error=InvalidTask).replace("-", "").lower()
    if len(digits) > 32 or not _HEX.issuperset(digits):
        raise InvalidTask(f"id {values.brief(beginning)}: use the beginning of a task id")
    return digits
