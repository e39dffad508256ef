"""Arrivals under one policy on a virtual clock, to find when each task starts. The core decides;
this module only handles events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from fairlead.clock import MICROS
from fairlead.core.sharding.partitions import partition_of
from fairlead.lab.node import VirtualNode, simulated_task
from fairlead.lab.policies.arrivals import Arrivals, Ints
from fairlead.lab.policies.policy import CandidatePolicy
from fairlead.lab.policies.samples import original_key
from fairlead.lab.policies.sessions import Sessions
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
    sessions: Sessions | None = None,
) -> VirtualSchedule:
    """Run every task once, each for its recorded run time.

    `weights`: by key, where a copy has the weight of its original and a missing key the default;
    None means the weights of the tasks. With `sessions` of the same arrivals, a task arrives when
    its user would send it, not when it was recorded. At one instant, runs end first, then tasks
    arrive, then tasks start.
    """
    tasks = _triggers(arrivals, policy, weights)
    nodes = [
        VirtualNode(
            arrivals.queue,
            policy.slots,
            policy.limits.new_limits(policy.slots, arrivals.keys),
            policy.order == "fair",
        )
        for _ in range(policy.nodes)
    ]
    home = [nodes[task.partition % policy.nodes] for task in tasks]
    takes: list[int] = arrivals.run.tolist()
    coming = (
        list(zip(arrivals.at.tolist(), range(len(tasks)), strict=True))
        if sessions is None
        else sessions.first()
    )
    came, started = [0] * len(tasks), [-1] * len(tasks)
    running: list[tuple[int, int]] = []
    # Ascending lists are heaps.
    while coming or running:
        now = min(heap[0][0] for heap in (coming, running) if heap)
        seconds = now / MICROS
        touched: dict[VirtualNode, None] = {}
        while running and running[0][0] <= now:
            ended = heappop(running)[1]
            touched[home[ended]] = None
            home[ended].release(tasks[ended], seconds)
            if sessions is not None:
                for arrival in sessions.ended(ended, now):
                    heappush(coming, arrival)
        while coming and coming[0][0] <= now:
            arrived = heappop(coming)[1]
            came[arrived] = now
            touched[home[arrived]] = None
            home[arrived].push((tasks[arrived],))
        for node in touched:
            if node.room:
                for task in node.take(seconds):
                    started[task.seq] = now
                    heappush(running, (now + takes[task.seq], task.seq))
    start = np.array(started, np.int64)
    assert not len(start) or start.min() >= 0, "the core did not start a task"
    return VirtualSchedule(np.array(came, np.int64), start, arrivals.run, arrivals.key)


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
