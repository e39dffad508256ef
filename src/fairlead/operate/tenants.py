"""Tenants: who waits, who got what, and who was due what.

The numbers come from two bounded reads, whatever the number of tasks and keys: the latest 10,000
attempts, and the unfinished tasks or a sample of them. Numbers of a sample say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeVar, get_args

import msgspec

from fairlead.core import values
from fairlead.errors import InvalidTask
from fairlead.model import tenant_of
from fairlead.model.task_facts import KeySetting
from fairlead.operate.context import OperateContext
from fairlead.operate.facts import Facts, facts_of
from fairlead.operate.filters import Counted, scope_of
from fairlead.operate.numbers import (
    Estimate,
    Held,
    QueueAndTenant,
    Runs,
    TaskNumbers,
    Waits,
    Window,
    estimate,
    waits_of,
    window_of,
)

MOST_TENANTS_SHOWN = 500
"""Greatest number of tenants of a page."""

T = TypeVar("T")
TenantOrder = Literal["backlog", "wait", "share", "name"]


class _Numbers(TaskNumbers, frozen=True, kw_only=True):
    failures: int
    """Attempts in the window that failed."""
    run_time: int
    """Sum of the run times in the window (microseconds)."""
    share_got: float | None
    """Part of the run time of the queue, or of all queues, in the window, from 0 to 1; None if
    nothing ran."""
    share_due: float | None
    """Part of the queue that the tenant's weight entitles it to among the tenants that have a
    backlog now, or had runs in the window, as far as the reads show; None if it has neither. Over
    all queues, their mean by the run time of the queues in the window."""


class TenantQueue(_Numbers, frozen=True, kw_only=True):
    """One tenant's part of one queue."""

    queue: str
    is_paused: bool
    weight: float
    """Weight of the tenant among tenants."""
    is_weight_set: bool
    """Whether a person or a policy has set the weight."""
    limit: int | None
    """Tasks of the key named as the tenant that each node may run at once, as policies set it."""


class Tenant(_Numbers, frozen=True, kw_only=True):
    """One tenant over all queues."""

    tenant: str
    queues: list[TenantQueue]


class TenantPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of tenants."""

    tenants: list[Tenant]
    next: int | None
    """Number of tenants to skip for the next page; None at the end."""
    number: Counted
    """Tenants that have unfinished tasks or runs in the window, as far as the reads show."""
    window: Window
    is_sample: bool
    """Whether backlogs are estimates, and tenants with few tasks may be missing."""


def tenants(
    context: OperateContext,
    *,
    order: TenantOrder = "backlog",
    queue: str | None = None,
    search: str | None = None,
    skip: int = 0,
    limit: int = 50,
    tenants: Collection[str] | None = None,
    facts: Facts | None = None,
) -> TenantPage:
    """Return a page of at most `limit` tenants (1 to 500): the longest backlog first, the longest
    p99 of waits, the greatest share got, or by name. `search`: part of the tenant's name;
    `tenants`: those that may be seen, None for all.

    Reads what `read_facts` reads, unless `facts` are given, and the settings of the tenants in the
    page's queues. Raise InvalidTask, and NotSupported on a store without rows.
    """
    values.one_of("order", order, *get_args(TenantOrder), error=InvalidTask)
    values.whole("skip", skip, 0, error=InvalidTask)
    values.whole("limit", limit, 1, MOST_TENANTS_SHOWN, InvalidTask)
    for what, text in (("queue", queue), ("search", search)):
        if text is not None:
            values.text(what, text, may_be_empty=True, error=InvalidTask)
    scope = scope_of(tenants)
    parts = _Parts(context, facts_of(context, facts), queue)
    shown = parts.tenants(scope, search)
    ranked = parts.ranked(shown, order)
    page = ranked[skip : skip + limit]
    return TenantPage(
        tenants=parts.described(page),
        next=skip + limit if skip + limit < len(ranked) else None,
        number=Counted(len(ranked), parts.facts.is_sample or parts.facts.window.is_cut),
        window=parts.window_of(scope),
        is_sample=parts.facts.is_sample,
    )


def tenant(
    context: OperateContext,
    name: str,
    *,
    tenants: Collection[str] | None = None,
    facts: Facts | None = None,
) -> Tenant:
    """Return one tenant, also its part of queues in which only a weight or a limit is set for it.
    A tenant that is not among `tenants` has zeros and no queues. Costs as much as a page of
    `tenants`. Raise InvalidTask, NotSupported."""
    values.text("name", name, may_be_empty=True, error=InvalidTask)
    scope = scope_of(tenants)
    if scope is not None and name not in scope:
        return _described(name, [], {}, Waits(0), is_sample=False)
    parts = _Parts(context, facts_of(context, facts), None)
    parts.include_settings(name)
    return parts.described([name])[0]


class MatchingTenants(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the tenants that a search finds."""

    names: list[str]
    is_sample: bool
    """Whether tenants with few tasks may be missing."""


def matching_tenants(
    context: OperateContext,
    *,
    queue: str | None = None,
    search: str | None = None,
    facts: Facts | None = None,
) -> MatchingTenants:
    """Return all tenants that `tenants` would list for this queue and search, by name. Raise
    InvalidTask, NotSupported."""
    for what, text in (("queue", queue), ("search", search)):
        if text is not None:
            values.text(what, text, may_be_empty=True, error=InvalidTask)
    parts = _Parts(context, facts_of(context, facts), queue)
    return MatchingTenants(
        names=sorted(parts.tenants(None, search)), is_sample=parts.facts.is_sample
    )


def settings_of_key(
    context: OperateContext, key: str, *, facts: Facts | None = None
) -> list[KeySetting]:
    """Return the weights and limits that are set for exactly this fairness key, by queue. Raise
    InvalidTask, NotSupported."""
    values.text("key", key, may_be_empty=True, error=InvalidTask)
    parts = _Parts(context, facts_of(context, facts), None)
    found = parts.read_settings([(queue, key) for queue in sorted(parts.facts.settings)])
    return [found[at] for at in sorted(found)]


class _Parts:
    """Parts of tenants in queues, or in one queue, from facts."""

    def __init__(self, context: OperateContext, facts: Facts, queue: str | None) -> None:
        self._context = context
        self.facts = facts
        self.runs = _of_queue(facts.runs_of_tenants, queue)
        self.held = _of_queue(facts.held, queue)
        self.errors = _of_queue(facts.errors_of_tenants, queue)
        self.paused = {name for name, each in facts.settings.items() if each.paused}
        self.run_time = facts.run_time_of_queues
        self.queues: Mapping[str, set[str]] = facts.queues_of_tenants
        """Queues of each tenant."""
        if queue is not None:
            self.run_time = Counter({queue: self.run_time[queue]} if self.runs else {})
            self.queues = {name: {queue} for name, of in self.queues.items() if queue in of}

    def tenants(self, scope: frozenset[str] | None, search: str | None) -> list[str]:
        """Return the tenants that may be seen and are searched."""
        return [
            name
            for name in self.queues
            if (scope is None or name in scope) and (search is None or search in name)
        ]

    def window_of(self, scope: frozenset[str] | None) -> Window:
        """Return the attempts of the tenants that may be seen."""
        if scope is None:
            return self.facts.window
        runs = [run for run in self.facts.runs if tenant_of(run.fairness_key) in scope]
        return window_of(runs, self.facts.window.is_cut)

    def ranked(self, names: Iterable[str], order: TenantOrder) -> list[str]:
        """Return the tenants in order."""
        rank = {"backlog": self._backlog, "wait": self._wait, "share": self._run_time}.get(order)
        if rank is None:
            return sorted(names)
        return sorted(names, key=lambda name: (-rank(name), name))

    def _backlog(self, tenant: str) -> int:
        held = (self.held.get((queue, tenant)) for queue in self.queues.get(tenant, ()))
        return sum(each.submitted for each in held if each is not None)

    def _wait(self, tenant: str) -> int:
        return waits_of(self._waits(tenant)).p99 or 0

    def _waits(self, tenant: str) -> list[int]:
        runs = (self.runs.get((queue, tenant)) for queue in self.queues.get(tenant, ()))
        return [wait for each in runs if each is not None for wait in each.waits]

    def _run_time(self, tenant: str) -> int:
        runs = (self.runs.get((queue, tenant)) for queue in self.queues.get(tenant, ()))
        return sum(each.run_time for each in runs if each is not None)

    def described(self, names: Collection[str]) -> list[Tenant]:
        """Return the tenants with their part of every queue."""
        queues = {queue for name in names for queue in self.queues.get(name, ())}
        settings = self._settings(queues)
        weights = self._weights(queues, settings)
        totals = {queue: sum(weights[queue].values()) for queue in queues}
        found = []
        for name in names:
            parts = [
                self._part(queue, name, weights[queue], totals[queue], settings.get((queue, name)))
                for queue in sorted(self.queues.get(name, ()))
            ]
            waits = waits_of(self._waits(name))
            is_sample = self.facts.is_sample
            found.append(_described(name, parts, self.run_time, waits, is_sample=is_sample))
        return found

    def include_settings(self, name: str) -> None:
        """Add the queues in which a weight or a limit is set for a tenant."""
        found = self.read_settings([(queue, name) for queue in sorted(self.facts.settings)])
        queues = self.queues.get(name, set()) | {queue for queue, _ in found}
        self.queues = {**self.queues, name: queues}

    def _settings(self, queues: Collection[str]) -> dict[QueueAndTenant, KeySetting]:
        """Return what is set for the tenants of these queues that have tasks or runs."""
        known = self.facts.key_settings
        wanted = [
            (queue, name) for name, of in self.queues.items() for queue in of if queue in queues
        ]
        missing = sorted(key for key in wanted if key not in known)
        read = self.read_settings(missing)
        known.update({key: read.get(key) for key in missing})
        return {key: found for key in wanted if (found := known[key]) is not None}

    def read_settings(self, wanted: Sequence[QueueAndTenant]) -> dict[QueueAndTenant, KeySetting]:
        """Return what is set for these keys of queues."""
        found: dict[QueueAndTenant, KeySetting] = {}
        reads = self._context.reads
        for start in range(0, len(wanted), 5000):
            rows = self._context.store.database.read_now(
                reads.key_settings(wanted[start : start + 5000])
            )
            found |= {(row.queue, row.fairness_key): row for row in rows}
        return found

    def _weights(
        self, queues: Collection[str], settings: Mapping[QueueAndTenant, KeySetting]
    ) -> dict[str, dict[str, float]]:
        """Return the weights of the tenants that have a backlog or runs, by queue."""
        found: dict[str, dict[str, float]] = {queue: {} for queue in queues}
        for queue, name in {*self.runs, *self.held}:
            if queue not in queues:
                continue
            held, runs = self.held.get((queue, name)), self.runs.get((queue, name))
            if runs is None and not (held is not None and held.submitted):
                continue
            setting = settings.get((queue, name))
            if setting is not None and setting.weight is not None:
                found[queue][name] = setting.weight
            else:
                found[queue][name] = _own_weight(name, held, runs)
        return found

    def _part(
        self,
        queue: str,
        name: str,
        weights: Mapping[str, float],
        weight_of_all: float,
        setting: KeySetting | None,
    ) -> TenantQueue:
        held = self.held.get((queue, name), Held())
        runs = self.runs.get((queue, name), Runs())
        total = self.run_time[queue]
        is_set = setting is not None and setting.weight is not None
        return TenantQueue(
            queue=queue,
            is_paused=queue in self.paused,
            backlog=estimate(held.submitted, self.facts.backlog),
            processing=estimate(held.processing, self.facts.backlog),
            waiting=estimate(held.waiting, self.facts.backlog),
            errors=Counted(self.errors.get((queue, name), 0), self.facts.are_errors_cut),
            oldest_ready_at=held.oldest_ready_at,
            runs=runs.attempts,
            failures=runs.failures,
            run_time=runs.run_time,
            waits=waits_of(runs.waits),
            share_got=runs.run_time / total if total else None,
            share_due=weights[name] / weight_of_all if name in weights else None,
            weight=_weight(name, weights, setting),
            is_weight_set=is_set,
            limit=None if setting is None else setting.slots,
        )


def _weight(name: str, weights: Mapping[str, float], setting: KeySetting | None) -> float:
    """Return the weight of a tenant, also of one that has neither a backlog nor runs."""
    if setting is not None and setting.weight is not None:
        return setting.weight
    return weights.get(name, 1.0)


def _own_weight(name: str, held: Held | None, runs: Runs | None) -> float:
    """Return the weight of a tenant without a setting: that of its tasks whose key is the tenant's
    name, else 1."""
    if held is not None and name in held.weights:
        return held.weights[name]
    return runs.weights.get(name, 1.0) if runs is not None else 1.0


def _described(
    name: str,
    parts: list[TenantQueue],
    of_queues: Mapping[str, int],
    waits: Waits,
    *,
    is_sample: bool,
) -> Tenant:
    """Return a tenant. Its numbers of a sample are estimates, also where the sample has no task."""
    run_time = sum(of_queues.values())
    ready = [part.oldest_ready_at for part in parts if part.oldest_ready_at is not None]
    return Tenant(
        tenant=name,
        backlog=_sum((part.backlog for part in parts), is_sample),
        processing=_sum((part.processing for part in parts), is_sample),
        waiting=_sum((part.waiting for part in parts), is_sample),
        errors=Counted(
            sum(part.errors.number for part in parts), any(part.errors.at_least for part in parts)
        ),
        oldest_ready_at=min(ready, default=None),
        runs=sum(part.runs for part in parts),
        failures=sum(part.failures for part in parts),
        run_time=sum(part.run_time for part in parts),
        waits=waits,
        share_got=sum(part.run_time for part in parts) / run_time if run_time else None,
        share_due=_due(parts, of_queues),
        queues=parts,
    )


def _sum(estimates: Iterable[Estimate], is_sample: bool) -> Estimate:
    return Estimate(sum(one.number for one in estimates), not is_sample)


def _due(parts: Collection[TenantQueue], of_queues: Mapping[str, int]) -> float | None:
    """Return the share due over all queues: that of each queue, by the queue's run time."""
    due = [(part.share_due, of_queues.get(part.queue, 0)) for part in parts]
    total = sum(of_queues.values())
    if not total:
        shares = [share for share, _ in due if share is not None]
        return sum(shares) / len(shares) if shares else None
    return sum(share * time for share, time in due if share is not None) / total


def _of_queue(found: Mapping[QueueAndTenant, T], queue: str | None) -> Mapping[QueueAndTenant, T]:
    if queue is None:
        return found
    return {key: value for key, value in found.items() if key[0] == queue}
