"""Observers of nodes and submits, for metrics. Called with whole batches, never once per task."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from fairlead.model import ClaimedTask, Finish, NewTask, Trigger
from fairlead.ports.incident_store import IncidentCounts

log = logging.getLogger("fairlead.observer")


class OrderedGauges(NamedTuple):
    """Gauges of an ordered queue on this node."""

    loaded: int
    """Tasks in memory."""
    in_flight: int
    """Tasks dispatched whose ends are not yet written."""
    stale: int
    """Tasks in memory that were due more than 5 minutes ago."""
    look_ahead: float
    """Seconds from now up to which all tasks are in memory, in the partition that is furthest
    behind; negative while the partition catches up."""
    failing: int
    """Partitions that are being loaded again after a failure."""


class ObservedRun(Protocol):
    """A run of a claimed task."""

    trigger: Trigger
    claimed: ClaimedTask
    finish: Finish
    """End of the run; set once it is known."""


class Observer(Protocol):
    """Receives the events of a node. All methods must be quick. They run on the node's event loop,
    except `submitted` and `counted`, which run in any thread. Exceptions are logged and change
    nothing else."""

    def submitted(self, tasks: Sequence[NewTask]) -> None:
        """Observe tasks that were inserted, or will be when the caller's transaction commits."""

    def claimed(self, runs: Sequence[ObservedRun]) -> None:
        """Observe runs of tasks that this node claimed, before they start."""

    def finished(self, runs: Sequence[ObservedRun]) -> None:
        """Observe runs that ended and whose ends are in the store."""

    def gauges(self, look_ahead: int, in_flight: int) -> None:
        """Observe the current numbers of triggers in memory and of tasks claimed but not
        completed."""

    def memory(self, granted: int, budget: int) -> None:
        """Observe how many bytes the lanes of this node may fill with triggers now, and how many
        they may fill at most."""

    def ordered(self, queues: dict[str, OrderedGauges]) -> None:
        """Observe the current gauges of this node's ordered queues. A node without ordered queues
        does not call this."""

    def oldest_ready(self, ages: dict[str, float]) -> None:
        """Observe how long the oldest SUBMITTED task of each queue has waited (seconds)."""

    def incidents(self, counts: IncidentCounts) -> None:
        """Observe the numbers of open incidents, by (kind, queue, name of the task)."""

    def counted(self, what: str, count: int = 1) -> None:
        """Count another event: `healed_triggers`, `lost_claims`, `refused_completions`,
        `resumed_tasks`, `delivered_incidents`, `failed_deliveries`, `blocked_loops`,
        `unsent_triggers`, `corrupt_triggers` ..."""


class Silent:
    """Observes nothing."""

    def submitted(self, tasks: Sequence[NewTask]) -> None: ...
    def claimed(self, runs: Sequence[ObservedRun]) -> None: ...
    def finished(self, runs: Sequence[ObservedRun]) -> None: ...
    def gauges(self, look_ahead: int, in_flight: int) -> None: ...
    def memory(self, granted: int, budget: int) -> None: ...
    def ordered(self, queues: dict[str, OrderedGauges]) -> None: ...
    def oldest_ready(self, ages: dict[str, float]) -> None: ...
    def incidents(self, counts: IncidentCounts) -> None: ...
    def counted(self, what: str, count: int = 1) -> None: ...


class SafeObserver:
    """Passes events to the application's observer. An observer that raises fails no submit and
    ends no node. Logs the 1st, 2nd, 4th, 8th ... exception of each method."""

    def __init__(self, current: Callable[[], Observer]) -> None:
        """`current`: returns the observer, which the application may replace at any time."""
        self._current = current
        self._failures: Counter[str] = Counter()

    def __getattr__(self, method: str) -> Callable[..., None]:
        """Return a function that passes an event on to this method of the observer."""
        return partial(self._call, method)

    def _call(self, method: str, *arguments: object) -> None:
        try:
            getattr(self._current(), method)(*arguments)
        except Exception:
            self._failures[method] += 1
            failures = self._failures[method]
            if failures & (failures - 1) == 0:  # a power of two
                log.exception(
                    "the observer raised an exception; its metrics are incomplete",
                    extra={"method": method, "failures": failures},
                )
