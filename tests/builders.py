"""Tasks and triggers with defaults, for tests that care about a few of their fields, and tasks that do
nothing, for tests that care only about their submits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from fairlead import App
from fairlead.model import NewTask, Trigger
from fairlead.operate.changes import Change
from fairlead.operate.store.actions import BulkAction
from fairlead.operate.tasks import Management
from fairlead.testing.contract.tasks import make

[_TASK] = make(queue="q", name="work", payload=b"{}", submitted_at=0)
_TRIGGER = Trigger(
    id="",
    version=1,
    queue="q",
    partition=0,
    name="pay",
    priority=5,
    fairness_key="",
    weight=1.0,
    ordering_key=None,
)


def task(id: str = "", **fields: Any) -> NewTask:
    """Return a new task with these fields; due at its submit unless `run_at` is one of them."""
    return msgspec.structs.replace(
        _TASK, id=id, **{"run_at": fields.get("submitted_at", 0)} | fields
    )


def trigger(id: int | str = 0, name: str = "pay", key: str = "", **fields: Any) -> Trigger:
    """Return a trigger of a task of this name and fairness key, with these other fields; an id
    that is a number is its position too."""
    fields = {"seq": id if isinstance(id, int) else 0} | fields
    return msgspec.structs.replace(_TRIGGER, id=str(id), name=name, fairness_key=key, **fields)


def idle(app: App, name: str, **options: Any) -> Any:
    """Return a task of the application that takes a number, or nothing, and does nothing."""

    async def nothing(n: int = 0) -> None: ...

    return app.task(name=name, **options)(nothing)


def changed_all(
    management: Management,
    change: Change,
    *,
    limit: int | None = None,
    tenants: Collection[str] | None = None,
    on_batch: Callable[[BulkAction], None] | None = None,
    **filters: Any,
) -> BulkAction:
    """Perform a bulk action in this process; return it as it was left."""
    where, actions = management.where(**filters), management.actions
    asked = actions.ask(change, where, limit=limit, tenants=tenants, is_here=True)
    return actions.perform(asked, on_batch=on_batch)
