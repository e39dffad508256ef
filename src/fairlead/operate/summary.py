"""The state of all queues in a few bounded reads, and what needs a person."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from fairlead.clock import MICROS
from fairlead.core import values
from fairlead.errors import InvalidTask
from fairlead.model import ABOUT_TASKS, Incident, IncidentKind, tenant_of
from fairlead.model.task_facts import ErrorFact
from fairlead.operate.context import OperateContext
from fairlead.operate.facts import Facts, facts_of
from fairlead.operate.filters import Counted, scope_of
from fairlead.operate.holding import DeclaredLimit, HeldSlot, declared_limits
from fairlead.operate.numbers import Sums, TaskNumbers, Window
from fairlead.ports.cluster import QueueSettings

MOST_QUEUES = 200
"""Greatest number of queues of a summary."""
MOST_ATTENTION = 50
"""Greatest number of conditions of a summary that need a person."""


class QueueNumbers(TaskNumbers, frozen=True, kw_only=True):
    """Numbers of one queue."""

    queue: str
    partitions: int
    is_paused: bool
    nodes: list[str]
    """Living nodes that serve the queue."""
    ends_per_second: float
    """Attempts that ended in the last five minutes, or since the window's begin if it is later."""
    failures_per_second: float


AttentionKind = Literal["limit", "errors", "incident", "paused", "unserved"]


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Something that needs a person."""

    kind: AttentionKind
    what: str
    queue: str | None = None
    name: str | None = None
    """Name of the tasks."""
    error_type: str | None = None
    """Type of the errors of tasks in ERROR."""
    number: Counted | None = None
    """Number of tasks in ERROR, or of incidents of one cause."""
    since: int | None = None
    """Microseconds since the epoch."""
    incident: Incident | None = None
    """The earliest incident of the cause."""
    held: list[HeldSlot] = []
    """Slots of a limit that are held for far longer than usual."""


class Totals(msgspec.Struct, frozen=True):
    """Sums over queues."""

    backlog: int
    """An estimate if the summary `is_sample`."""
    processing: int
    ends_per_second: float
    failures_per_second: float
    longest_wait: int
    """Longest p99 of the waits of a queue (microseconds)."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The state of all queues."""

    at: int
    """Microseconds since the epoch, by the clock of the store."""
    attention: list[Attention]
    """At most MOST_ATTENTION."""
    more_attention: int
    """Number of those that are left out."""
    queues: list[QueueNumbers]
    """By name, at most MOST_QUEUES."""
    more_queues: int
    """Queues that are left out."""
    totals: Totals
    """Sums over all queues, also over those that are left out."""
    window: Window
    is_sample: bool
    """Whether backlogs are estimates."""


def summary(
    context: OperateContext,
    *,
    queue: str | None = None,
    tenants: Collection[str] | None = None,
    facts: Facts | None = None,
) -> Summary:
    """Return the numbers of all queues, or of one, and what needs a person: limits whose
    slots are held for far longer than usual, tasks in ERROR by queue, name and type, open
    incidents, paused queues, and queues that have tasks but no living node.

    Reads what `read_facts` reads, unless `facts` are given. With `tenants`, everything is of these
    tenants only; incidents that belong to no task, nodes, and queues without their tasks are left
    out. Raise InvalidTask, and NotSupported on a store without rows.
    """
    scope = scope_of(tenants)
    if queue is not None:
        values.name("queue", queue, InvalidTask)
    facts = facts_of(context, facts)
    numbers = [each for each in queue_numbers(facts, scope) if queue in (None, each.queue)]
    errors = [
        error for error in facts.errors if scope is None or tenant_of(error.fairness_key) in scope
    ]
    unserved = _unserved(facts) if scope is None else []
    reported = [each.queue for each in unserved if each.queue is not None]
    limits = _limits(declared_limits(context, facts)) if scope is None else []
    held = {slot.task for each in limits for slot in each.held}
    incidents = [each for each in facts.incidents if each.subject not in held]
    attention = [
        *limits,
        *_errors(errors, facts.are_errors_cut),
        *(_incidents(incidents, reported) if scope is None else ()),
        *_paused(facts.settings),
        *unserved,
    ]
    if queue is not None or scope is not None:
        names = {each.queue for each in numbers}
        attention = [each for each in attention if each.queue in names]
    return Summary(
        at=facts.at,
        attention=attention[:MOST_ATTENTION],
        more_attention=max(len(attention) - MOST_ATTENTION, 0),
        queues=numbers[:MOST_QUEUES],
        more_queues=max(len(numbers) - MOST_QUEUES, 0),
        totals=_totals(numbers),
        window=facts.window(scope),
        is_sample=facts.is_sample,
    )


def queue_numbers(facts: Facts, scope: frozenset[str] | None = None) -> list[QueueNumbers]:
    """Return the numbers of all queues, by name; with a scope, of these tenants in their queues."""
    settings, sums = facts.settings, facts.queues(scope)
    serving = facts.serving if scope is None else {}
    seconds = max(1.0, (facts.at - facts.rates_from) / MICROS)
    numbers = []
    for name in sorted({*sums, *(settings if scope is None else ())}):
        of_queue, known = sums.get(name, Sums()), settings.get(name)
        numbers.append(
            QueueNumbers(
                queue=name,
                partitions=0 if known is None else known.partitions,
                is_paused=known is not None and known.paused,
                nodes=serving.get(name, []),
                ends_per_second=of_queue.recent_ends / seconds,
                failures_per_second=of_queue.recent_failures / seconds,
                **facts.numbers(of_queue),
            )
        )
    return numbers


def _totals(numbers: Collection[QueueNumbers]) -> Totals:
    return Totals(
        backlog=sum(each.backlog.number for each in numbers),
        processing=sum(each.processing.number for each in numbers),
        ends_per_second=sum(each.ends_per_second for each in numbers),
        failures_per_second=sum(each.failures_per_second for each in numbers),
        longest_wait=max((each.waits.p99 or 0 for each in numbers), default=0),
    )


def _limits(limits: Collection[DeclaredLimit]) -> list[Attention]:
    """Return one entry for each limit with a slot that is held for far longer than usual."""
    found = []
    for limit in limits:
        long = [slot for slot in limit.held if slot.is_long]
        if long:
            found.append(
                Attention(
                    kind="limit",
                    what=limit.text(),
                    queue=min(limit.queues),
                    since=long[0].since,
                    held=long[:MOST_ATTENTION],
                )
            )
    return found


def _errors(errors: Sequence[ErrorFact], is_cut: bool) -> list[Attention]:
    """Return one entry for each queue, name and type of error, the most tasks first."""
    groups: defaultdict[tuple[str, str, str | None], list[int]] = defaultdict(list)
    for error in errors:
        groups[error.queue, error.name, error.error_type].append(error.since)
    return [
        Attention(
            kind="errors",
            what=f"tasks {name} of queue {queue} are in ERROR: {error_type or 'no type'}",
            queue=queue,
            name=name,
            error_type=error_type,
            number=Counted(len(since), is_cut),
            since=min(since),
        )
        for (queue, name, error_type), since in sorted(
            groups.items(), key=lambda group: -len(group[1])
        )
    ]


def _incidents(incidents: Sequence[Incident], unserved: Collection[str]) -> list[Attention]:
    """Return one entry for each cause: those of tasks by queue and name, others by their subject.
    Queues that are known to be unserved have an entry already."""
    groups: defaultdict[tuple[str, str, str], list[Incident]] = defaultdict(list)
    for each in incidents:
        if each.kind is IncidentKind.UNSERVED_QUEUE and each.subject in unserved:
            continue
        is_of_tasks = each.kind in ABOUT_TASKS or each.kind is IncidentKind.TASK_UNREADABLE
        groups[each.kind, each.queue, each.name if is_of_tasks else each.subject].append(each)
    found = []
    for (kind, queue, about), group in groups.items():
        first = min(group, key=lambda incident: incident.since)
        line = first.details.split("\n")[0]
        found.append(
            Attention(
                kind="incident",
                what=f"{kind.replace('_', ' ')} of {about or queue}: {line}",
                queue=queue or None,
                name=first.name or None,
                number=Counted(len(group)) if len(group) > 1 else None,
                since=first.since,
                incident=first,
            )
        )
    return found


def _paused(settings: dict[str, QueueSettings]) -> list[Attention]:
    return [
        Attention(kind="paused", what=f"queue {queue} is paused", queue=queue)
        for queue, known in sorted(settings.items())
        if known.paused
    ]


def _unserved(facts: Facts) -> list[Attention]:
    return [
        Attention(
            kind="unserved",
            what=f"queue {queue} has tasks, and no living node serves it",
            queue=queue,
            since=of_queue.oldest_ready_at,
        )
        for queue, of_queue in sorted(facts.queues().items())
        if of_queue.submitted and queue not in facts.serving
    ]
