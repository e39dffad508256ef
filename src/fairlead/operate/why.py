"""Why a tenant waits: in which queue, since when, because of what, and what a person can do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Literal

import msgspec

from fairlead.model import State, tenant_of
from fairlead.operate.context import OperateContext
from fairlead.operate.facts import Facts
from fairlead.operate.filters import task_filter
from fairlead.operate.holding import DeclaredLimit, HeldSlot, cancelling, declared_limits

CauseKind = Literal["paused", "no_worker", "limit", "slots", "own_backlog", "others"]


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why the ready tasks of a tenant wait in a queue."""

    kind: CauseKind
    queue: str
    what: str
    cure: str | None = None
    """Step of a person, or event, after which the tasks go on."""
    since: int | None = None
    """Instant since which the oldest known task is ready (microseconds since the epoch)."""
    limit: str | None = None
    """Name of the limit."""
    held: list[HeldSlot] = []
    """Slots that are held for far longer than usual."""


def causes(
    context: OperateContext,
    facts: Facts,
    tenant: str,
    tenants: Collection[str] | None = None,
    queue: str | None = None,
) -> list[Cause]:
    """Return why the ready tasks of a tenant wait, by queue, or in one queue. With `tenants`, name
    no task of others. Finds a tenant that a sample has missed by a page of its tasks."""
    limits = declared_limits(context, facts)
    found = []
    for name, waiting in sorted(_waiting(context, facts, tenant).items()):
        if queue in (None, name):
            found += _Place(facts, limits, tenant, name, *waiting, tenants).causes()
    return found


def longest_waiting(facts: Facts, queue: str) -> str | None:
    """Return the tenant whose ready task of a queue has waited longest, as far as the reads show;
    None if none waits."""
    since = {
        tenant: at
        for tenant, queues in facts.tenants.items()
        if queue in queues and (at := queues[queue].oldest_ready_at) is not None
    }
    return min(since, key=lambda tenant: since[tenant], default=None)


def _waiting(
    context: OperateContext, facts: Facts, tenant: str
) -> dict[str, tuple[dict[str, set[str]], int | None]]:
    """Return the fairness keys of ready tasks by their names, and since when the oldest is ready,
    by queue."""
    found: dict[str, tuple[dict[str, set[str]], int | None]] = {}

    def add(queue: str, name: str, key: str, at: int | None) -> None:
        keys, since = found.get(queue, ({}, at))
        keys.setdefault(name, set()).add(key)
        found[queue] = keys, min((each for each in (since, at) if each is not None), default=None)

    for count in facts.backlog.counts:
        if count.state is State.SUBMITTED and tenant_of(count.fairness_key) == tenant:
            add(count.queue, count.name, count.fairness_key, count.oldest_at)
    if not found and facts.is_sample:
        where = task_filter({"state": State.SUBMITTED, "tenant": tenant}, None, facts.at)
        page = context.store.database.read_now(context.reads.page(where, 1, False))
        for task in page.tasks:
            add(task.queue, task.name, task.fairness_key, task.submitted_at)
    return found


class _Place:
    """The ready tasks of a tenant in a queue."""

    def __init__(
        self,
        facts: Facts,
        limits: list[DeclaredLimit],
        tenant: str,
        queue: str,
        keys: dict[str, set[str]],
        since: int | None,
        tenants: Collection[str] | None,
    ) -> None:
        """`keys`: fairness keys of the tasks, by name of the task."""
        self._facts = facts
        self._limits = limits
        self._tenant = tenant
        self._queue = queue
        self._keys = keys
        self._since = since
        self._tenants = tenants

    def causes(self) -> list[Cause]:
        """Return the causes that hold all of the tasks, else those that hold some, else the shares
        of the queue."""
        settings = self._facts.settings.get(self._queue)
        if settings is not None and settings.paused:
            cure = f"`fairlead queues resume {self._queue}`"
            return [self._cause("paused", f"queue {self._queue} is paused", cure)]
        if self._queue not in self._facts.serving:
            what = f"no living worker serves queue {self._queue}"
            cure = f"start `fairlead worker` with queue {self._queue}"
            return [self._cause("no_worker", what, cure)]
        return [*self._limits_that_hold()] or [self._slots() or self._shares()]

    def _cause(self, kind: CauseKind, what: str, cure: str, **fields: object) -> Cause:
        return Cause(
            kind=kind,
            queue=self._queue,
            what=what,
            cure=cure,
            since=self._since,
            **fields,  # type: ignore[arg-type]
        )

    def _limits_that_hold(self) -> Iterator[Cause]:
        """Yield the limits that are full, or whose slots hang."""
        nodes = len(self._facts.serving[self._queue])
        for limit in self._limits:
            keys = [
                key
                for name, of_name in self._keys.items()
                if limit.needs(self._queue, name)
                for key in of_name
            ]
            long = [slot for slot in limit.held if slot.is_long]
            if keys and (long or limit.is_full(keys, nodes)):
                yield self._cause(
                    "limit",
                    limit.text(self._tenants),
                    cancelling(long) or "the next task starts when one of these ends",
                    limit=limit.name,
                    held=long if self._tenants is None else [],
                )

    def _slots(self) -> Cause | None:
        """Return a cause if the workers of the queue have no free slot."""
        serving = set(self._facts.serving[self._queue])
        slots = sum(each.facts.slots for each in self._facts.nodes if each.node in serving)
        running = [task for task in self._facts.running if task.node in serving]
        if len(running) < slots:
            return None
        by_tenant = Counter(sorted(tenant_of(task.fairness_key) for task in running))
        shown = ", ".join(
            f"{self._named(tenant)} {number}" for tenant, number in by_tenant.most_common(3)
        )
        what = f"all {slots} slots of its workers are busy: {shown}"
        return self._cause("slots", what, "add workers, or limit the tenant that has most of them")

    def _shares(self) -> Cause:
        """Return the cause that is left: the tenant's own backlog, or those of others."""
        ready = {
            tenant: queues[self._queue].submitted
            for tenant, queues in self._facts.tenants.items()
            if self._queue in queues
        }
        total, own = sum(ready.values()), ready.get(self._tenant, 0)
        if 2 * own >= total:
            part = f"{own / total:.0%} of" if total else "most of"
            what = f"its own backlog is {part} the ready tasks of {self._queue}"
            return self._cause("own_backlog", what, "add workers, or raise a limit of its tasks")
        first = max(ready, key=lambda tenant: ready[tenant])
        what = (
            f"it takes turns in {self._queue} with {len(ready) - 1} others, of whom"
            f" {self._named(first)} has most ready tasks"
        )
        return self._cause("others", what, "add workers, or raise its weight")

    def _named(self, tenant: str) -> str:
        if self._tenants is not None and tenant not in self._tenants:
            return "another tenant"
        return tenant or "(no key)"
