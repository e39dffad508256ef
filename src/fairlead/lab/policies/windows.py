"""Time windows in which one key had work waiting, and the service it got meanwhile. All arrays are
of the tasks of one key, in microseconds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairlead.lab.policies.arrivals import Ints


class WaitingWindows(NamedTuple):
    """Windows in which at least one task waited throughout; ascending, and no two touch."""

    begin: Ints
    end: Ints


def waiting_windows(at: Ints, start: Ints) -> WaitingWindows:
    """Return the waiting windows of one or more tasks that arrive `at` and begin to run at `start`.
    A task that arrives at the end of a window extends the window."""
    order = np.argsort(at, kind="stable")
    come, until = at[order], np.maximum.accumulate(start[order])
    fresh = np.flatnonzero(come[1:] > until[:-1]) + 1
    return WaitingWindows(
        come[np.concatenate(([0], fresh))], until[np.concatenate((fresh - 1, [len(come) - 1]))]
    )


def whole_windows(at: Ints, start: Ints, window: int) -> Ints:
    """Return the numbers of the windows of length `window`, counted from 0, throughout which a task
    waited; ascending."""
    found = waiting_windows(at, start)
    first, after = -(-found.begin // window), found.end // window
    holds = after > first
    spans = zip(first[holds].tolist(), after[holds].tolist(), strict=True)
    return np.array([number for low, high in spans for number in range(low, high)], np.int64)


def longest_unserved(at: Ints, start: Ints) -> int:
    """Return the longest time in which a task waited and none started."""
    begins = waiting_windows(at, start).begin
    starts = np.sort(start)
    since = begins[np.searchsorted(begins, starts, side="right") - 1]
    since[1:] = np.maximum(since[1:], starts[:-1])
    return int((starts - since).max())


class WorkerTime(NamedTuple):
    """Worker time up to any instant, from sorted starts and ends."""

    starts: Ints
    ends: Ints
    starts_sum: Ints
    """Sum of the first n starts, for n from 0 on."""
    ends_sum: Ints

    def until(self, instant: Ints) -> Ints:
        """Return the worker time before each instant, in microseconds."""
        begun, done = (np.searchsorted(instants, instant) for instants in (self.starts, self.ends))
        return (begun * instant - self.starts_sum[begun]) - (done * instant - self.ends_sum[done])


def served(start: Ints, end: Ints) -> WorkerTime:
    """Return the worker time of runs from `start` to `end`."""
    starts, ends = np.sort(start), np.sort(end)
    return WorkerTime(
        starts, ends, *(np.concatenate(([0], np.cumsum(times))) for times in (starts, ends))
    )
