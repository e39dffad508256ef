"""Numbers of the latest runs and of the backlog, by queue and tenant, from bounded reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from fairlead.core.usual import percentile
from fairlead.model import Outcome, State
from fairlead.model.task_facts import KeyCount, RunFact
from fairlead.operate.filters import Counted

MOST_RUNS = 10_000
"""Number of the latest attempts from which runs, waits and shares are computed."""


QueueAndTenant = tuple[str, str]


class Estimate(msgspec.Struct, frozen=True):
    """A number of tasks: counted, or estimated from a sample."""

    number: int
    is_exact: bool = True
    is_rough: bool = False
    """Whether so few tasks of the sample stand for it that it may be far off."""


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


FAILURES = frozenset({Outcome.FAILED, Outcome.RETRIED, Outcome.TIMED_OUT, Outcome.LOST})
"""Outcomes of attempts that failed."""


@dataclass
class Sums:
    """Sums over the latest attempts and the unfinished tasks, or a sample of them, of one tenant in
    one queue, or of several."""

    submitted: int = 0
    processing: int = 0
    waiting: int = 0
    error: int = 0
    """Tasks in ERROR among the unfinished ones."""
    oldest_ready_at: int | None = None
    errors: int = 0
    """Tasks in ERROR among the latest ones."""
    attempts: int = 0
    failures: int = 0
    run_time: int = 0
    """Sum of run times (microseconds)."""
    waits: list[int] = field(default_factory=list)
    recent_ends: int = 0
    """Attempts that ended in the period of the rates."""
    recent_failures: int = 0
    held_weight: float | None = None
    """Greatest weight of the tasks that may run and whose key is the tenant's name."""
    run_weight: float | None = None
    """Weight of the latest attempt whose key is the tenant's name."""

    @property
    def weight(self) -> float:
        """Weight of a tenant without a setting: that of its tasks with its name as key, else 1."""
        found = self.run_weight if self.held_weight is None else self.held_weight
        return 1.0 if found is None else found

    def add_run(self, run: RunFact, tenant: str, recent_from: int) -> None:
        """Count one attempt."""
        is_failure = run.outcome in FAILURES
        self.attempts += 1
        self.failures += is_failure
        if run.finished_at >= recent_from:
            self.recent_ends += 1
            self.recent_failures += is_failure
        if run.started_at is not None:
            self.run_time += max(0, run.finished_at - run.started_at)
        if run.claimed_at is not None and run.ready_at is not None:
            self.waits.append(max(0, run.claimed_at - run.ready_at))
        if run.fairness_key == tenant and self.run_weight is None:
            self.run_weight = run.weight

    def add_tasks(self, count: KeyCount, tenant: str) -> None:
        """Count the tasks of a fairness key in one state."""
        match count.state:
            case State.SUBMITTED:
                self.submitted += count.tasks
                self._is_ready(count.oldest_at)
                if count.fairness_key == tenant:
                    self.held_weight = max(self.held_weight or 0.0, count.weight)
            case State.PROCESSING:
                self.processing += count.tasks
            case State.WAITING:
                self.waiting += count.tasks
            case State.ERROR:
                self.error += count.tasks
            case _:
                pass

    def include(self, other: Sums) -> None:
        """Add the sums of another tenant or queue, without weights."""
        self.submitted += other.submitted
        self.processing += other.processing
        self.waiting += other.waiting
        self.error += other.error
        self.errors += other.errors
        self.attempts += other.attempts
        self.failures += other.failures
        self.run_time += other.run_time
        self.waits += other.waits
        self.recent_ends += other.recent_ends
        self.recent_failures += other.recent_failures
        if other.oldest_ready_at is not None:
            self._is_ready(other.oldest_ready_at)

    def _is_ready(self, at: int) -> None:
        if self.oldest_ready_at is None or at < self.oldest_ready_at:
            self.oldest_ready_at = at


def waits_of(waits: Sequence[int]) -> Waits:
    """Return the percentiles of waits."""
    ordered = sorted(waits)
    if not ordered:
        return Waits(0)
    return Waits(len(ordered), percentile(ordered, 50), percentile(ordered, 99))
