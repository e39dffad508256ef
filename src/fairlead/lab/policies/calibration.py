"""How far the simulation is from what was recorded: the same arrivals under the policy that they
were recorded under."""

from __future__ import annotations

import msgspec
import numpy as np

from fairlead.lab.policies.arrivals import UNKNOWN, Arrivals, Ints
from fairlead.lab.policies.measures import percentile
from fairlead.lab.policies.virtual import Schedule


class Gap(msgspec.Struct, frozen=True):
    """Waits in the record beside those simulated; microseconds."""

    policy: str
    tasks: int
    recorded_p50_us: int
    simulated_p50_us: int
    recorded_p99_us: int
    simulated_p99_us: int
    recorded_mean_us: float
    simulated_mean_us: float
    ks: float
    """Kolmogorov and Smirnov's distance of the two distributions of waits: 0 they are the same, 1
    they do not meet."""

    def error(self, which: str) -> float | None:
        """Of p50, p99 or mean: (simulated - recorded) / recorded; None: the recorded one is 0."""
        recorded = getattr(self, f"recorded_{which}_us")
        return (getattr(self, f"simulated_{which}_us") - recorded) / recorded if recorded else None


def gap(policy: str, recorded: Ints, simulated: Ints) -> Gap:
    """`recorded` and `simulated`: the waits of the same tasks, at least one."""
    return Gap(
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
    """The greatest difference between the shares of both that are at most x, over all x."""
    edges = np.concatenate((one, other))
    shares = [
        np.searchsorted(np.sort(values), edges, side="right") / len(values)
        for values in (one, other)
    ]
    return float(np.abs(shares[0] - shares[1]).max())


def has_waits(arrivals: Arrivals) -> bool:
    """The record tells how long each task waited."""
    return bool(len(arrivals)) and not (arrivals.wait == UNKNOWN).any()


def as_recorded(arrivals: Arrivals) -> Schedule:
    """What happened. The record tells waits."""
    return Schedule(arrivals.at, arrivals.at + arrivals.wait, arrivals.run, arrivals.key)


def most_at_once(arrivals: Arrivals) -> int:
    """So many tasks ran at once at most, in the record; at least 1. Who ends as another starts
    makes room for it."""
    start = arrivals.at + np.maximum(arrivals.wait, 0)
    instants = np.concatenate((start + arrivals.run, start))
    changes = np.repeat([-1, 1], len(arrivals))
    running = np.cumsum(changes[np.lexsort((changes, instants))])
    return max(1, int(running.max(initial=1)))
