"""The tasks of a simulated fleet and their runs, as an outside observer sees them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.integration.odd_endings import ASYNC_RETURNING
from tests.simulation.fleet_plan import Scope, scopes_of

if TYPE_CHECKING:
    from tests.simulation.fleet_worker import Worker


@dataclass(eq=False)
class Run:
    """One run of a task."""

    worker: Worker
    at: float
    ended_at: float | None = None
    """Time of its end; None while it runs, and for ever if its process was killed before."""


@dataclass(eq=False)
class Job:
    """A submitted task."""

    number: int
    queue: str
    name: str
    fairness_key: str
    due_at: float
    """Seconds of the loop before which it must not start."""
    ordering_key: str | None = None
    priority: int = 5
    how: str = ""
    """Way of its end, for an odd task."""
    seconds: float = 0.0
    fails: int = 0
    """Number of its first runs that fail and are repeated."""
    id: str | None = None
    """Id of the task, once it is committed."""
    is_cancelled: bool = False
    retries: int = 0
    """Number of times a person has retried it after it ended in ERROR."""
    runs: list[Run] = field(default_factory=list)

    @property
    def scopes(self) -> tuple[Scope, Scope, Scope]:
        """Everything as which its runs count."""
        return scopes_of(self.queue, self.name, self.fairness_key)

    @property
    def wanted_runs(self) -> int:
        """Number of its runs without any fault of a node."""
        return 1 + self.fails + (self.how == "snooze") + self.retries

    @property
    def ended_runs(self) -> int:
        """Number of its runs that ended by themselves."""
        return sum(run.ended_at is not None for run in self.runs)

    @property
    def is_over(self) -> bool:
        """Whether its last run has ended, or it was cancelled."""
        return self.is_cancelled or self.ended_runs >= self.wanted_runs

    @property
    def ends_in_error(self) -> bool:
        """Whether it ends in ERROR."""
        return self.name == "odd" and self.how != "snooze" and self.how not in ASYNC_RETURNING
