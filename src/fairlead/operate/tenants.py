"""Tenants: who waits, who got what, and who was due what.

The numbers come from two bounded reads, whatever the number of tasks and keys: the latest 10,000
attempts, and the unfinished tasks or a sample of them. Numbers of a sample say so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

from fairlead.core import values
from fairlead.errors import InvalidTask
from fairlead.model.task_facts import KeySetting
from fairlead.operate.context import OperateContext
from fairlead.operate.facts import Facts, facts_of
from fairlead.operate.filters import Counted, scope_of
from fairlead.operate.numbers import QueueAndTenant, Sums, TaskNumbers, Window, waits_of
from fairlead.operate.why import Cause, causes

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
    why: list[Cause]
    """Why its ready tasks wait, by queue; only of a single tenant, not of a page."""


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


class TenantSearch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All tenants with a part of `queue`, and with `search` in their names; an absent one selects
    any."""

    queue: Annotated[str, Meta(max_length=values.MOST_KEY_BYTES)] | None = None
    search: (
        Annotated[
            str, Meta(max_length=values.MOST_KEY_BYTES, description="Part of the names of tenants.")
        ]
        | None
    ) = None


ANY_TENANT = TenantSearch()


def tenants(
    context: OperateContext,
    search: TenantSearch = ANY_TENANT,
    *,
    order: TenantOrder = "backlog",
    skip: int = 0,
    limit: int = 50,
    tenants: Collection[str] | None = None,
    facts: Facts | None = None,
) -> TenantPage:
    """Return a page of at most `limit` tenants (1 to 500): the longest backlog first, the longest
    p99 of waits, the greatest share got, or by name. `tenants`: those that may be seen, None for
    all.

    Reads what `read_facts` reads, unless `facts` are given, and the settings of the tenants in the
    page's queues. Raise InvalidTask, and NotSupported on a store without rows.
    """
    values.one_of("order", order, *get_args(TenantOrder), error=InvalidTask)
    values.whole("skip", skip, 0, error=InvalidTask)
    values.whole("limit", limit, 1, MOST_TENANTS_SHOWN, InvalidTask)
    _check(search)
    scope = scope_of(tenants)
    facts = facts_of(context, facts)
    parts = _parts(facts, search.queue)
    ranked = _ranked(parts, _found(parts, scope, search.search), order)
    page = {name: parts[name] for name in ranked[skip : skip + limit]}
    return TenantPage(
        tenants=_described(context, facts, page, search.queue),
        next=skip + limit if skip + limit < len(ranked) else None,
        number=Counted(len(ranked), facts.is_sample or facts.is_cut),
        window=facts.window(scope),
        is_sample=facts.is_sample,
    )


def tenant(
    context: OperateContext,
    name: str,
    *,
    tenants: Collection[str] | None = None,
    facts: Facts | None = None,
) -> Tenant:
    """Return one tenant and why it waits, also its part of queues in which only a weight or a limit
    is set for it. A tenant that is not among `tenants` has zeros and no queues. Costs as much as a
    page of `tenants`. Raise InvalidTask, NotSupported."""
    values.text("name", name, may_be_empty=True, error=InvalidTask)
    scope = scope_of(tenants)
    facts, parts, why = facts_of(context, facts), dict[str, Sums](), list[Cause]()
    if scope is None or name in scope:
        found = _settings(context, [(queue, name) for queue in sorted(facts.settings)])
        parts = {queue: Sums() for queue, _ in found} | facts.tenants.get(name, {})
        why = causes(context, facts, name, scope)
    return msgspec.structs.replace(_described(context, facts, {name: parts})[0], why=why)


class MatchingTenants(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the tenants that a search finds."""

    names: list[str]
    is_sample: bool
    """Whether tenants with few tasks may be missing."""


def matching_tenants(
    context: OperateContext, search: TenantSearch, *, facts: Facts | None = None
) -> MatchingTenants:
    """Return all tenants that `tenants` would list for this search, by name. Raise InvalidTask,
    NotSupported."""
    _check(search)
    facts = facts_of(context, facts)
    names = _found(_parts(facts, search.queue), None, search.search)
    return MatchingTenants(names=sorted(names), is_sample=facts.is_sample)


def settings_of_key(
    context: OperateContext, key: str, *, facts: Facts | None = None
) -> list[KeySetting]:
    """Return the weights and limits that are set for exactly this fairness key, by queue. Raise
    InvalidTask, NotSupported."""
    values.text("key", key, may_be_empty=True, error=InvalidTask)
    settings = facts_of(context, facts).settings
    found = _settings(context, [(queue, key) for queue in sorted(settings)])
    return [found[at] for at in sorted(found)]


def _check(search: TenantSearch) -> None:
    """Raise InvalidTask for a value that is no search, or texts that no queue or tenant has."""
    if not isinstance(search, TenantSearch):
        raise InvalidTask(f"search {values.brief(search)}: use a TenantSearch")
    for what, text in msgspec.structs.asdict(search).items():
        if text is not None:
            values.text(what, text, may_be_empty=True, error=InvalidTask)


Parts = Mapping[str, Mapping[str, Sums]]
"""Sums by tenant and queue."""


def _parts(facts: Facts, queue: str | None) -> Parts:
    """Return the parts of the tenants in all queues, or in one."""
    if queue is None:
        return facts.tenants
    return {name: {queue: of[queue]} for name, of in facts.tenants.items() if queue in of}


def _found(parts: Parts, scope: frozenset[str] | None, search: str | None) -> list[str]:
    """Return the tenants that may be seen and are searched."""
    return [
        name
        for name in parts
        if (scope is None or name in scope) and (search is None or search in name)
    ]


def _ranked(parts: Parts, names: Iterable[str], order: TenantOrder) -> list[str]:
    """Return the tenants in order."""
    if order == "name":
        return sorted(names)

    def rank(name: str) -> int:
        total = _sum(parts[name])
        if order == "wait":
            return waits_of(total.waits).p99 or 0
        return total.submitted if order == "backlog" else total.run_time

    return sorted(names, key=lambda name: (-rank(name), name))


def _sum(parts: Mapping[str, Sums]) -> Sums:
    """Return the sums of a tenant over its queues."""
    total = Sums()
    for sums in parts.values():
        total.include(sums)
    return total


def _settings(
    context: OperateContext, wanted: Sequence[QueueAndTenant]
) -> dict[QueueAndTenant, KeySetting]:
    """Return what is set for these keys of queues."""
    found: dict[QueueAndTenant, KeySetting] = {}
    for start in range(0, len(wanted), 5000):
        rows = context.store.database.read_now(
            context.reads.key_settings(wanted[start : start + 5000])
        )
        found |= {(row.queue, row.fairness_key): row for row in rows}
    return found


def _described(
    context: OperateContext, facts: Facts, page: Parts, queue: str | None = None
) -> list[Tenant]:
    """Return tenants with their part of every queue, or of one."""
    queues = {each for parts in page.values() for each in parts}
    everyone = [
        (name, each, sums)
        for name, parts in facts.tenants.items()
        for each, sums in parts.items()
        if each in queues
    ]
    wanted = {(each, name) for name, each, _ in everyone}
    wanted |= {(each, name) for name, parts in page.items() for each in parts}
    settings = _settings(context, sorted(wanted))
    weights = {
        (each, name): _weight(sums, settings.get((each, name)))
        for name, each, sums in everyone
        if sums.attempts or sums.submitted
    }
    weight_of_all: defaultdict[str, float] = defaultdict(float)
    for (each, _), weight in weights.items():
        weight_of_all[each] += weight
    paused = {each for each, known in facts.settings.items() if known.paused}
    run_time: Counter[str] = Counter()
    for each, sums in facts.queues().items():
        if queue is None or each == queue:
            run_time[each] = sums.run_time
    found = []
    for name, sums_of in page.items():
        parts = [
            TenantQueue(
                queue=each,
                is_paused=each in paused,
                failures=sums.failures,
                run_time=sums.run_time,
                share_got=_share(sums.run_time, run_time[each]),
                share_due=_share(weights.get((each, name)), weight_of_all[each]),
                weight=_weight(sums, setting := settings.get((each, name))),
                is_weight_set=setting is not None and setting.weight is not None,
                limit=None if setting is None else setting.slots,
                **facts.numbers(sums),
            )
            for each, sums in sorted(sums_of.items())
        ]
        total = _sum(sums_of)
        found.append(
            Tenant(
                tenant=name,
                failures=total.failures,
                run_time=total.run_time,
                share_got=_share(total.run_time, run_time.total()),
                share_due=_due(parts, run_time),
                queues=parts,
                why=[],
                **facts.numbers(total),
            )
        )
    return found


def _weight(sums: Sums, setting: KeySetting | None) -> float:
    """Return the weight of a tenant in a queue."""
    if setting is not None and setting.weight is not None:
        return setting.weight
    return sums.weight


def _share(part: float | None, whole: float) -> float | None:
    return None if part is None or not whole else part / whole


def _due(parts: Collection[TenantQueue], run_time: Counter[str]) -> float | None:
    """Return the share due over all queues: that of each queue, by the queue's run time."""
    due = [(part.share_due, run_time[part.queue]) for part in parts]
    total = run_time.total()
    if not total:
        shares = [share for share, _ in due if share is not None]
        return sum(shares) / len(shares) if shares else None
    return sum(share * time for share, time in due if share is not None) / total
