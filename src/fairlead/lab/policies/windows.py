"""When one key had work waiting, and what it got meanwhile. All arrays are of the tasks of one key,
in microseconds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairlead.lab.policies.arrivals import Ints


class Stretches(NamedTuple):
    """From each beginning to its end at least one task waited; ascending, none touches another."""

    begin: Ints
    end: Ints


def stretches(at: Ints, start: Ints) -> Stretches:
    """Of tasks that came at `at` and started at `start`, at least one. Who comes as the last one
    starts joins its stretch."""
    order = np.argsort(at, kind="stable")
    come, until = at[order], np.maximum.accumulate(start[order])
    fresh = np.flatnonzero(come[1:] > until[:-1]) + 1
    return Stretches(
        come[np.concatenate(([0], fresh))], until[np.concatenate((fresh - 1, [len(come) - 1]))]
    )


def whole_windows(at: Ints, start: Ints, window: int) -> Ints:
    """Numbers of the windows, `window` long from 0 on, all through which a task waited;
    ascending."""
    found = stretches(at, start)
    first, after = -(-found.begin // window), found.end // window
    holds = after > first
    spans = zip(first[holds].tolist(), after[holds].tolist(), strict=True)
    return np.array([number for low, high in spans for number in range(low, high)], np.int64)


def longest_unserved(at: Ints, start: Ints) -> int:
    """The longest time in which a task waited and none started."""
    begins = stretches(at, start).begin
    starts = np.sort(start)
    since = begins[np.searchsorted(begins, starts, side="right") - 1]
    since[1:] = np.maximum(since[1:], starts[:-1])
    return int((starts - since).max())


class Served(NamedTuple):
    """Worker time up to any instant, from sorted starts and ends."""

    starts: Ints
    ends: Ints
    starts_sum: Ints
    """Of the first n, n from 0 on."""
    ends_sum: Ints

    def until(self, instant: Ints) -> Ints:
        """Microseconds that runs took before each instant."""
        begun, done = (np.searchsorted(instants, instant) for instants in (self.starts, self.ends))
        return (begun * instant - self.starts_sum[begun]) - (done * instant - self.ends_sum[done])


def served(start: Ints, end: Ints) -> Served:
    """Of runs from `start` to `end`."""
    starts, ends = np.sort(start), np.sort(end)
    return Served(
        starts, ends, *(np.concatenate(([0], np.cumsum(times))) for times in (starts, ends))
    )
