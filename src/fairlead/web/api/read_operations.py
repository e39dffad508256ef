"""Operations of the JSON API that read."""

from __future__ import annotations

from typing import cast

from fairlead.model import State
from fairlead.operate.doctor import Explanation
from fairlead.operate.filters import Counted, TaskFilters
from fairlead.operate.store.policies import Policy
from fairlead.operate.tenants import Tenant, TenantOrder
from fairlead.web.api import documents
from fairlead.web.api.operations import AFTER, ID, ROWS, Parameter, Read, choice, text
from fairlead.web.api.reads import TENANT_ORDERS, Reads
from fairlead.web.inputs import BadInput
from fairlead.web.masking import check_search
from fairlead.web.page import Page
from fairlead.web.task_filters import filters_of

_MOST_VERSION = (1 << 63) - 1
_ORDERS = ["newest", "oldest"]
_AUDIT_TEXTS = ("actor", "verb", "queue", "fairness_key", "task_id")

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

_QUEUE = text("name", "Name of the queue.", is_required=True)
_KEY = text("key", "Tenant, or any of its fairness keys; empty for tasks without one.")


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


def _tenants(page: Page) -> documents.TenantList:
    order = page.query.one_of("order", TENANT_ORDERS, "backlog")
    return reads_of(page).tenants(
        order=cast(TenantOrder, order),
        queue=page.query.text("queue"),
        search=page.query.text("search"),
        after=page.query.text("after"),
        rows=page.query.rows(),
    )


def _key(page: Page) -> str:
    key = page.query.exact("key")
    if key is None:
        raise BadInput("key is missing: give a tenant; key= stands for tasks without a key")
    return key


def _ordered_tasks(page: Page) -> documents.OrderedTaskList:
    return reads_of(page).ordered_tasks(
        page.query.required("name"),
        ordering_key=page.query.text("ordering_key"),
        rows=page.query.rows(),
    )


def _audit(page: Page) -> documents.AuditList:
    texts = {name: page.query.text(name) for name in _AUDIT_TEXTS}
    return reads_of(page).audit(
        after=page.query.text("after"),
        rows=page.query.rows(),
        action=page.query.text("action"),
        **texts,
    )


def _id(page: Page) -> str:
    return str(page.request.path_params["id"])


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
        name="overview",
        path="/overview",
        summary="Return the state of all queues, and what needs a person first.",
        result=documents.Overview,
        respond=lambda page: reads_of(page).overview(),
        scoped=True,
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
    Read(
        name="task",
        path="/tasks/{id}",
        summary="Return a task, by its id or the beginning of it, and why it waits.",
        result=documents.TaskDetail,
        respond=lambda page: reads_of(page).task(_id(page)),
        parameters=(ID,),
        scoped=True,
    ),
    Read(
        name="task_why",
        path="/tasks/{id}/why",
        summary="Return why a task is in its state, and what must happen.",
        result=Explanation,
        respond=lambda page: reads_of(page).why(_id(page)),
        parameters=(ID,),
        scoped=True,
    ),
    Read(
        name="tenants",
        path="/tenants",
        summary="List tenants: backlog, waits, share got and due.",
        result=documents.TenantList,
        respond=_tenants,
        parameters=(
            choice("order", "Order.", list(TENANT_ORDERS), "backlog"),
            text("queue", "Count tasks of this queue only."),
            text("search", "Part of the tenant's name."),
            AFTER,
            ROWS,
        ),
        scoped=True,
    ),
    Read(
        name="tenant",
        path="/tenant",
        summary="Return one tenant with its part of every queue.",
        result=Tenant,
        respond=lambda page: reads_of(page).tenant(_key(page)),
        parameters=(_KEY,),
        scoped=True,
    ),
    Read(
        name="tenant_why",
        path="/tenant/why",
        summary="Return why a tenant waits: its numbers, and its oldest tasks explained.",
        result=documents.TenantWhy,
        respond=lambda page: reads_of(page).why_tenant(_key(page)),
        parameters=(_KEY,),
        scoped=True,
    ),
    Read(
        name="queues",
        path="/queues",
        summary="List queues.",
        result=documents.QueueList,
        respond=lambda page: reads_of(page).queues(),
        scoped=True,
    ),
    Read(
        name="queue",
        path="/queue",
        summary="Return one queue: tenants, partitions with their levels, limits.",
        result=documents.QueueDetail,
        respond=lambda page: reads_of(page).queue(page.query.required("name")),
        parameters=(_QUEUE,),
        scoped=True,
    ),
    Read(
        name="nodes",
        path="/nodes",
        summary="List worker processes.",
        result=documents.NodeList,
        respond=lambda page: reads_of(page).nodes(),
    ),
    Read(
        name="incidents",
        path="/incidents",
        summary="List open incidents, the latest first.",
        result=documents.IncidentList,
        respond=lambda page: reads_of(page).incidents(
            after=page.query.text("after"), rows=page.query.rows()
        ),
        parameters=(AFTER, ROWS),
    ),
    Read(
        name="periodic",
        path="/periodic",
        summary="List periodic tasks.",
        result=documents.PeriodicList,
        respond=lambda page: reads_of(page).periodics(),
    ),
    Read(
        name="ordered",
        path="/ordered",
        summary="List ordered queues with their partitions.",
        result=documents.OrderedList,
        respond=lambda page: reads_of(page).ordered(),
    ),
    Read(
        name="ordered_tasks",
        path="/ordered/tasks",
        summary="List unfinished tasks of an ordered queue, earliest first.",
        result=documents.OrderedTaskList,
        respond=_ordered_tasks,
        parameters=(_QUEUE, text("ordering_key", "Ordering key."), ROWS),
    ),
    Read(
        name="policies",
        path="/policies",
        summary="List versions of computed weights and limits, and the switches.",
        result=documents.PolicyList,
        respond=lambda page: reads_of(page).policies(page.query.text("queue"), page.query.rows()),
        parameters=(text("queue", "Queue."), ROWS),
    ),
    Read(
        name="policy",
        path="/policy",
        summary="Return one version with its weights and limits.",
        result=Policy,
        respond=lambda page: reads_of(page).policy(
            page.query.whole("version", 1, _MOST_VERSION, 0)
        ),
        parameters=(text("version", "Version.", is_required=True),),
    ),
    Read(
        name="doctor",
        path="/doctor",
        summary="Return what the doctor finds. Counts every task, so it is slow on big tables.",
        result=documents.FindingList,
        respond=lambda page: reads_of(page).doctor(),
    ),
    Read(
        name="actions",
        path="/actions",
        summary="List bulk actions, the newest first.",
        result=documents.BulkActionList,
        respond=lambda page: reads_of(page).actions(
            after=page.query.text("after"), rows=page.query.rows()
        ),
        parameters=(AFTER, ROWS),
        scoped=True,
    ),
    Read(
        name="action",
        path="/actions/{id}",
        summary="Return one bulk action with its progress.",
        result=documents.BulkAction,
        respond=lambda page: reads_of(page).action(_id(page)),
        parameters=(ID,),
        scoped=True,
    ),
    Read(
        name="audit",
        path="/audit",
        summary="List what people did, the newest first.",
        result=documents.AuditList,
        respond=_audit,
        parameters=(
            text("actor", "Person."),
            text("verb", "Action, such as retry or pause_queue."),
            text("queue", "Queue."),
            text("fairness_key", "Fairness key."),
            text("task_id", "Id of a task."),
            text("action", "Id of a bulk action."),
            AFTER,
            ROWS,
        ),
        scoped=True,
    ),
)
"""All operations that read."""
