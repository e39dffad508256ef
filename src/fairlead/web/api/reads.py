"""Reads of one viewer: the JSON API and the MCP server call the same ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from fairlead.app import App
from fairlead.errors import InvalidTask, NotAllowed, NotSupported, UnknownTask
from fairlead.model import Incident, ScheduledTask, TaskRecord, tenant_of
from fairlead.model.task_facts import TaskPage
from fairlead.operate.changes import shown_text
from fairlead.operate.context import OperateContext
from fairlead.operate.doctor import Explanation, examine, explanation
from fairlead.operate.doctor.finding import Finding
from fairlead.operate.facts import Facts
from fairlead.operate.filters import Counted, TaskFilters
from fairlead.operate.incidents import latest_incidents
from fairlead.operate.nodes import NodeView, nodes
from fairlead.operate.ordered import OrderedManagement
from fairlead.operate.overview import QueueView, queue_view
from fairlead.operate.periodic import PeriodicStatus
from fairlead.operate.policies import PolicyManagement
from fairlead.operate.store.actions import BulkAction
from fairlead.operate.store.audit import AuditEntry
from fairlead.operate.store.policies import Policy
from fairlead.operate.summary import Summary, summary
from fairlead.operate.tasks import Management
from fairlead.operate.tenants import Tenant, TenantOrder, TenantPage, tenant, tenants
from fairlead.web.api import documents
from fairlead.web.api.bodies import Filter, Text
from fairlead.web.api.conversion import taken
from fairlead.web.api.operations import Cursor, Id, Read, RowNumber, read
from fairlead.web.inputs import DEFAULT_ROWS, BadInput
from fairlead.web.masking import check_search
from fairlead.web.page import Page
from fairlead.web.run_logs import latest_progress, shown_logs
from fairlead.web.traces import trace_address
from fairlead.web.waiting import ReadLoop

T = TypeVar("T")
MOST_SKIPPED = 1_000_000
"""Greatest number of tenants before a page."""

_MOST_ATTEMPTS = 200
_MOST_ARGUMENT_BYTES = 100_000
_EXPLAINED = 3
"""Tasks of a tenant that are explained."""
_SEVERITIES = {"problem": 0, "note": 1, "ok": 2}

ShowArguments = Callable[[str, Any], Any]
"""Function that gets the name of a task and its arguments, and returns them without secrets."""


Key = Annotated[
    Text, Meta(description="Tenant, or any of its fairness keys; empty for tasks without one.")
]
READS: list[Read] = []
"""Reads that the JSON API and MCP have of this list."""


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


_read = partial(read, READS, viewer=reads_of)


@read(READS, "/access", scoped=True, is_shared=False)
def access(page: Page) -> documents.Rights:
    """Return the rights of the caller."""
    access = page.access
    return documents.Rights(
        name=access.name,
        actions=sorted(access.actions),
        tenants=None if access.tenants is None else sorted(access.tenants),
        csrf_token=page.csrf_token or None,
    )


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

    @_read("/overview", scoped=True, is_tool=True)
    def overview(self) -> Summary:
        """Return the state of all queues, and what needs a person first."""
        return summary(self._context, tenants=self._tenants, facts=self._facts())

    @_read("/tenants", scoped=True, is_tool=True)
    def tenants(
        self,
        *,
        order: TenantOrder = "backlog",
        queue: Text | None = None,
        search: Annotated[Text, Meta(description="Part of the tenant's name.")] | None = None,
        after: Annotated[int, Meta(ge=0, le=MOST_SKIPPED)] = 0,
        rows: RowNumber = DEFAULT_ROWS,
    ) -> TenantPage:
        """List tenants: backlog, waits, share of run time got and due."""
        return tenants(
            self._context,
            order=order,
            queue=queue,
            search=search,
            skip=after,
            limit=rows,
            tenants=self._tenants,
            facts=self._facts(),
        )

    @_read("/tenant", scoped=True, is_tool=True)
    def tenant(self, *, key: Key) -> Tenant:
        """Return one tenant with its part of every queue.

        Raise UnknownTask for one that the viewer may not see.
        """
        name = tenant_of(key)
        if self._tenants is not None and name not in self._tenants:
            raise UnknownTask(f"no tenant {name!r}")
        return tenant(self._context, name, tenants=self._tenants, facts=self._facts())

    @_read("/tenant/why", scoped=True, is_tool=True)
    def tenant_why(self, *, key: Key) -> documents.TenantWhy:
        """Return why a tenant waits: its numbers, and its oldest tasks explained."""
        found = self.tenant(key=key)
        oldest = self._management.page(
            newest_first=False, limit=_EXPLAINED, tenants=self._tenants, tenant=found.tenant
        )
        return documents.TenantWhy(
            tenant=found, oldest=[self._explained(task.id) for task in oldest.tasks]
        )

    @_read("/queues", scoped=True, is_tool=True)
    def queues(self) -> documents.QueueList:
        """List queues: backlog, pause, living nodes, rates, waits and errors."""
        found = summary(self._context, tenants=self._tenants, facts=self._facts())
        return taken(documents.QueueList, found)

    @_read("/queue", scoped=True, is_tool=True)
    def queue(self, *, name: Text) -> QueueView:
        """Return one queue: tenants, partitions with their levels, limits.

        Raise UnknownQueue.
        """
        return self._wait(
            queue_view(self._context, name, tenants=self._tenants, facts=self._facts())
        )

    # tasks ----------------------------------------------------------------------------------------

    @_read("/tasks", base=Filter, scoped=True, is_tool=True)
    def tasks(
        self,
        *,
        filters: TaskFilters,
        order: Literal["newest", "oldest"] = "newest",
        after: Cursor | None = None,
        rows: RowNumber = DEFAULT_ROWS,
    ) -> TaskPage:
        """List tasks that match a filter; without a state, unfinished ones."""
        return self._management.page(
            newest_first=order == "newest",
            after=after,
            limit=rows,
            tenants=self._tenants,
            **filters,
        )

    @_read("/tasks/count", base=Filter, scoped=True)
    def task_count(self, *, filters: TaskFilters) -> Counted:
        """Count tasks that match a filter, up to 1,000."""
        return self._management.count(tenants=self._tenants, **filters)

    def searchable(self, filters: TaskFilters) -> TaskFilters:
        """Return the filter if it searches only for arguments that are shown. Raise BadInput."""
        show = self._show_arguments
        if show is None and filters.get("argument") is not None:
            raise BadInput("argument: arguments are not shown here, and so cannot be searched")
        return check_search(show, filters)

    @_read("/tasks/{id}", scoped=True, is_tool=True)
    def task(self, *, id: Text) -> documents.TaskDetail:
        """Return a task, by its id or the beginning of it, and why it waits."""
        return self.task_detail(id)

    def task_detail(self, id: str, indent: int | None = None) -> documents.TaskDetail:
        """Return a task with its arguments in lines of this indent."""
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

    @_read("/tasks/{id}/why", scoped=True, is_tool=True)
    def task_why(self, *, id: Text) -> Explanation:
        """Return why a task is in its state, and what must happen.

        Raise UnknownTask.
        """
        return self._explained(self._management.named(id, tenants=self._tenants).id)

    # the whole cluster ----------------------------------------------------------------------------

    @_read("/nodes")
    def nodes(self) -> list[NodeView]:
        """List worker processes, the latest heartbeat first, at most 1,000."""
        return self._wait(nodes(self._context, tenants=self._tenants))

    @_read("/incidents")
    def incidents(
        self, *, after: Id | None = None, rows: RowNumber = DEFAULT_ROWS
    ) -> documents.Rows[Incident]:
        """List open incidents, the latest first."""
        return _rows(latest_incidents(self._context, after, rows + 1), rows)

    @_read("/periodic")
    def periodic(self) -> list[PeriodicStatus]:
        """List periodic tasks, by name."""
        return self._management.periodic.list(tenants=self._tenants)

    @_read("/ordered")
    def ordered(self) -> list[documents.OrderedQueue]:
        """List the ordered queues that the application declares, with their partitions."""
        names = self._context.ordered_queues.keys()
        known = names & set(self._known_queues()) if names else ()
        management = OrderedManagement(self._context)
        return [
            documents.OrderedQueue(queue=name, partitions=self._wait(management.status(name)))
            for name in sorted(known)
        ]

    @_read("/ordered/tasks")
    def ordered_tasks(
        self, *, name: Text, ordering_key: Text | None = None, rows: RowNumber = DEFAULT_ROWS
    ) -> list[ScheduledTask]:
        """List unfinished tasks of an ordered queue, earliest first.

        Raise UnknownQueue.
        """
        management = OrderedManagement(self._context)
        return self._wait(management.tasks(name, ordering_key=ordering_key, limit=rows))

    @_read("/policies")
    def policies(
        self, *, queue: Text | None = None, rows: RowNumber = DEFAULT_ROWS
    ) -> documents.PolicyList:
        """List versions of computed weights and limits, and the switches."""
        management = PolicyManagement(self._context)
        return documents.PolicyList(
            policies=[
                taken(documents.PolicyEntry, each) for each in management.policies(queue, rows)
            ],
            switches=management.switches(),
        )

    @_read("/policy")
    def policy(self, *, version: Id) -> Policy:
        """Return one version with its weights and limits.

        Raise UnknownPolicy.
        """
        return PolicyManagement(self._context).policy(version)

    @_read("/doctor", is_tool=True)
    def doctor(self) -> list[Finding]:
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
        return sorted(found, key=lambda finding: _SEVERITIES[finding.severity])

    # people ---------------------------------------------------------------------------------------

    @_read("/actions", scoped=True)
    def actions(
        self, *, after: Id | None = None, rows: RowNumber = DEFAULT_ROWS
    ) -> documents.Rows[BulkAction]:
        """List bulk actions, the newest first."""
        found = self._management.actions.list(before=after, limit=rows + 1, tenants=self._tenants)
        return _rows([shown_action(each) for each in found], rows)

    @_read("/actions/{id}", scoped=True)
    def action(self, *, id: Id) -> BulkAction:
        """Return one bulk action with its progress.

        Raise UnknownAction.
        """
        return shown_action(self._management.actions.show(id, tenants=self._tenants))

    @_read("/audit", scoped=True)
    def audit(
        self,
        *,
        actor: Text | None = None,
        verb: Text | None = None,
        queue: Text | None = None,
        fairness_key: Text | None = None,
        task_id: Text | None = None,
        action: Id | None = None,
        after: Id | None = None,
        rows: RowNumber = DEFAULT_ROWS,
    ) -> documents.Rows[AuditEntry]:
        """List what people did, the newest first."""
        found = self._management.audit.list(
            actor=actor,
            verb=verb,
            queue=queue,
            fairness_key=fairness_key,
            task_id=task_id,
            action=action,
            before=after,
            limit=rows + 1,
            tenants=self._tenants,
        )
        return _rows(found, rows)

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


def shown_action(action: BulkAction) -> BulkAction:
    """Return a bulk action whose change names the first keys only."""
    return msgspec.structs.replace(action, change=shown_text(action.change))


def _rows(found: list[T], rows: int) -> documents.Rows[T]:
    """Return a page of a list that was read with one row more."""
    next = str(found[rows - 1].id) if len(found) > rows else None  # type: ignore[attr-defined]
    return documents.Rows(rows=found[:rows], next=next)
