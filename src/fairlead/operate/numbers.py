"""Numbers of the latest runs and of the backlog, by queue and tenant, from bounded reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from fairlead.model import Outcome, State, tenant_of
from fairlead.model.task_facts import Backlog, KeyCount, RunFact
from fairlead.operate.filters import Counted

MOST_RUNS = 10_000
"""Number of the latest attempts from which runs, waits and shares are computed."""
MOST_WAITS = 1000
"""Number of the latest runs of a queue or tenant from which percentiles of waits are computed."""


class Estimate(msgspec.Struct, frozen=True):
    """A number of tasks: counted, or estimated from a sample."""

    number: int
    is_exact: bool = True


class Waits(msgspec.Struct, frozen=True):
    """Waits of the latest runs, from ready to claimed (microseconds)."""

    runs: int
    """Number of runs with a wait."""
    p50: int | None = None
    p99: int | None = None


class TaskNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of the tasks of a queue or a tenant."""

    backlog: Estimate
    """Tasks that may run now."""
    processing: Estimate
    waiting: Estimate
    """Tasks that wait for their time or for a retry."""
    errors: Counted
    """Tasks in ERROR, which wait for a person."""
    oldest_ready_at: int | None
    """Since when the first task of the backlog may run (microseconds since the epoch); the first
    of the sample if `backlog` is an estimate."""
    runs: int
    """Attempts in the window."""
    waits: Waits


class Window(msgspec.Struct, frozen=True):
    """The attempts from which numbers were computed: the latest, at most MOST_RUNS."""

    attempts: int
    from_at: int | None = None
    """End of the earliest of them (microseconds since the epoch); None without attempts."""
    to_at: int | None = None
    is_cut: bool = False
    """Whether the history has earlier attempts, which were not read."""


@dataclass
class Runs:
    """Sums over the attempts of one queue, or of one tenant in one queue."""

    attempts: int = 0
    failures: int = 0
    run_time: int = 0
    """Sum of run times (microseconds)."""
    waits: list[int] = field(default_factory=list)
    """Latest waits, the latest first, at most MOST_WAITS."""
    weights: dict[str, float] = field(default_factory=dict)
    """Weight of the latest attempt, by fairness key."""

    def add(self, run: RunFact) -> None:
        """Count one attempt."""
        self.attempts += 1
        self.failures += run.outcome in FAILURES
        if run.started_at is not None:
            self.run_time += max(0, run.finished_at - run.started_at)
        if run.claimed_at is not None and run.ready_at is not None and len(self.waits) < MOST_WAITS:
            self.waits.append(max(0, run.claimed_at - run.ready_at))
        self.weights.setdefault(run.fairness_key, run.weight)


FAILURES = frozenset({Outcome.FAILED, Outcome.RETRIED, Outcome.TIMED_OUT, Outcome.LOST})
"""Outcomes of attempts that failed."""


@dataclass
class Held:
    """Unfinished tasks of one tenant in one queue, as a sample has them."""

    submitted: int = 0
    processing: int = 0
    waiting: int = 0
    error: int = 0
    oldest_ready_at: int | None = None
    weights: dict[str, float] = field(default_factory=dict)
    """Greatest weight of the tasks that may run, by fairness key."""

    def add(self, count: KeyCount) -> None:
        """Count the tasks of a fairness key in one state."""
        match count.state:
            case State.SUBMITTED:
                self.submitted += count.tasks
                self._is_ready(count.oldest_at)
                weight = self.weights.get(count.fairness_key, count.weight)
                self.weights[count.fairness_key] = max(weight, count.weight)
            case State.PROCESSING:
                self.processing += count.tasks
            case State.WAITING:
                self.waiting += count.tasks
            case State.ERROR:
                self.error += count.tasks
            case _:
                pass

    def include(self, other: Held) -> None:
        """Count the tasks of another tenant too, without their weights."""
        self.submitted += other.submitted
        self.processing += other.processing
        self.waiting += other.waiting
        self.error += other.error
        if other.oldest_ready_at is not None:
            self._is_ready(other.oldest_ready_at)

    def _is_ready(self, at: int) -> None:
        if self.oldest_ready_at is None or at < self.oldest_ready_at:
            self.oldest_ready_at = at


QueueAndTenant = tuple[str, str]


def runs_of_tenants(runs: Iterable[RunFact]) -> dict[QueueAndTenant, Runs]:
    """Return the sums by (queue, tenant)."""
    found: defaultdict[QueueAndTenant, Runs] = defaultdict(Runs)
    for run in runs:
        found[run.queue, tenant_of(run.fairness_key)].add(run)
    return dict(found)


def runs_of_queues(runs: Iterable[RunFact]) -> dict[str, Runs]:
    """Return the sums by queue."""
    found: defaultdict[str, Runs] = defaultdict(Runs)
    for run in runs:
        found[run.queue].add(run)
    return dict(found)


def held_by_tenants(backlog: Backlog) -> dict[QueueAndTenant, Held]:
    """Return the unfinished tasks by (queue, tenant)."""
    found: defaultdict[QueueAndTenant, Held] = defaultdict(Held)
    for count in backlog.counts:
        found[count.queue, tenant_of(count.fairness_key)].add(count)
    return dict(found)


def estimate(tasks: int, backlog: Backlog) -> Estimate:
    """Return the number of tasks for which so many of the sample stand."""
    return Estimate(round(tasks * backlog.factor), backlog.factor == 1)


def waits_of(waits: Sequence[int]) -> Waits:
    """Return the percentiles of waits: the least wait that so many of a hundred do not exceed."""
    ordered = sorted(waits)
    if not ordered:
        return Waits(0)
    return Waits(len(ordered), _percentile(ordered, 50), _percentile(ordered, 99))


def window_of(runs: Sequence[RunFact], is_cut: bool | None = None) -> Window:
    """Return what was read. `is_cut`: whether the history has earlier attempts; None if `runs` are
    all that were read, whose number tells it."""
    if is_cut is None:
        is_cut = len(runs) >= MOST_RUNS
    if not runs:
        return Window(0, is_cut=is_cut)
    ends = [run.finished_at for run in runs]
    return Window(len(runs), min(ends), max(ends), is_cut)


def _percentile(ordered: Sequence[int], percent: int) -> int:
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
