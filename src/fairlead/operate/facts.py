"""Facts about all queues and tenants, from a fixed number of bounded reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fairlead.backends.sql.task_reads import MOST_RUNNING
from fairlead.clock import MICROS
from fairlead.core import values
from fairlead.core.usual import patience
from fairlead.engine.liveness import SILENT_SECONDS
from fairlead.engine.settings import STUCK_SECONDS
from fairlead.errors import InvalidTask
from fairlead.model import INCIDENT_ENDS, Incident, IncidentKind, State, tenant_of
from fairlead.model.task_facts import Backlog, ErrorFact, RunFact, RunningTask
from fairlead.operate.context import OperateContext
from fairlead.operate.filters import Counted
from fairlead.operate.numbers import MOST_RUNS, Estimate, Sums, Window, waits_of
from fairlead.ports.cluster import NodeRecord, QueueSettings

MOST_ERRORS = 2000
"""Number of the latest tasks in ERROR that are counted."""
MOST_INCIDENTS = 1000
"""Number up to which open incidents are read."""
FEW = 5
"""Number of hits of a sample below which they give no number."""
RATE_SECONDS = 300.0
"""Seconds before now whose ends make the rates."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts of one instant. Several screens may be made of the same facts; nobody changes them."""

    at: int
    """Microseconds since the epoch, by the clock of the store."""
    settings: dict[str, QueueSettings]
    runs: list[RunFact]
    """Latest attempts, at most MOST_RUNS."""
    backlog: Backlog
    running: list[RunningTask]
    """Running tasks, the longest first, at most MOST_RUNNING."""
    errors: list[ErrorFact]
    """Latest tasks in ERROR, at most MOST_ERRORS."""
    nodes: list[NodeRecord]
    incidents: list[Incident]
    """Open incidents other than tasks in ERROR, at most MOST_INCIDENTS."""

    @property
    def are_errors_cut(self) -> bool:
        """Whether there may be more tasks in ERROR."""
        return len(self.errors) >= MOST_ERRORS

    @property
    def is_sample(self) -> bool:
        """Whether the backlog is a sample."""
        return self.backlog.factor != 1

    @property
    def is_cut(self) -> bool:
        """Whether the history has earlier attempts, which were not read."""
        return len(self.runs) >= MOST_RUNS

    @cached_property
    def rates_from(self) -> int:
        """Begin of the period of the rates (microseconds since the epoch): RATE_SECONDS ago, or the
        begin of the attempts that were read."""
        begin = self.at - round(RATE_SECONDS * MICROS)
        return max(begin, min(run.finished_at for run in self.runs)) if self.is_cut else begin

    @cached_property
    def serving(self) -> dict[str, list[str]]:
        """Living nodes of each queue that has any."""
        found: dict[str, list[str]] = {}
        for node in self.nodes:
            if node.heartbeat_at >= self.at - round(SILENT_SECONDS * MICROS):
                for queue in node.queues:
                    found.setdefault(queue, []).append(node.node)
        return found

    @cached_property
    def tenants(self) -> dict[str, dict[str, Sums]]:
        """Sums by tenant and queue, for each queue in which a tenant has tasks or attempts."""
        found: defaultdict[str, defaultdict[str, Sums]] = defaultdict(lambda: defaultdict(Sums))
        for run in self.runs:
            tenant = tenant_of(run.fairness_key)
            found[tenant][run.queue].add_run(run, tenant, self.rates_from)
        for count in self.backlog.counts:
            if count.state is not State.PROCESSING or not self.is_sample:
                tenant = tenant_of(count.fairness_key)
                found[tenant][count.queue].add_tasks(count, tenant)
        for task in self.running if self.is_sample else ():
            found[tenant_of(task.fairness_key)][task.queue].processing += 1
        for error in self.errors:
            found[tenant_of(error.fairness_key)][error.queue].errors += 1
        return {tenant: dict(queues) for tenant, queues in found.items()}

    @cached_property
    def _usual(self) -> dict[str, float]:
        """Seconds after which a run takes far longer than usual, by name."""
        times: defaultdict[str, list[int]] = defaultdict(list)
        for run in self.runs:
            if run.started_at is not None:
                times[run.name].append(run.finished_at - run.started_at)
        found = {name: patience(each) for name, each in times.items()}
        return {name: each / MICROS for name, each in found.items() if each is not None}

    def patience(self, name: str) -> float:
        """Return the seconds after which a run of this name takes far longer than usual."""
        return self._usual.get(name, STUCK_SECONDS)

    def queues(self, scope: Collection[str] | None = None) -> dict[str, Sums]:
        """Return the sums by queue; with a scope, those of these tenants."""
        found: defaultdict[str, Sums] = defaultdict(Sums)
        for tenant, queues in self.tenants.items():
            if scope is None or tenant in scope:
                for queue, sums in queues.items():
                    found[queue].include(sums)
        return dict(found)

    def window(self, scope: Collection[str] | None = None) -> Window:
        """Return the attempts that were read; with a scope, those of these tenants."""
        ends = [
            run.finished_at
            for run in self.runs
            if scope is None or tenant_of(run.fairness_key) in scope
        ]
        return Window(len(ends), min(ends, default=None), max(ends, default=None), self.is_cut)

    def numbers(self, sums: Sums) -> dict[str, Any]:
        """Return the fields of TaskNumbers."""
        return {
            "backlog": self._estimate(sums.submitted),
            "processing": Estimate(sums.processing, len(self.running) < MOST_RUNNING),
            "waiting": self._estimate(sums.waiting),
            "errors": Counted(sums.errors, self.are_errors_cut),
            "oldest_ready_at": sums.oldest_ready_at,
            "runs": sums.attempts,
            "waits": waits_of(sums.waits),
        }

    def _estimate(self, tasks: int) -> Estimate:
        """Return the number of tasks for which so many of the sample stand."""
        is_rough = self.is_sample and tasks < FEW
        return Estimate(round(tasks * self.backlog.factor), not self.is_sample, is_rough)


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
    of the table), at most 10,000 running ones, the latest 2,000 tasks in ERROR, at most 1,000
    incidents, and the settings of queues and nodes. Raise NotSupported on a store without rows."""
    store, reads = context.sql_store, context.reads
    read = store.database.read_now
    kinds = [kind for kind in IncidentKind if kind is not IncidentKind.ERROR]
    at = read(store.shared_clock(context.clock.now()))
    open_since = at - round(INCIDENT_ENDS * MICROS)
    return Facts(
        at=at,
        settings=read(store.queue_settings()),
        runs=read(reads.runs(MOST_RUNS)),
        backlog=read(reads.backlog()),
        running=read(reads.running(MOST_RUNNING)),
        errors=read(reads.errors(MOST_ERRORS)),
        nodes=read(store.nodes()),
        incidents=read(store.incidents.open(kinds, MOST_INCIDENTS, open_since)),
    )
