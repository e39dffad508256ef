"""Calibration: the distance between the simulation and the record, for the same arrivals under the
recorded policy."""

from __future__ import annotations

import msgspec
import numpy as np

from fairlead.lab.policies.arrivals import UNKNOWN, Arrivals, Ints
from fairlead.lab.policies.measures import percentile


class CalibrationGap(msgspec.Struct, frozen=True):
    """Recorded waits beside simulated ones, in microseconds."""

    policy: str
    tasks: int
    recorded_p50_us: int
    simulated_p50_us: int
    recorded_p99_us: int
    simulated_p99_us: int
    recorded_mean_us: float
    simulated_mean_us: float
    ks: float
    """Kolmogorov-Smirnov distance of the two distributions of waits: 0 for equal ones, 1 for
    disjoint ones."""

    def error(self, which: str) -> float | None:
        """Return (simulated - recorded) / recorded of "p50", "p99" or "mean"; None if the recorded
        value is 0."""
        recorded = getattr(self, f"recorded_{which}_us")
        return (getattr(self, f"simulated_{which}_us") - recorded) / recorded if recorded else None


def gap(policy: str, recorded: Ints, simulated: Ints) -> CalibrationGap:
    """Compare the recorded and simulated waits of the same tasks, at least one."""
    return CalibrationGap(
        policy=policy,
        tasks=len(recorded),
        recorded_p50_us=int(percentile(recorded, 0.5)),
        simulated_p50_us=int(percentile(simulated, 0.5)),
        recorded_p99_us=int(percentile(recorded, 0.99)),
        simulated_p99_us=int(percentile(simulated, 0.99)),
        recorded_mean_us=float(recorded.mean()),
        simulated_mean_us=float(simulated.mean()),
        ks=ks_distance(recorded, simulated),
    )


def ks_distance(one: Ints, other: Ints) -> float:
    """Return the greatest difference, over all x, between the shares of both samples that are at
    most x."""
    edges = np.concatenate((one, other))
    shares = [
        np.searchsorted(np.sort(values), edges, side="right") / len(values)
        for values in (one, other)
    ]
    return float(np.abs(shares[0] - shares[1]).max())


def has_waits(arrivals: Arrivals) -> bool:
    """Return whether the record has the wait of every task."""
    return bool(len(arrivals)) and not (arrivals.wait == UNKNOWN).any()


def most_at_once(arrivals: Arrivals) -> int:
    """Return the greatest number of tasks that ran at once in the record, at least 1. A task that
    ends as another starts makes room for it."""
    start = arrivals.at + np.maximum(arrivals.wait, 0)
    instants = np.concatenate((start + arrivals.run, start))
    changes = np.repeat([-1, 1], len(arrivals))
    running = np.cumsum(changes[np.lexsort((changes, instants))])
    return max(1, int(running.max(initial=1)))
