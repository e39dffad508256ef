"""Limits that the application declares, with the running tasks that hold their slots."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import msgspec

from fairlead.clock import MICROS, to_datetime
from fairlead.core.limits.cluster_limits import (
    AnyLimit,
    ClusterLimit,
    ClusterRateLimit,
    needs_permits,
)
from fairlead.core.limits.limit_tree import LimitTree
from fairlead.core.limits.limits import Limit, RateLimit
from fairlead.engine.cluster_limits import limit_name
from fairlead.model import tenant_of
from fairlead.model.task_facts import RunningTask
from fairlead.operate.context import OperateContext
from fairlead.operate.facts import Facts

MOST_NAMED = 3
"""Greatest number of tasks that a text names."""


class HeldSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that a running task holds."""

    task: str
    version: int
    name: str
    fairness_key: str
    node: str
    since: int
    """Instant of the claim (microseconds since the epoch)."""
    is_long: bool
    """Whether the task has held it for far longer than usual."""


@dataclass(frozen=True, kw_only=True)
class DeclaredLimit:
    """One limit, of a queue or a task, or of several that declare it by one name."""

    name: str
    policy: AnyLimit
    queues: set[str] = field(default_factory=set)
    """Queues whose tasks, or some of them, need a slot."""
    tasks: set[str] = field(default_factory=set)
    """Names of the tasks that declare it."""
    whole: set[str] = field(default_factory=set)
    """Queues that declare it for all their tasks."""
    held: list[HeldSlot] = field(default_factory=list)
    """The longest first."""

    @property
    def slots(self) -> int | None:
        """Slots of the widest pool, on each node or in the cluster; None if they are no number."""
        if isinstance(self.policy, (ClusterLimit, Limit, LimitTree)):
            return self.policy.n
        return None

    def needs(self, queue: str, name: str | None) -> bool:
        """Return whether a task of this queue and name, or some task for None, needs a slot."""
        return queue in self.whole or (queue in self.queues and name in (None, *self.tasks))

    def is_full(self, fairness_keys: Collection[str], nodes: int) -> bool:
        """Return whether no slot is left for one of these keys, on so many nodes."""
        if self.slots is None:
            return False
        per = getattr(self.policy, "per", None)
        if per == "fairness_key":
            by_key = Counter(slot.fairness_key for slot in self.held)
            used = max((by_key[key] for key in fairness_keys), default=0)
        elif per == "name":
            used = max(Counter(slot.name for slot in self.held).values(), default=0)
        else:
            used = len(self.held)
        return used >= self.slots * (1 if needs_permits(self.policy) else max(nodes, 1))

    def text(self, tenants: Collection[str] | None = None) -> str:
        """Return which of its slots are held, by which tasks, the longest first. Tasks of other
        tenants than these are not named."""
        of = "" if self.slots is None else f" of {self.slots}"
        where = "" if needs_permits(self.policy) else " on each node"
        named = [named_slot(slot, tenants) for slot in self.held[:MOST_NAMED]]
        more = len(self.held) - len(named)
        named += [f"and {more} more"] if more else []
        return f"limit {self.name}: {len(self.held)}{of} slots{where} are held: {'; '.join(named)}"


def named_slot(slot: HeldSlot, tenants: Collection[str] | None = None) -> str:
    """Return who holds a slot, and since when."""
    since = to_datetime(slot.since).strftime("%H:%M:%S")
    tenant = tenant_of(slot.fairness_key)
    if tenants is not None and tenant not in tenants:
        return f"a task of another tenant since {since} UTC"
    long = ", far longer than usual" if slot.is_long else ""
    return f"{tenant or '(no key)'}'s {slot.name} {slot.task} since {since} UTC{long}"


def cancelling(slots: Collection[HeldSlot]) -> str | None:
    """Return the command that cancels the tasks which hold slots for far longer than usual."""
    ids = [slot.task for slot in slots if slot.is_long]
    return f"`fairlead tasks cancel {' '.join(ids[:MOST_NAMED])}`" if ids else None


def declared_limits(context: OperateContext, facts: Facts | None) -> list[DeclaredLimit]:
    """Return the limits that the application declares, by name; without facts, nothing holds
    them."""
    found: dict[str, DeclaredLimit] = {}
    for name, queue, task, policy in _declared(context):
        limit = found.setdefault(name, DeclaredLimit(name=name, policy=policy))
        limit.queues.add(queue)
        if task is None:
            limit.whole.add(queue)
        else:
            limit.tasks.add(task)
    limits = [found[name] for name in sorted(found)]
    by_queue: defaultdict[str, list[DeclaredLimit]] = defaultdict(list)
    for limit in limits:
        for queue in limit.queues:
            by_queue[queue].append(limit)
    for running in facts.running if facts is not None else ():
        for limit in by_queue[running.queue]:
            is_rate = isinstance(limit.policy, (RateLimit, ClusterRateLimit))
            if not is_rate and limit.needs(running.queue, running.name):
                assert facts is not None
                limit.held.append(_slot(running, facts))
    return limits


def _declared(context: OperateContext) -> Iterator[tuple[str, str, str | None, AnyLimit]]:
    """Yield name, queue, task (None for the whole queue) and policy of each declared limit."""
    for queue in context.queues.values():
        if (policy := queue.concurrency) is not None:
            yield getattr(policy, "name", None) or queue.name, queue.name, None, policy
    for handler in context.handlers.values():
        if (policy := handler.concurrency) is not None:
            name = getattr(policy, "name", None) or limit_name(handler)
            yield name, handler.queue, handler.name, policy


def _slot(task: RunningTask, facts: Facts) -> HeldSlot:
    return HeldSlot(
        task=task.id,
        version=task.version,
        name=task.name,
        fairness_key=task.fairness_key,
        node=task.node,
        since=task.claimed_at,
        is_long=facts.at - task.claimed_at > facts.patience(task.name) * MICROS,
    )
