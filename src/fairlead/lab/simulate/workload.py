"""Workloads: pushes of tasks with their keys, and the polls between the pushes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import accumulate, groupby
from math import ceil
from pathlib import Path
from typing import NamedTuple

from fairlead.core.sharding.partitions import partition_of
from fairlead.lab.node import simulated_task
from fairlead.lab.simulate.script import PollStep, PushStep, ScriptTask, parse_script
from fairlead.lab.trace import Tenants, first_jobs
from fairlead.lab.weights import KeyWeights
from fairlead.model import DEFAULT_PRIORITY, Trigger


class ArrivalMode(StrEnum):
    """When the tasks arrive."""

    ALL_FIRST = "all-first"
    POISSON = "poisson"
    RECORDED = "recorded"
    """As in the trace, with time scaled so that `rate` tasks arrive with each poll on average."""


class Push(NamedTuple):
    """Tasks that arrive together. Their `seq` counts the tasks of the workload from 0."""

    tasks: Sequence[Trigger]


class Poll(NamedTuple):
    """A number of polls, or None to poll until nothing is left. Polls of an empty queue are left
    out."""

    polls: int | None


class Workload(NamedTuple):
    """A workload, the same for each order."""

    steps: list[Push | Poll]
    weights: dict[str, float]
    """Weights by key, the key with the most tasks first."""
    tasks: int


class Maker:
    """A maker of workloads, whose random draws depend on the seed alone."""

    def __init__(self, weights: KeyWeights, partitions: int, seed: int) -> None:
        self._weights = weights
        self._partitions = partitions
        self._random = random.Random(seed)

    def scripted(self, text: str) -> Workload:
        """Return the workload of a script; see `parse_script`."""
        steps = parse_script(text)
        weights = self._weigh(
            pushed.key for step in steps if isinstance(step, PushStep) for pushed in step.tasks
        )
        made: list[Push | Poll] = []
        tasks = 0
        for step in steps:
            if isinstance(step, PollStep):
                made.append(Poll(step.polls))
                continue
            made.append(
                Push(
                    [self._task(tasks + n, pushed, weights) for n, pushed in enumerate(step.tasks)]
                )
            )
            tasks += len(step.tasks)
        return Workload(made, weights, tasks)

    def generated(
        self, tasks: int, keys: int, zipf: float, arrivals: ArrivalMode, rate: float
    ) -> Workload:
        """Return a workload of keys k1, k2, ..., of which the n-th gets tasks in proportion to 1 /
        n ** zipf. `rate`: tasks that arrive with each poll."""
        popularity = list(accumulate(n**-zipf for n in range(1, keys + 1)))
        drawn = self._random.choices(range(1, keys + 1), cum_weights=popularity, k=tasks)
        if arrivals is ArrivalMode.ALL_FIRST:
            times = [0.0] * tasks
        else:
            times = list(accumulate(self._random.expovariate(rate) for _ in range(tasks)))
        return self._timed([f"k{n}" for n in drawn], times)

    def recorded(
        self, trace: Path, tenants: Tenants, limit: int | None, arrivals: ArrivalMode, rate: float
    ) -> Workload:
        """Return the jobs of a trace as tasks of their tenants. Raise BrokenTrace if the trace
        cannot be read."""
        jobs = first_jobs(trace, limit)
        jobs.sort(key=lambda job: job.submit)
        first, last = jobs[0].submit, jobs[-1].submit
        polls = len(jobs) / rate if arrivals is ArrivalMode.RECORDED and last > first else 0.0
        times = [polls * (job.submit - first) / max(1.0, last - first) for job in jobs]
        return self._timed([job.tenant(tenants) for job in jobs], times)

    def _timed(self, keys: Sequence[str], times: Sequence[float]) -> Workload:
        weights = self._weigh(keys)
        steps: list[Push | Poll] = []
        now = 0
        for at, group in groupby(range(len(keys)), lambda number: ceil(times[number])):
            if at > now:
                steps.append(Poll(at - now))
                now = at
            steps.append(
                Push([self._task(n, ScriptTask(keys[n], DEFAULT_PRIORITY), weights) for n in group])
            )
        return Workload([*steps, Poll(None)], weights, len(keys))

    def _weigh(self, keys: Iterable[str]) -> dict[str, float]:
        by_tasks = sorted(Counter(keys).items(), key=lambda item: (-item[1], item[0]))
        return self._weights.of([key for key, _ in by_tasks], self._random)

    def _task(self, number: int, pushed: ScriptTask, weights: dict[str, float]) -> Trigger:
        partition = partition_of(None, self._random.getrandbits(64), self._partitions)
        return simulated_task(number, pushed.key, weights[pushed.key], pushed.priority, partition)
