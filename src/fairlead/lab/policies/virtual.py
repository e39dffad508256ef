"""Arrivals under one policy on a virtual clock, to find when each task starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fairlead.core.sharding.partitions import partition_of
from fairlead.lab.policies.arrivals import Arrivals, Ints
from fairlead.lab.policies.policy import CandidatePolicy
from fairlead.lab.policies.samples import original_key
from fairlead.lab.schedule import VirtualNode, schedule, simulated_task
from fairlead.model import DEFAULT_WEIGHT, MAX_WEIGHT, MIN_WEIGHT, Trigger


@dataclass(frozen=True, eq=False)
class VirtualSchedule:
    """Start of each task, in the order of the arrivals. Times are microseconds, on the scale of
    `Arrivals.at`."""

    at: Ints
    """Times of arrival."""
    start: Ints
    run: Ints
    key: Ints
    """Indices into the keys of the arrivals."""

    @property
    def end(self) -> Ints:
        """Times at which the runs end."""
        return self.start + self.run

    @property
    def wait(self) -> Ints:
        """Times from arrival to start."""
        return self.start - self.at


def run(
    arrivals: Arrivals,
    policy: CandidatePolicy,
    weights: Mapping[str, float] | None = None,
) -> VirtualSchedule:
    """Run every task once, each for its recorded run time.

    `weights`: by key, where a copy has the weight of its original and a missing key the default;
    None means the weights of the tasks.
    """
    nodes = [
        VirtualNode(
            arrivals.queue,
            policy.slots,
            policy.limits.new_limits(policy.slots, arrivals.keys),
            policy.order == "fair",
        )
        for _ in range(policy.nodes)
    ]
    found = schedule(
        _triggers(arrivals, policy, weights),
        arrivals.run.tolist(),
        nodes,
        arrivals.at.tolist(),
    )
    start = np.array(found.started, np.int64)
    return VirtualSchedule(arrivals.at, start, arrivals.run, arrivals.key)


def _triggers(
    arrivals: Arrivals, policy: CandidatePolicy, weights: Mapping[str, float] | None
) -> list[Trigger]:
    if weights is None:
        own = np.clip(arrivals.weight, MIN_WEIGHT, MAX_WEIGHT).tolist()
    else:
        by_key = [weights.get(original_key(key), DEFAULT_WEIGHT) for key in arrivals.keys]
        own = [by_key[key] for key in arrivals.key.tolist()]
    columns = (arrivals.key, arrivals.name, arrivals.priority, arrivals.spread)
    keys, names, queue, partitions = (
        arrivals.keys,
        arrivals.names,
        arrivals.queue,
        policy.partitions,
    )
    return [
        simulated_task(
            number,
            keys[key],
            weight,
            priority,
            partition_of(None, spread, partitions),
            queue,
            names[name],
        )
        for number, (weight, key, name, priority, spread) in enumerate(
            zip(own, *(column.tolist() for column in columns), strict=True)
        )
    ]
