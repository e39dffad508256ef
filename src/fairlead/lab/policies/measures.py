"""Measures of a schedule: waits, slowdown, fairness, starvation and utilisation. Pure functions on
arrays.

Fairness and starvation are of the time windows in which one key had work waiting, and of the
service that it got meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from fairlead.clock import MICROS
from fairlead.lab.policies.arrivals import Floats, Ints
from fairlead.lab.policies.virtual import VirtualSchedule

SHORTEST_RUN = 10 * MICROS
"""Least run time in microseconds with which the slowdown is computed. Without it, an empty run that
waited a second would have an infinite slowdown."""


class Measures(msgspec.Struct, frozen=True):
    """Measures of one schedule. Times are microseconds; percentiles are by nearest rank."""

    tasks: int
    keys: int
    slots: int
    wait_mean_us: float
    wait_p50_us: int
    wait_p90_us: int
    wait_p99_us: int
    wait_max_us: int
    key_wait_p50_us: float
    """Median over keys of the mean wait of a key."""
    key_wait_p99_us: float
    key_p99_p50_us: float
    """Median over keys of the 99th percentile of a key."""
    slowdown_mean: float
    slowdown_p50: float
    slowdown_p99: float
    jain_mean: float | None
    """None if no window has two keys that had work throughout."""
    jain_least: float | None
    jain_windows: int
    makespan_us: int
    """From the first arrival to the last end."""
    utilisation: float
    """Share of the slots in use over the makespan."""
    starved_keys: int
    longest_starved_us: int


class KeyWaits(msgspec.Struct, frozen=True):
    """Waits of one key of a schedule, in microseconds."""

    key: str
    tasks: int
    busy_us: int
    wait_mean_us: float
    wait_p50_us: int
    wait_p90_us: int
    wait_p99_us: int
    wait_max_us: int


def measure(schedule: VirtualSchedule, slots: int, entitled: Floats, window: int) -> Measures:
    """Return the measures of a schedule with at least one task. `slots`: slots of all nodes.
    `entitled`: the weight that each key is due, whatever the policy gave it. `window`: microseconds
    of a window of fairness; a key starves if it waits that long without a start."""
    waits = schedule.wait
    by_key = list(each_key(schedule))
    means = np.array([waits.mean() for _, waits, _ in by_key])
    p99s = np.array([percentile(waits, 0.99) for _, waits, _ in by_key])
    slow = slowdown(schedule)
    fairness = jain_by_window(schedule, entitled, window)
    unserved = np.array(
        [longest_unserved(schedule.at[rows], schedule.start[rows]) for _, _, rows in by_key]
    )
    makespan = int(schedule.end.max() - schedule.at.min())
    return Measures(
        tasks=len(waits),
        keys=len(by_key),
        slots=slots,
        wait_mean_us=float(waits.mean()),
        wait_p50_us=int(percentile(waits, 0.5)),
        wait_p90_us=int(percentile(waits, 0.9)),
        wait_p99_us=int(percentile(waits, 0.99)),
        wait_max_us=int(waits.max()),
        key_wait_p50_us=float(percentile(means, 0.5)),
        key_wait_p99_us=float(percentile(means, 0.99)),
        key_p99_p50_us=float(percentile(p99s, 0.5)),
        slowdown_mean=float(slow.mean()),
        slowdown_p50=float(percentile(slow, 0.5)),
        slowdown_p99=float(percentile(slow, 0.99)),
        jain_mean=float(fairness.mean()) if len(fairness) else None,
        jain_least=float(fairness.min()) if len(fairness) else None,
        jain_windows=len(fairness),
        makespan_us=makespan,
        utilisation=float(schedule.run.sum()) / (slots * makespan) if makespan else 0.0,
        starved_keys=int((unserved > window).sum()),
        longest_starved_us=int(unserved.max()),
    )


def waits_of_keys(schedule: VirtualSchedule, keys: tuple[str, ...]) -> list[KeyWaits]:
    """Return the waits of each key that has a task."""
    return [
        KeyWaits(
            key=keys[key],
            tasks=len(waits),
            busy_us=int(schedule.run[rows].sum()),
            wait_mean_us=float(waits.mean()),
            wait_p50_us=int(percentile(waits, 0.5)),
            wait_p90_us=int(percentile(waits, 0.9)),
            wait_p99_us=int(percentile(waits, 0.99)),
            wait_max_us=int(waits.max()),
        )
        for key, waits, rows in each_key(schedule)
    ]


def percentile(values: Ints | Floats, share: float) -> float:
    """Return the least value that a share of the values does not exceed (nearest rank). `values`:
    at least one."""
    return float(np.percentile(values, share * 100, method="inverted_cdf"))


def slowdown(schedule: VirtualSchedule) -> Floats:
    """Return the bounded slowdown of each task, max(1, (wait + run) / max(run, 10 s)). Feitelson
    and others 1997."""
    spent = (schedule.wait + schedule.run).astype(np.float64)
    return np.maximum(1.0, spent / np.maximum(schedule.run, SHORTEST_RUN))


def jain_by_window(schedule: VirtualSchedule, entitled: Floats, window: int) -> Floats:
    """Return Jain's index (sum x)^2 / (n sum x^2) over worker-seconds / weight for each window. The
    keys of a window are those with a task waiting throughout; windows with fewer than two such
    keys, or without a run of them, are left out."""
    origin = int(schedule.at.min())
    shares: list[Floats] = []
    numbers: list[Ints] = []
    for key, _, rows in each_key(schedule):
        at, start, end = (
            instants[rows] - origin for instants in (schedule.at, schedule.start, schedule.end)
        )
        windows = whole_windows(at, start, window)
        if len(windows):
            runs: WorkerTime = served(start, end)
            got = runs.until((windows + 1) * window) - runs.until(windows * window)
            shares.append(got / entitled[key])
            numbers.append(windows)
    if not shares:
        return np.empty(0)
    x, (_, index) = np.concatenate(shares), np.unique(np.concatenate(numbers), return_inverse=True)
    count, total, squares = np.bincount(index), np.bincount(index, x), np.bincount(index, x * x)
    counts = (count > 1) & (squares > 0)
    return total[counts] ** 2 / (count[counts] * squares[counts])


class _OfKey(NamedTuple):
    key: int
    waits: Ints
    rows: Ints
    """Indices into the schedule."""


def each_key(schedule: VirtualSchedule) -> Iterator[_OfKey]:
    """Yield each key that has a task, with its waits, in the order of the arrivals."""
    order = np.argsort(schedule.key, kind="stable")
    keys, begins = np.unique(schedule.key[order], return_index=True)
    for key, rows in zip(keys.tolist(), np.split(order, begins[1:]), strict=True):
        yield _OfKey(key, schedule.wait[rows], rows)


# windows of one key: all arrays are of its tasks, in microseconds ---------------------------------


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
