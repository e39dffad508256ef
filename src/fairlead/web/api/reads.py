"""Reads of one viewer: the JSON API and the MCP server call the same ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, get_args

import msgspec

from fairlead.app import App
from fairlead.errors import InvalidTask, NotAllowed, NotSupported, UnknownTask
from fairlead.model import TaskRecord, tenant_of
from fairlead.operate.changes import shown_text
from fairlead.operate.context import OperateContext
from fairlead.operate.doctor import Explanation, examine, explanation
from fairlead.operate.facts import Facts
from fairlead.operate.filters import Counted, TaskFilters
from fairlead.operate.incidents import latest_incidents
from fairlead.operate.nodes import nodes
from fairlead.operate.ordered import OrderedManagement
from fairlead.operate.overview import QueueView, queue_view
from fairlead.operate.policies import PolicyManagement
from fairlead.operate.store import actions as action_store
from fairlead.operate.store import audit as audit_log
from fairlead.operate.store.policies import Policy
from fairlead.operate.summary import summary
from fairlead.operate.tasks import Management
from fairlead.operate.tenants import Tenant, TenantOrder, tenant, tenants
from fairlead.ports.task_records import TaskFilter
from fairlead.web.api import documents
from fairlead.web.api.conversion import taken
from fairlead.web.api.operations import AFTER, ID, ROWS, Parameter, choice, text
from fairlead.web.inputs import BadInput
from fairlead.web.masking import check_search
from fairlead.web.page import Page
from fairlead.web.run_logs import latest_progress, shown_logs
from fairlead.web.traces import trace_address
from fairlead.web.waiting import ReadLoop

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., msgspec.Struct])

TENANT_ORDERS: tuple[str, ...] = get_args(TenantOrder)
MOST_SKIPPED = 1_000_000
"""Greatest number of tenants before a page."""

_MOST_ATTENTION = 50
_MOST_ATTEMPTS = 200
_MOST_ARGUMENT_BYTES = 100_000
_EXPLAINED = 3
"""Tasks of a tenant that are explained."""
_MOST_ID = (1 << 63) - 1
_SEVERITIES = {"problem": 0, "note": 1, "ok": 2}

ShowArguments = Callable[[str, Any], Any]
"""Function that gets the name of a task and its arguments, and returns them without secrets."""


def _key(page: Page) -> str:
    key = page.query.exact("key")
    if key is None:
        raise BadInput("key is missing: give a tenant; key= stands for tasks without a key")
    return key


_QUEUE = text("name", "Name of the queue.", is_required=True)
_KEY = replace(
    text("key", "Tenant, or any of its fairness keys; empty for tasks without one."), read=_key
)
_VERSION = replace(
    text("version", "Version.", is_required=True),
    read=lambda page: page.query.whole("version", 1, _MOST_ID, 0),
)


class ReadMethod(NamedTuple):
    """A method of Reads that is an operation of the JSON API; the first line of its docstring is
    its summary."""

    method: Callable[..., msgspec.Struct]
    path: str
    name: str
    parameters: tuple[Parameter, ...]
    scoped: bool


READ_METHODS: list[ReadMethod] = []
"""Operations of the JSON API that are methods of Reads."""


def _operation(
    path: str, *parameters: Parameter, name: str | None = None, scoped: bool = False
) -> Callable[[Method], Method]:
    """Declare a method as an operation of the JSON API, which gives it the parameters by name."""

    def declare(method: Method) -> Method:
        READ_METHODS.append(ReadMethod(method, path, name or method.__name__, parameters, scoped))
        return method

    return declare


class Reads:
    """Reads of a viewer who may see these tenants; None for all. Errors are those of
    `fairlead.operate`, and BadInput for a cursor that no page has returned."""

    def __init__(
        self,
        app: App,
        *,
        tenants: Collection[str] | None,
        show_arguments: ShowArguments | None,
        trace_url: Callable[[str], str | None] | None = None,
        read_loop: ReadLoop | None = None,
        facts: Callable[[], Facts] | None = None,
    ) -> None:
        """`show_arguments`: None shows no arguments. `read_loop`: that of a console. `facts`
        returns facts that other viewers use too; None reads them anew, and the doctor counts every
        task."""
        self._app = app
        self._read_loop = read_loop or ReadLoop(app)
        self._read_facts = facts
        self._tenants = tenants
        self._show_arguments = show_arguments
        self._trace_url = trace_url

    def close(self) -> None:
        """Close the connections of coroutines. Those of a console close with it instead."""
        self._read_loop.close()

    # overview, tenants, queues --------------------------------------------------------------------

    @_operation("/overview", scoped=True)
    def overview(self) -> documents.Overview:
        """Return the state of all queues, and what needs a person first."""
        found = summary(self._context, tenants=self._tenants, facts=self._facts())
        return taken(
            documents.Overview,
            found,
            attention=found.attention[:_MOST_ATTENTION],
            more_attention=max(len(found.attention) - _MOST_ATTENTION, 0),
        )

    @_operation(
        "/tenants",
        choice("order", "Order.", list(TENANT_ORDERS), "backlog"),
        text("queue", "Count tasks of this queue only."),
        text("search", "Part of the tenant's name."),
        AFTER,
        ROWS,
        scoped=True,
    )
    def tenants(
        self,
        *,
        order: TenantOrder = "backlog",
        queue: str | None = None,
        search: str | None = None,
        after: str | None = None,
        rows: int = 50,
    ) -> documents.TenantList:
        """List tenants: backlog, waits, share got and due."""
        found = tenants(
            self._context,
            order=order,
            queue=queue,
            search=search,
            skip=_number("after", after, MOST_SKIPPED) or 0,
            limit=rows,
            tenants=self._tenants,
            facts=self._facts(),
        )
        is_last = found.skip is None or found.skip > MOST_SKIPPED
        return taken(documents.TenantList, found, next=None if is_last else str(found.skip))

    @_operation("/tenant", _KEY, scoped=True)
    def tenant(self, key: str) -> Tenant:
        """Return one tenant with its part of every queue.

        Raise UnknownTask for one that the viewer may not see.
        """
        name = tenant_of(key)
        if self._tenants is not None and name not in self._tenants:
            raise UnknownTask(f"no tenant {name!r}")
        return tenant(self._context, name, tenants=self._tenants, facts=self._facts())

    @_operation("/tenant/why", _KEY, name="tenant_why", scoped=True)
    def why_tenant(self, key: str) -> documents.TenantWhy:
        """Return why a tenant waits: its numbers, and its oldest tasks explained."""
        found = self.tenant(key)
        oldest = self._management.page(
            newest_first=False, limit=_EXPLAINED, tenants=self._tenants, tenant=found.tenant
        )
        return documents.TenantWhy(
            tenant=found, oldest=[self.why(task.id) for task in oldest.tasks]
        )

    @_operation("/queues", scoped=True)
    def queues(self) -> documents.QueueList:
        """List queues."""
        found = summary(self._context, tenants=self._tenants, facts=self._facts())
        return taken(documents.QueueList, found)

    @_operation("/queue", _QUEUE, scoped=True)
    def queue(self, name: str) -> documents.QueueDetail:
        """Return one queue: tenants, partitions with their levels, limits.

        Raise UnknownQueue.
        """
        found: QueueView = self._wait(
            queue_view(self._context, name, tenants=self._tenants, facts=self._facts())
        )
        return taken(
            documents.QueueDetail,
            found,
            attention=found.attention[:_MOST_ATTENTION],
            tenants=found.tenants.tenants,
        )

    # tasks ----------------------------------------------------------------------------------------

    def tasks(
        self,
        filters: TaskFilters,
        *,
        order: str = "newest",
        after: str | None = None,
        rows: int = 50,
    ) -> documents.TaskList:
        """Return a page of the tasks that match."""
        found = self._management.page(
            newest_first=order == "newest",
            after=after,
            limit=rows,
            tenants=self._tenants,
            **filters,
        )
        return taken(documents.TaskList, found, next=found.after)

    def searchable(self, filters: TaskFilters) -> TaskFilters:
        """Return the filter if it searches only for arguments that are shown. Raise BadInput."""
        show = self._show_arguments
        if show is None and filters.get("argument") is not None:
            raise BadInput("argument: arguments are not shown here, and so cannot be searched")
        return check_search(show, filters)

    def count(self, filters: TaskFilters) -> Counted:
        """Return the number of tasks that match, counted up to 1,000."""
        return self._management.count(tenants=self._tenants, **filters)

    @_operation("/tasks/{id}", ID, scoped=True)
    def task(self, id: str, *, indent: int | None = None) -> documents.TaskDetail:
        """Return a task, by its id or the beginning of it, and why it waits."""
        task = self._management.named(id, tenants=self._tenants)
        attempts = self._management.attempts(task.id, tenants=self._tenants)
        notes = self._management.notes(task.id, tenants=self._tenants)
        logs, more_logs = shown_logs(notes)
        arguments, hidden = self._arguments(task, indent)
        return documents.TaskDetail(
            task=task,
            reasons=self._explained(task.id).reasons,
            progress=latest_progress(notes),
            attempts=attempts[-_MOST_ATTEMPTS:],
            more_attempts=max(len(attempts) - _MOST_ATTEMPTS, 0),
            logs=logs,
            more_logs=more_logs,
            arguments=arguments,
            arguments_hidden=hidden,
            trace_url=trace_address(self._trace_url, task.context),
        )

    @_operation("/tasks/{id}/why", ID, name="task_why", scoped=True)
    def why(self, id: str) -> Explanation:
        """Return why a task is in its state, and what must happen.

        Raise UnknownTask.
        """
        return self._explained(self._management.named(id, tenants=self._tenants).id)

    # the whole cluster ----------------------------------------------------------------------------

    @_operation("/nodes")
    def nodes(self) -> documents.NodeList:
        """List worker processes."""
        found = self._wait(nodes(self._context, tenants=self._tenants))
        return documents.NodeList(nodes=found)

    @_operation("/incidents", AFTER, ROWS)
    def incidents(self, *, after: str | None, rows: int) -> documents.IncidentList:
        """List open incidents, the latest first."""
        if self._tenants is not None:
            return documents.IncidentList(incidents=[], next=None)
        below = _number("after", after, _MOST_ID)
        found = latest_incidents(self._context, below, rows + 1)
        return documents.IncidentList(
            incidents=found[:rows],
            next=str(found[rows - 1].id) if len(found) > rows else None,
        )

    @_operation("/periodic", name="periodic")
    def periodics(self) -> documents.PeriodicList:
        """List periodic tasks."""
        found = self._management.periodic.list(tenants=self._tenants)
        return documents.PeriodicList(
            periodics=[
                taken(
                    documents.Periodic,
                    each.record,
                    is_declared=each.is_declared,
                    next_slot_at=each.next_slot_at,
                )
                for each in found
            ]
        )

    @_operation("/ordered")
    def ordered(self) -> documents.OrderedList:
        """List ordered queues with their partitions."""
        names = self._context.ordered_queues.keys()
        if not names:
            return documents.OrderedList(queues=[])
        known = names & set(self._known_queues())
        return documents.OrderedList(queues=[self._ordered(name) for name in sorted(known)])

    @_operation("/ordered/tasks", _QUEUE, text("ordering_key", "Ordering key."), ROWS)
    def ordered_tasks(
        self, name: str, *, ordering_key: str | None, rows: int
    ) -> documents.OrderedTaskList:
        """List unfinished tasks of an ordered queue, earliest first.

        Raise UnknownQueue.
        """
        management = OrderedManagement(self._context)
        found = self._wait(management.tasks(name, ordering_key=ordering_key, limit=rows))
        return documents.OrderedTaskList(
            tasks=[
                taken(
                    documents.OrderedTask,
                    each,
                    id=each.task.id,
                    name=each.task.name,
                    fairness_key=each.task.fairness_key,
                )
                for each in found
            ]
        )

    @_operation("/policies", text("queue", "Queue."), ROWS)
    def policies(self, queue: str | None, rows: int) -> documents.PolicyList:
        """List versions of computed weights and limits, and the switches."""
        management = PolicyManagement(self._context)
        return documents.PolicyList(
            policies=[
                taken(documents.PolicyEntry, each) for each in management.policies(queue, rows)
            ],
            switches=management.switches(),
        )

    @_operation("/policy", _VERSION)
    def policy(self, version: int) -> Policy:
        """Return one version with its weights and limits.

        Raise UnknownPolicy.
        """
        return PolicyManagement(self._context).policy(version)

    @_operation("/doctor")
    def doctor(self) -> documents.FindingList:
        """Return what the doctor finds. Counts every task, so it is slow on big tables.

        Raise NotAllowed for a viewer who is limited to tenants.
        """
        if self._tenants is not None:
            raise NotAllowed("the doctor shows all tenants, and this access is limited to some")
        try:
            facts = self._facts()
        except NotSupported:
            facts = None
        found = self._wait(examine(self._context, facts=facts))
        ordered = sorted(found, key=lambda finding: _SEVERITIES[finding.severity])
        return documents.FindingList(findings=ordered)

    # people ---------------------------------------------------------------------------------------

    @_operation("/actions", AFTER, ROWS, scoped=True)
    def actions(self, *, after: str | None, rows: int) -> documents.BulkActionList:
        """List bulk actions, the newest first."""
        before = _number("after", after, _MOST_ID)
        found = self._management.actions.list(before=before, limit=rows + 1, tenants=self._tenants)
        return documents.BulkActionList(
            actions=[bulk_action(each) for each in found[:rows]],
            next=str(found[rows - 1].id) if len(found) > rows else None,
        )

    @_operation("/actions/{id}", ID, scoped=True)
    def action(self, id: str) -> documents.BulkAction:
        """Return one bulk action with its progress.

        Raise UnknownAction.
        """
        number = _number("id", id, _MOST_ID) or 0
        return bulk_action(self._management.actions.show(number, tenants=self._tenants))

    @_operation(
        "/audit",
        text("actor", "Person."),
        text("verb", "Action, such as retry or pause_queue."),
        text("queue", "Queue."),
        text("fairness_key", "Fairness key."),
        text("task_id", "Id of a task."),
        text("action", "Id of a bulk action."),
        AFTER,
        ROWS,
        scoped=True,
    )
    def audit(
        self, *, after: str | None, rows: int, action: str | None, **texts: str | None
    ) -> documents.AuditList:
        """List what people did, the newest first."""
        found: list[audit_log.AuditEntry] = self._management.audit.list(
            before=_number("after", after, _MOST_ID),
            limit=rows + 1,
            action=_number("action", action, _MOST_ID),
            tenants=self._tenants,
            **texts,
        )
        return documents.AuditList(
            entries=found[:rows],
            next=str(found[rows - 1].id) if len(found) > rows else None,
        )

    # how ------------------------------------------------------------------------------------------

    @property
    def _context(self) -> OperateContext:
        return self._app.operate_context

    @property
    def _management(self) -> Management:
        return Management(self._context)

    def _wait(self, reading: Coroutine[Any, Any, T]) -> T:
        return self._read_loop.wait_for(reading)

    def _facts(self) -> Facts | None:
        return None if self._read_facts is None else self._read_facts()

    def _explained(self, id: str) -> Explanation:
        return self._wait(explanation(self._context, id, tenants=self._tenants))

    def _known_queues(self) -> Collection[str]:
        store = self._context.cluster
        known: Collection[str] = store.database.read_now(store.queue_settings())
        return known

    def _ordered(self, name: str) -> documents.OrderedQueue:
        found = self._wait(OrderedManagement(self._context).status(name))
        return documents.OrderedQueue(queue=name, partitions=found)

    def _arguments(self, task: TaskRecord, indent: int | None) -> tuple[str | None, str | None]:
        """Return the arguments as JSON, or None and why they are not shown."""
        show = self._show_arguments
        if show is None:
            return None, "arguments are shown through a mask only"
        try:
            payload = self._management.payload(task.id, tenants=self._tenants)
        except InvalidTask as error:
            return None, str(error)
        if payload is None:
            return None, "arguments of finished tasks are not kept"
        if len(payload) > _MOST_ARGUMENT_BYTES:
            return None, f"arguments of {len(payload):,} bytes are not shown"
        try:
            arguments = msgspec.json.decode(payload)
        except msgspec.DecodeError as error:
            return None, f"arguments cannot be read: {error}"
        except RecursionError:
            return None, "arguments of too many levels are not shown"
        shown = show(task.name, arguments)
        try:
            return json.dumps(shown, indent=indent, ensure_ascii=False, default=repr), None
        except RecursionError:
            return None, "arguments of too many levels are not shown"


def bulk_action(action: action_store.BulkAction) -> documents.BulkAction:
    """Return the document of a bulk action."""
    where: TaskFilter = action.where
    argument = where.argument
    return taken(
        documents.BulkAction,
        action,
        change=shown_text(action.change),
        where=taken(
            documents.Where,
            where,
            argument=None if argument is None else f"{'.'.join(argument.path)}={argument.value}",
            submitted_before=where.older_than,
        ),
    )


def _number(name: str, text: str | None, most: int) -> int | None:
    """Return the number in a text. Raise BadInput."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise BadInput(f"{name} must be a whole number from 0 to {most:,}")
    return int(text)
