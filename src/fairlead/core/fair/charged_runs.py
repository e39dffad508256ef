"""Current runs that are charged by their time (`cost="runtime"`)."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from fairlead.core.fair.run_times import RunTimes
from fairlead.model import Trigger

if TYPE_CHECKING:
    from fairlead.core.fair.flows import FairLane

_GROWTH = 0.25
"""Part of its time so far by which a run grows before it is charged again."""

_LEAST_GROWTH = 0.01
"""Seconds by which a run grows at least before it is charged again."""

_FEWEST = 1000
"""Number of runs of a meter below which ended ones are not dropped before their time."""


class Run:
    """A run that is charged."""

    __slots__ = ("charge", "lane", "run_times", "since", "trigger")

    def __init__(self, trigger: Trigger, lane: FairLane, run_times: RunTimes, since: float) -> None:
        self.trigger = trigger
        self.lane = lane
        self.run_times = run_times
        """Mean run times of the queue."""
        self.charge = run_times.charge(trigger.name, trigger.fairness_key)
        """Virtual time at weight 1."""
        self.since = since
        """Start, in monotonic seconds."""

    @property
    def is_current(self) -> bool:
        """Whether the run has not ended, and its lane was not dropped."""
        return self.lane.runs.get((self.trigger.id, self.trigger.version)) is self


class RunMeter:
    """Current runs of all timed lanes of a table, by the time at which they exceed their
    charges."""

    def __init__(self) -> None:
        self.now = 0.0
        """Monotonic seconds of the last `overdue`."""
        self._due: list[tuple[float, int, Run]] = []
        """Heap of the runs; those that have ended are skipped."""
        self._most = _FEWEST
        """Size of the heap at which ended runs are dropped."""
        self._numbers = count()

    def begin(self, run: Run) -> None:
        """Note that a run began, or was charged its time so far."""
        so_far = self.now - run.since
        expected = run.run_times.expected(run.trigger.name, run.trigger.fairness_key) / 1e6
        at = run.since + max(expected, so_far + _LEAST_GROWTH, so_far * (1 + _GROWTH))
        heappush(self._due, (at, next(self._numbers), run))
        if len(self._due) > self._most:
            self._due[:] = [each for each in self._due if each[2].is_current]
            heapify(self._due)
            self._most = max(_FEWEST, 2 * len(self._due))

    def overdue(self, now: float) -> Iterator[tuple[Run, int]]:
        """Yield the runs that have taken longer than their charges, with the difference in virtual
        time at weight 1. `now`: monotonic seconds."""
        self.now, due = now, self._due
        while due and due[0][0] <= now:
            run = heappop(due)[2]
            if not run.is_current:
                continue
            so_far = run.run_times.virtual(round((now - run.since) * 1e6))
            if (more := so_far - run.charge) > 0:
                run.charge = so_far
                yield run, more
            self.begin(run)
