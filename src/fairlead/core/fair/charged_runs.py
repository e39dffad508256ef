"""Current runs that are charged by their time (`cost="runtime"`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlead.core.fair.run_times import RunTimes
from fairlead.model import PartitionKey, Trigger

if TYPE_CHECKING:
    from fairlead.core.fair.flows import FairLane

CHECK_SECONDS = 0.25
"""Seconds between two searches for runs that take longer than their charges."""


@dataclass(eq=False, slots=True)
class ChargedRun:
    """A current run and its charge so far."""

    trigger: Trigger
    lane: FairLane
    run_times: RunTimes
    """Mean run times of the queue."""
    charge: int
    """Virtual time at weight 1."""
    since: float
    """Start, in monotonic seconds."""


class ChargedRuns:
    """Current runs of all timed lanes of a table. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._now = 0.0
        """Time of the last call of `overdue`."""
        self._check_at = 0.0
        self._runs: dict[tuple[str, int], ChargedRun] = {}
        """Runs by task id and version."""

    def __iter__(self) -> Iterator[ChargedRun]:
        return iter(self._runs.values())

    def begin(self, trigger: Trigger, lane: FairLane, run_times: RunTimes) -> ChargedRun | None:
        """Add a run that begins, with its expected time as the charge; return None if a run of the
        task is here."""
        identity = (trigger.id, trigger.version)
        if identity in self._runs:
            return None
        charge = run_times.charge(trigger.name, trigger.fairness_key)
        run = self._runs[identity] = ChargedRun(trigger, lane, run_times, charge, self._now)
        return run

    def end(self, trigger: Trigger, cost: int) -> ChargedRun | None:
        """Remove and return a run of `cost` microseconds; None if it is unknown, because it began
        under an earlier owner, or if the claim of another trigger of the task was refused (0)."""
        identity = (trigger.id, trigger.version)
        run = self._runs.get(identity)
        if run is not None and not cost and run.trigger is not trigger:
            return None
        return self._runs.pop(identity, None)

    def drop(self, partitions: Collection[PartitionKey]) -> None:
        """Drop the runs of these partitions."""
        self._runs = {
            identity: run
            for identity, run in self._runs.items()
            if (run.trigger.queue, run.trigger.partition) not in partitions
        }

    def overdue(self, now: float) -> Iterator[tuple[ChargedRun, int]]:
        """Charge the runs that have taken longer than their charges, a few times a second; yield
        them with the difference in virtual time at weight 1."""
        self._now = now
        if now < self._check_at:
            return
        self._check_at = now + CHECK_SECONDS
        for run in self:
            so_far = run.run_times.virtual(round((now - run.since) * 1e6))
            if (more := so_far - run.charge) > 0:
                run.charge = so_far
                yield run, more
