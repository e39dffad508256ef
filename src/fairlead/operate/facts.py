"""Facts about all queues and tenants, from a fixed number of bounded reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

from fairlead.core import values
from fairlead.errors import InvalidTask
from fairlead.model import Incident, IncidentKind, tenant_of
from fairlead.model.task_facts import Backlog, ErrorFact, KeySetting, RunFact
from fairlead.operate.context import OperateContext
from fairlead.operate.numbers import (
    MOST_RUNS,
    Held,
    QueueAndTenant,
    Runs,
    Window,
    held_by_tenants,
    runs_of_queues,
    runs_of_tenants,
    window_of,
)
from fairlead.ports.cluster_state import NodeRecord, QueueSettings

MOST_ERRORS = 2000
"""Number of the latest tasks in ERROR that are counted."""
MOST_INCIDENTS = 1000
"""Number up to which open incidents are read."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts of one instant. Several screens may be made of the same facts; nobody changes them."""

    at: int
    """Microseconds since the epoch, by the clock of the store."""
    settings: dict[str, QueueSettings]
    runs: list[RunFact]
    """Latest attempts, at most MOST_RUNS."""
    backlog: Backlog
    errors: list[ErrorFact]
    """Latest tasks in ERROR, at most MOST_ERRORS."""
    nodes: list[NodeRecord]
    incidents: list[Incident]
    """Open incidents other than tasks in ERROR, at most MOST_INCIDENTS."""
    key_settings: dict[QueueAndTenant, KeySetting | None] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Settings of keys named as tenants, as far as a screen has read them for these facts; None
    for a key without a setting."""

    def sum_up(self) -> None:
        """Make all sums now, so that no screen has to wait for them."""
        _ = (self.window, self.runs_of_queues, self.run_time_of_queues, self.queues_of_tenants)

    @property
    def are_errors_cut(self) -> bool:
        """Whether there may be more tasks in ERROR."""
        return len(self.errors) >= MOST_ERRORS

    @property
    def is_sample(self) -> bool:
        """Whether the backlog is a sample."""
        return self.backlog.factor != 1

    @cached_property
    def window(self) -> Window:
        """Attempts that were read."""
        return window_of(self.runs)

    @cached_property
    def runs_of_queues(self) -> dict[str, Runs]:
        """Sums of the attempts by queue."""
        return runs_of_queues(self.runs)

    @cached_property
    def runs_of_tenants(self) -> dict[QueueAndTenant, Runs]:
        """Sums of the attempts by queue and tenant."""
        return runs_of_tenants(self.runs)

    @cached_property
    def held(self) -> dict[QueueAndTenant, Held]:
        """Unfinished tasks by queue and tenant."""
        return held_by_tenants(self.backlog)

    def held_of_queues(self, scope: Collection[str] | None = None) -> dict[str, Held]:
        """Return the unfinished tasks by queue; with a scope, those of these tenants."""
        found: dict[str, Held] = {}
        for (queue, tenant), held in self.held.items():
            if scope is None or tenant in scope:
                found.setdefault(queue, Held()).include(held)
        return found

    @cached_property
    def run_time_of_queues(self) -> Counter[str]:
        """Sum of the run times of the attempts by queue (microseconds)."""
        found: Counter[str] = Counter()
        for (queue, _), runs in self.runs_of_tenants.items():
            found[queue] += runs.run_time
        return found

    @cached_property
    def queues_of_tenants(self) -> dict[str, set[str]]:
        """Queues in which a tenant has unfinished tasks or attempts, by tenant."""
        found: dict[str, set[str]] = {}
        for queue, tenant in (*self.runs_of_tenants, *self.held, *self.errors_of_tenants):
            found.setdefault(tenant, set()).add(queue)
        return found

    @cached_property
    def errors_of_tenants(self) -> Counter[QueueAndTenant]:
        """Number of tasks in ERROR by queue and tenant."""
        return Counter((error.queue, tenant_of(error.fairness_key)) for error in self.errors)


def facts_of(context: OperateContext, given: object) -> Facts:
    """Return the given facts, or read them for None. Raise InvalidTask for anything else, and
    NotSupported on a store without rows."""
    if given is None:
        return read_facts(context)
    if not isinstance(given, Facts):
        raise InvalidTask(f"facts {values.brief(given)}: use the result of read_facts")
    return given


def read_facts(context: OperateContext) -> Facts:
    """Read the latest 10,000 attempts, at most 10,000 unfinished tasks (on PostgreSQL 1,000 pages
    of the table), the latest 2,000 tasks in ERROR, at most 1,000 incidents, and the settings of
    queues and nodes. Raise NotSupported on a store without rows."""
    store, reads = context.sql_store, context.reads
    read = store.database.read_now
    kinds = [kind for kind in IncidentKind if kind is not IncidentKind.ERROR]
    return Facts(
        at=read(store.periodics.clock(context.clock.now())),
        settings=read(store.queue_settings()),
        runs=read(reads.runs(MOST_RUNS)),
        backlog=read(reads.backlog()),
        errors=read(reads.errors(MOST_ERRORS)),
        nodes=read(store.nodes()),
        incidents=read(store.incidents.open(kinds, MOST_INCIDENTS)),
    )
