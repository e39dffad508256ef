"""Operations that read."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from fairlead.errors import NotSupported
from fairlead.model import Incident, ScheduledTask
from fairlead.model.task_facts import TaskPage
from fairlead.operate.caller import Caller
from fairlead.operate.changes import shown_text
from fairlead.operate.doctor import Explanation, examine, explanation
from fairlead.operate.doctor.finding import Finding
from fairlead.operate.documents import taken
from fairlead.operate.filters import Counted, TaskFilters
from fairlead.operate.incidents import latest_incidents
from fairlead.operate.nodes import NodeView, nodes
from fairlead.operate.operations import (
    DEFAULT_ROWS,
    Arguments,
    Cursor,
    Filter,
    Id,
    Operation,
    RowNumber,
    Text,
    declare,
)
from fairlead.operate.ordered import OrderedManagement
from fairlead.operate.overview import QueueView, queue_view
from fairlead.operate.periodic import PeriodicStatus
from fairlead.operate.policies import PolicyManagement
from fairlead.operate.queues import bare_queues
from fairlead.operate.results import (
    OrderedQueue,
    PolicyEntry,
    PolicyList,
    QueueList,
    Rows,
    TenantWhy,
)
from fairlead.operate.store.actions import BulkAction
from fairlead.operate.store.audit import AuditEntry
from fairlead.operate.store.policies import Policy
from fairlead.operate.summary import Summary, summary
from fairlead.operate.task_detail import TaskDetail, task_detail
from fairlead.operate.tenants import Tenant, TenantOrder, TenantPage, TenantSearch, tenant, tenants

T = TypeVar("T")
MOST_SKIPPED = 1_000_000
"""Greatest number of tenants before a page."""

_EXPLAINED = 3
"""Tasks of a tenant that are explained."""
_SEVERITIES = {"problem": 0, "note": 1, "ok": 2}

Key = Annotated[
    Text, Meta(description="Tenant, or any of its fairness keys; empty for tasks without one.")
]
TaskId = Annotated[Text, Meta(description="Id of the task, or its beginning.")]

READS: list[Operation] = []
"""All operations that read."""
_read = partial(declare, READS)


# overview, tenants, queues ------------------------------------------------------------------------


@_read("/overview", name="overview", command="overview", scoped=True, is_tool=True)
def show_overview(caller: Caller) -> Summary:
    """Show the state of all queues, and what needs a person first."""
    return summary(caller.context, tenants=caller.tenants, facts=caller.facts())


@_read(
    "/tenants",
    name="tenants",
    command="tenants",
    example="--order wait --queue mail",
    scoped=True,
    is_tool=True,
)
def list_tenants(
    caller: Caller,
    *,
    order: TenantOrder = "backlog",
    queue: Text | None = None,
    search: Annotated[Text, Meta(description="Part of the tenant's name.")] | None = None,
    after: Annotated[int, Meta(ge=0, le=MOST_SKIPPED)] = 0,
    rows: RowNumber = DEFAULT_ROWS,
) -> TenantPage:
    """List tenants: backlog, waits, share of run time got and due."""
    return tenants(
        caller.context,
        TenantSearch(queue=queue, search=search),
        order=order,
        skip=after,
        limit=rows,
        tenants=caller.tenants,
        facts=caller.facts(),
    )


@_read("/tenant", name="tenant", scoped=True, is_tool=True)
def show_tenant(caller: Caller, *, key: Key) -> Tenant:
    """Show one tenant with its part of every queue.

    Raise UnknownTask for one that the caller may not see.
    """
    name = caller.tenant_named(key)
    return tenant(caller.context, name, tenants=caller.tenants, facts=caller.facts())


@_read("/tenant/why", command="tenants show", example="acme", scoped=True, is_tool=True)
def tenant_why(caller: Caller, *, key: Key) -> TenantWhy:
    """Show why a tenant waits: its numbers, and its oldest tasks explained."""
    found = show_tenant(caller, key=key)
    oldest = caller.management.page(
        newest_first=False, limit=_EXPLAINED, tenants=caller.tenants, tenant=found.tenant
    )
    return TenantWhy(tenant=found, oldest=[_explained(caller, task.id) for task in oldest.tasks])


@_read("/queues", name="queues", command="queues", scoped=True, is_tool=True)
def list_queues(caller: Caller) -> QueueList:
    """List queues: backlog, pause, living nodes, rates, waits and errors."""
    context = caller.context
    if caller.tenants is not None or context.cluster.with_tasks() is not None:
        return taken(QueueList, show_overview(caller))
    return QueueList(at=context.clock.now(), queues=bare_queues(context))


@_read("/queue", name="queue", command="queues show", example="payouts", scoped=True, is_tool=True)
def show_queue(caller: Caller, *, name: Text) -> QueueView:
    """Show one queue: tenants, partitions with their levels, limits.

    Raise UnknownQueue.
    """
    return caller.wait(
        queue_view(caller.context, name, tenants=caller.tenants, facts=caller.facts())
    )


# tasks --------------------------------------------------------------------------------------------


@_read(
    "/tasks",
    name="tasks",
    command="tasks",
    example="--state ERROR --name payout --older-than 1h",
    base=Filter,
    scoped=True,
    is_tool=True,
)
def list_tasks(
    caller: Caller,
    *,
    filters: TaskFilters,
    order: Literal["newest", "oldest"] = "newest",
    after: Cursor | None = None,
    rows: RowNumber = DEFAULT_ROWS,
) -> TaskPage:
    """List tasks that match a filter; without a state, unfinished ones."""
    return caller.management.page(
        newest_first=order == "newest",
        after=after,
        limit=rows,
        tenants=caller.tenants,
        **filters,
    )


@_read("/tasks/count", base=Filter, scoped=True)
def task_count(caller: Caller, *, filters: TaskFilters) -> Counted:
    """Count tasks that match a filter, up to 1,000."""
    return caller.management.count(tenants=caller.tenants, **filters)


@_read(
    "/tasks/{id}",
    name="task",
    command="tasks show",
    example="01938d2c-...",
    scoped=True,
    is_tool=True,
)
def show_task(caller: Caller, *, id: TaskId) -> TaskDetail:
    """Show a task, by its id or the beginning of it, and why it waits."""
    return task_detail(caller, id)


@_read("/tasks/{id}/why", scoped=True, is_tool=True)
def task_why(caller: Caller, *, id: TaskId) -> Explanation:
    """Show why a task is in its state, and what must happen.

    Raise UnknownTask.
    """
    return _explained(caller, caller.management.named(id, tenants=caller.tenants).id)


# the whole cluster --------------------------------------------------------------------------------


@_read("/nodes", name="nodes", command="nodes")
def list_nodes(caller: Caller) -> list[NodeView]:
    """List worker processes, the latest heartbeat first, at most 1,000."""
    return caller.wait(nodes(caller.context, tenants=caller.tenants))


@_read("/incidents", command="incidents")
def incidents(
    caller: Caller, *, after: Id | None = None, rows: RowNumber = DEFAULT_ROWS
) -> Rows[Incident]:
    """List open incidents, the latest first."""
    return _rows(latest_incidents(caller.context, after, rows + 1), rows)


@_read("/periodic", name="periodic", command="periodic")
def list_periodic(caller: Caller) -> list[PeriodicStatus]:
    """List periodic tasks, by name."""
    return caller.management.periodic.list(tenants=caller.tenants)


@_read("/ordered", name="ordered", command="ordered", example="--queue reminders")
def list_ordered(caller: Caller, *, queue: Text | None = None) -> list[OrderedQueue]:
    """List the ordered queues that the application declares, or one, with their partitions.

    A queue that is neither served nor used yet has none."""
    context = caller.context
    names = context.ordered_queues if queue is None else [queue]
    if not names:
        return []
    known = context.cluster.database.read_now(context.cluster.queue_settings())
    status = OrderedManagement(context).status
    return [
        OrderedQueue(
            queue=name,
            partitions=caller.wait(status(name)) if name in known or name == queue else [],
        )
        for name in sorted(names)
    ]


@_read("/ordered/tasks", command="ordered tasks", example="reminders --ordering-key user-7")
def ordered_tasks(
    caller: Caller,
    *,
    name: Text,
    ordering_key: Text | None = None,
    partition: Annotated[int, Meta(ge=0, description="Only this partition.")] | None = None,
    rows: RowNumber = DEFAULT_ROWS,
) -> list[ScheduledTask]:
    """List unfinished tasks of an ordered queue, earliest first.

    Raise UnknownQueue.
    """
    management = OrderedManagement(caller.context)
    return caller.wait(
        management.tasks(name, ordering_key=ordering_key, partition=partition, limit=rows)
    )


@_read("/policies")
def policies(
    caller: Caller, *, queue: Text | None = None, rows: RowNumber = DEFAULT_ROWS
) -> PolicyList:
    """List versions of computed weights and limits, and the switches."""
    management = PolicyManagement(caller.context)
    return PolicyList(
        policies=[taken(PolicyEntry, each) for each in management.policies(queue, rows)],
        switches=management.switches(),
    )


@_read("/policy")
def policy(caller: Caller, *, version: Id) -> Policy:
    """Show one version with its weights and limits.

    Raise UnknownPolicy.
    """
    return PolicyManagement(caller.context).policy(version)


@_read("/doctor", is_tool=True)
def doctor(caller: Caller) -> list[Finding]:
    """List what the doctor finds."""
    try:
        facts = caller.facts()
    except NotSupported:
        facts = None
    found = caller.wait(examine(caller.context, facts=facts))
    return sorted(found, key=lambda finding: _SEVERITIES[finding.severity])


# people -------------------------------------------------------------------------------------------


@_read("/actions", name="actions", command="actions", scoped=True)
def list_actions(
    caller: Caller, *, after: Id | None = None, rows: RowNumber = DEFAULT_ROWS
) -> Rows[BulkAction]:
    """List bulk actions, the newest first."""
    found = caller.management.actions.list(before=after, limit=rows + 1, tenants=caller.tenants)
    return _rows([shown_action(each) for each in found], rows)


@_read("/actions/{id}", name="action", scoped=True)
def show_action(caller: Caller, *, id: Id) -> BulkAction:
    """Show one bulk action with its progress.

    Raise UnknownAction.
    """
    return shown_action(caller.management.actions.show(id, tenants=caller.tenants))


class AuditConditions(Arguments, frozen=True, kw_only=True):
    """Conditions on entries of the audit; all must hold. One that is absent selects any entry."""

    actor: Text | None = None
    verb: Text | None = None
    queue: Text | None = None
    fairness_key: Text | None = None
    task_id: Text | None = None
    action: Id | None = None


@_read(
    "/audit",
    command="audit",
    example="--actor ada --verb cancel",
    base=AuditConditions,
    scoped=True,
)
def audit(
    caller: Caller, *, after: Id | None = None, rows: RowNumber = DEFAULT_ROWS, **filters: Any
) -> Rows[AuditEntry]:
    """List what people did, the newest first."""
    found = caller.management.audit.list(
        before=after, limit=rows + 1, tenants=caller.tenants, **filters
    )
    return _rows(found, rows)


def shown_action(action: BulkAction) -> BulkAction:
    """Return a bulk action whose change names the first keys only."""
    return msgspec.structs.replace(action, change=shown_text(action.change))


def _explained(caller: Caller, id: str) -> Explanation:
    return caller.wait(explanation(caller.context, id, tenants=caller.tenants))


def _rows(found: list[T], rows: int) -> Rows[T]:
    """Return a page of a list that was read with one row more."""
    next = str(found[rows - 1].id) if len(found) > rows else None  # type: ignore[attr-defined]
    return Rows(rows=found[:rows], next=next)
