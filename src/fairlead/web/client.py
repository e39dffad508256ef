"""A client of the console's JSON API for Python programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import httpx
import msgspec

from fairlead.core import values
from fairlead.errors import ConfigurationError, FairleadError
from fairlead.operate.filters import TaskFilters
from fairlead.ports.policy_store import SwitchMode
from fairlead.web.api import documents
from fairlead.web.api.operations import PREFIX

T = TypeVar("T", bound=msgspec.Struct)


class ConsoleError(FairleadError):
    """Raised when the console does not serve a request."""

    def __init__(self, status: int | None, title: str, detail: str) -> None:
        super().__init__(f"{title}: {detail}" if status is None else f"{status} {title}: {detail}")
        self.status = status
        """Status of HTTP; None without a response."""
        self.title = title
        self.detail = detail
        """The cause and the cure."""


class ChangeValues(TypedDict, total=False):
    """Values of a change; each belongs to one verb."""

    force: bool
    """resume: also run running tasks, which then run twice."""
    run_at: datetime
    """reschedule: the new time, with its timezone."""
    priority: int
    """change: the new priority, 0 first to 9 last."""
    new_fairness_key: str
    """change: the new fairness key."""


class ChosenTenants(TypedDict, total=False):
    """Tenants that a bulk action is about: one of both."""

    names: Sequence[str]
    matching: Mapping[str, str]
    """`queue` and `search`, as in the list of tenants; {} for every tenant."""


class Period(TypedDict, total=False):
    """Period and parts of the history; each that is absent selects all."""

    since: datetime
    until: datetime
    queue: str
    tenant: str
    top: int
    """Parts that are named, 1 to 50."""


class PartsPeriod(Period, total=False):
    """Period in steps, by parts."""

    by: str
    """queue, tenant or name."""
    points: int
    """Steps, at most 200; 1 for the whole period."""


class ConsoleClient:
    """Client of one console. A context manager; safe to share between threads.

    Every method raises ConsoleError for a request that is not served, whose `status` is 404 for
    what does not exist or belongs to a tenant that the caller may not see, 409 for what is not
    possible now, and None if the console does not respond. The verbs of changes are retry, resume,
    reschedule, change, cancel and fail.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`url`: address of the console with its prefix; `token`: its token, or what `authorize` of
        the console reads in the header Authorization; `timeout`: seconds. Raise ConfigurationError
        for an address that is none, and for a token that no header can hold."""
        values.text("token", token)
        if not (token.isascii() and token.isprintable()):
            raise ConfigurationError("token: use printable ASCII characters")
        values.text("url", url)
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"url {values.brief(url)}: use http://HOST:PORT or https://HOST"
            )
        self._http = httpx.Client(
            base_url=url.rstrip("/") + PREFIX,
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            timeout=timeout,
            transport=transport,
        )

    def __enter__(self) -> ConsoleClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # reads ----------------------------------------------------------------------------------------

    def access(self) -> documents.Rights:
        """Return the rights of the caller."""
        return self._get("/access", documents.Rights)

    def overview(self) -> documents.Overview:
        """Return the state of all queues, and what needs a person."""
        return self._get("/overview", documents.Overview)

    def tasks(
        self,
        *,
        newest_first: bool = True,
        after: str | None = None,
        rows: int = 50,
        **filters: Unpack[TaskFilters],
    ) -> documents.TaskList:
        """Return a page of at most `rows` tasks (1 to 200) that match. `after`: `next` of the page
        before."""
        order = "newest" if newest_first else "oldest"
        given = _query(filters)
        return self._get("/tasks", documents.TaskList, order=order, after=after, rows=rows, **given)

    def every_task(
        self, *, newest_first: bool = True, **filters: Unpack[TaskFilters]
    ) -> Iterator[documents.Task]:
        """Yield all tasks that match, page by page."""
        after = None
        while True:
            page = self.tasks(newest_first=newest_first, after=after, rows=200, **filters)
            yield from page.tasks
            after = page.next
            if after is None:
                return

    def count(self, **filters: Unpack[TaskFilters]) -> documents.Counted:
        """Return the number of tasks that match, counted up to 1,000."""
        return self._get("/tasks/count", documents.Counted, **_query(filters))

    def task(self, id: str) -> documents.TaskDetail:
        """Return a task, by its id or the beginning of it."""
        return self._get(f"/tasks/{_part(id)}", documents.TaskDetail)

    def why(self, id: str) -> documents.Why:
        """Return why a task is in its state, and what must happen."""
        return self._get(f"/tasks/{_part(id)}/why", documents.Why)

    def tenants(
        self,
        *,
        order: str = "backlog",
        queue: str | None = None,
        search: str | None = None,
        after: str | None = None,
        rows: int = 50,
    ) -> documents.TenantList:
        """Return a page of tenants. `order`: backlog, wait, share or name."""
        return self._get(
            "/tenants",
            documents.TenantList,
            order=order,
            queue=queue,
            search=search,
            after=after,
            rows=rows,
        )

    def tenant(self, key: str) -> documents.Tenant:
        """Return one tenant, by any of its fairness keys."""
        return self._get("/tenant", documents.Tenant, key=key)

    def why_tenant(self, key: str) -> documents.TenantWhy:
        """Return why a tenant waits."""
        return self._get("/tenant/why", documents.TenantWhy, key=key)

    def queues(self) -> documents.QueueList:
        """Return the queues."""
        return self._get("/queues", documents.QueueList)

    def queue(self, name: str) -> documents.QueueDetail:
        """Return one queue."""
        return self._get("/queue", documents.QueueDetail, name=name)

    def nodes(self) -> documents.NodeList:
        """Return the worker processes."""
        return self._get("/nodes", documents.NodeList)

    def incidents(self, *, after: str | None = None, rows: int = 50) -> documents.IncidentList:
        """Return open incidents, the latest first."""
        return self._get("/incidents", documents.IncidentList, after=after, rows=rows)

    def periodic(self) -> documents.PeriodicList:
        """Return the periodic tasks."""
        return self._get("/periodic", documents.PeriodicList)

    def ordered(self) -> documents.OrderedList:
        """Return the ordered queues."""
        return self._get("/ordered", documents.OrderedList)

    def ordered_tasks(
        self, queue: str, *, ordering_key: str | None = None, rows: int = 50
    ) -> documents.OrderedTaskList:
        """Return the earliest tasks of an ordered queue."""
        return self._get(
            "/ordered/tasks",
            documents.OrderedTaskList,
            name=queue,
            ordering_key=ordering_key,
            rows=rows,
        )

    def sharded(self) -> documents.ShardedList:
        """Return the sharded queues of the console."""
        return self._get("/sharded", documents.ShardedList)

    def sharded_queue(self, name: str, *, group: str | None = None) -> documents.ShardedDetail:
        """Return one sharded queue for a group, by default its first one."""
        return self._get("/sharded/queue", documents.ShardedDetail, name=name, group=group)

    def dead_letters(
        self, name: str, *, after: str | None = None, rows: int = 50
    ) -> documents.DeadLetterList:
        """Return a page of at most `rows` dead letters of a sharded queue (1 to 100)."""
        return self._get(
            "/sharded/dead-letters", documents.DeadLetterList, name=name, after=after, rows=rows
        )

    def requeue_dead_letters(self, name: str, ids: Sequence[str]) -> list[str]:
        """Write the messages of dead letters into their sharded queue again; return the ids of
        those that still were dead letters."""
        body = {"name": name, "ids": list(ids)}
        return self._post("/sharded/requeue", documents.ChangedLetters, body).ids

    def delete_dead_letters(self, name: str, ids: Sequence[str]) -> list[str]:
        """Remove dead letters for good; return the ids of those that still were dead letters."""
        body = {"name": name, "ids": list(ids)}
        return self._post("/sharded/delete", documents.ChangedLetters, body).ids

    def set_shard_key_weight(self, name: str, shard_key: str, weight: float | None) -> None:
        """Set the weight of a shard key; None returns to the weights of its messages."""
        body = {"name": name, "shard_key": shard_key, "weight": weight}
        self._post("/sharded/weight", documents.Done, body)

    def policies(self, *, queue: str | None = None, rows: int = 50) -> documents.PolicyList:
        """Return the newest versions of weights and limits, and the switches."""
        return self._get("/policies", documents.PolicyList, queue=queue, rows=rows)

    def policy(self, version: str) -> documents.Policy:
        """Return one version with its weights and limits."""
        return self._get("/policy", documents.Policy, version=version)

    def doctor(self) -> documents.FindingList:
        """Return what the doctor finds. It counts every task."""
        return self._get("/doctor", documents.FindingList)

    def actions(self, *, after: str | None = None, rows: int = 50) -> documents.BulkActionList:
        """Return bulk actions, the newest first."""
        return self._get("/actions", documents.BulkActionList, after=after, rows=rows)

    def action(self, id: str) -> documents.BulkAction:
        """Return one bulk action with its progress."""
        return self._get(f"/actions/{_part(id)}", documents.BulkAction)

    def audit(
        self,
        *,
        actor: str | None = None,
        verb: str | None = None,
        queue: str | None = None,
        fairness_key: str | None = None,
        task_id: str | None = None,
        action: str | None = None,
        after: str | None = None,
        rows: int = 50,
    ) -> documents.AuditList:
        """Return what people did, the newest first."""
        return self._get(
            "/audit",
            documents.AuditList,
            actor=actor,
            verb=verb,
            queue=queue,
            fairness_key=fairness_key,
            task_id=task_id,
            action=action,
            after=after,
            rows=rows,
        )

    # history --------------------------------------------------------------------------------------

    def history_runs(self, **period: Unpack[PartsPeriod]) -> documents.RunsHistory:
        """Return runs, failures and worker time over a period, by queue, tenant or name."""
        return self._get("/history/runs", documents.RunsHistory, **_texts(period))

    def history_waits(
        self, *, measure: str = "pickup", **period: Unpack[PartsPeriod]
    ) -> documents.WaitsHistory:
        """Return percentiles over a period. `measure`: pickup, run, e2e or retry_delay."""
        given = _texts(period)
        return self._get("/history/waits", documents.WaitsHistory, measure=measure, **given)

    def history_shares(
        self, *, points: int | None = None, **period: Unpack[Period]
    ) -> documents.SharesHistory:
        """Return the worker time that each tenant got, and that was due to it."""
        given = _texts(period)
        return self._get("/history/shares", documents.SharesHistory, points=points, **given)

    def history_tenants(self, **period: Unpack[Period]) -> documents.TenantsHistory:
        """Return the tenants with most worker time in a period."""
        return self._get("/history/tenants", documents.TenantsHistory, **_texts(period))

    # changes of tasks -----------------------------------------------------------------------------

    def change_task(
        self, verb: str, id: str, *, version: int | None = None, **given: Unpack[ChangeValues]
    ) -> documents.Task:
        """Change one task, and return it. `version`: change it at this version only."""
        body = {**given, "version": version}
        return self._post(f"/tasks/{_part(id)}/{_part(verb)}", documents.Task, body)

    def change_tasks(
        self, verb: str, ids: Sequence[str], **given: Unpack[ChangeValues]
    ) -> documents.ChangedTasks:
        """Change the named tasks, 1 to 500; return the outcome of each."""
        body = {**given, "ids": list(ids)}
        return self._post(f"/tasks/{_part(verb)}", documents.ChangedTasks, body)

    def change_matching(
        self,
        verb: str,
        filters: TaskFilters,
        *,
        limit: int | None = None,
        **given: Unpack[ChangeValues],
    ) -> documents.BulkAction:
        """Ask for a change of all tasks that match, or of the first `limit`; a worker makes it in
        batches, and `action` shows the progress. Empty filters select every unfinished task."""
        body = {**given, "filter": _body(filters), "limit": limit}
        return self._post(f"/actions/{_part(verb)}", documents.BulkAction, body)

    def preview(
        self,
        verb: str,
        filters: TaskFilters,
        *,
        limit: int | None = None,
        **given: Unpack[ChangeValues],
    ) -> documents.Preview:
        """Return how many tasks `change_matching` would change now, and the first of them."""
        body = {**given, "filter": _body(filters), "limit": limit}
        return self._post(f"/actions/{_part(verb)}/preview", documents.Preview, body)

    def interrupt_action(self, id: str) -> documents.BulkAction:
        """Stop a bulk action after its present batch."""
        return self._post(f"/actions/{_part(id)}/interrupt", documents.BulkAction)

    def resume_action(self, id: str) -> documents.BulkAction:
        """Let a worker go on with a bulk action."""
        return self._post(f"/actions/{_part(id)}/resume", documents.BulkAction)

    # queues, periodic tasks, policies -------------------------------------------------------------

    def pause_queue(self, queue: str) -> None:
        """Start no further tasks of a queue, in the whole cluster."""
        self._post("/queues/pause", documents.Done, {"queue": queue})

    def resume_queue(self, queue: str) -> None:
        """Start tasks of a queue again."""
        self._post("/queues/resume", documents.Done, {"queue": queue})

    def set_weight(self, queue: str, fairness_key: str, weight: float | None) -> None:
        """Set the weight of a key in a queue; None returns to the weights of its tasks."""
        body = {"queue": queue, "fairness_key": fairness_key, "weight": weight}
        self._post("/queues/weight", documents.Done, body)

    def set_limit(self, queue: str, fairness_key: str, limit: int | None) -> None:
        """Set how many tasks of a key each node runs at once in a queue; None lifts the limit."""
        body = {"queue": queue, "fairness_key": fairness_key, "limit": limit}
        self._post("/queues/limit", documents.Done, body)

    def set_weights(
        self, queue: str, weight: float | None, **tenants: Unpack[ChosenTenants]
    ) -> documents.BulkAction:
        """Ask for another weight of tenants in a queue: of `names`, or of all that `matching`
        finds, {} for every tenant. A worker makes the change in batches."""
        body = {"queue": queue, "weight": weight, **tenants}
        return self._post("/tenants/weight", documents.BulkAction, body)

    def set_limits(
        self, queue: str, limit: int | None, **tenants: Unpack[ChosenTenants]
    ) -> documents.BulkAction:
        """Ask for another limit of tenants in a queue, as `set_weights` does for weights."""
        body = {"queue": queue, "limit": limit, **tenants}
        return self._post("/tenants/limit", documents.BulkAction, body)

    def preview_tenants(
        self, verb: str, **tenants: Unpack[ChosenTenants]
    ) -> documents.TenantPreview:
        """Return how many tenants `set_weights` (verb `weight`) or `set_limits` (`limit`) would be
        about now, and the first of them."""
        return self._post(f"/tenants/{_part(verb)}/preview", documents.TenantPreview, tenants)

    def run_periodic(self, name: str) -> str:
        """Submit the task of a periodic task once, now; return its id."""
        return self._post("/periodic/run", documents.Submitted, {"name": name}).id

    def pause_periodic(self, name: str) -> None:
        """Submit no slot of a periodic task until it is resumed."""
        self._post("/periodic/pause", documents.Done, {"name": name})

    def resume_periodic(self, name: str) -> None:
        """Submit the slots of a periodic task again."""
        self._post("/periodic/resume", documents.Done, {"name": name})

    def remove_periodic(self, name: str) -> None:
        """Remove a periodic task that no worker declares."""
        self._post("/periodic/remove", documents.Done, {"name": name})

    def approve_policy(self, version: str, why: str) -> None:
        """Keep the version that is in force after its canary window."""
        self._post("/policies/approve", documents.Done, {"version": version, "why": why})

    def roll_back_policy(self, queue: str, to: str, why: str) -> str:
        """Put an earlier version of a queue back in force, "0" for the declared weights; return the
        new version."""
        body = {"queue": queue, "to": to, "why": why}
        return self._post("/policies/roll-back", documents.PublishedPolicy, body).version

    def switch_tuning(self, mode: SwitchMode, why: str, queue: str = "") -> None:
        """Set the kill switch of a queue, or of all."""
        body = {"mode": mode, "queue": queue, "why": why}
        self._post("/policies/switch", documents.Done, body)

    def switch_on_tuning(self, queue: str = "") -> bool:
        """Remove the kill switch of a queue, or the one of all; return whether one was set."""
        return self._post("/policies/switch-on", documents.Done, {"queue": queue}).done

    # how ------------------------------------------------------------------------------------------

    def _get(self, path: str, kind: type[T], **query: Any) -> T:
        given = {name: value for name, value in query.items() if value is not None}
        return self._send("GET", path, kind, params=given)

    def _post(self, path: str, kind: type[T], body: Mapping[str, Any] | None = None) -> T:
        if body is None:
            return self._send("POST", path, kind)
        return self._send(
            "POST",
            path,
            kind,
            content=msgspec.json.encode(body),
            headers={"Content-Type": "application/json"},
        )

    def _send(self, method: str, path: str, kind: type[T], **given: Any) -> T:
        try:
            response = self._http.request(method, path, **given)
        except httpx.HTTPError as error:
            raise ConsoleError(
                None,
                "The console does not respond",
                f"{type(error).__name__}: {error}; check the address and that the console runs",
            ) from error
        try:
            if response.is_success:
                return msgspec.json.decode(response.content, type=kind)
            found = msgspec.json.decode(response.content, type=documents.ErrorDocument).error
        except msgspec.MsgspecError as error:
            raise ConsoleError(
                response.status_code,
                "Not the response of a console",
                f"{error}; check the address, its prefix, and the versions of both sides",
            ) from error
        raise ConsoleError(found.status, found.title, found.detail)


def _part(text: str) -> str:
    """Return a text as one part of a path."""
    return quote(text, safe="")


def _query(filters: TaskFilters) -> dict[str, Any]:
    """Return filters as parameters of a query."""
    found = _body(filters)
    if found.get("fairness_key") == "":
        del found["fairness_key"]
        found["no_key"] = "on"
    return _texts(found)


def _texts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with their instants as text."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in given.items()
    }


def _body(filters: TaskFilters) -> dict[str, Any]:
    """Return filters as the field `filter` of a body."""
    found: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    if (age := found.get("older_than")) is not None:
        found["older_than"] = age // timedelta(seconds=1)
    return found
