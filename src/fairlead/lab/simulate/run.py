"""The simulation of one workload under each order, with its measures."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from fairlead.core.fair.counters import EXACT_KEYS
from fairlead.errors import ConfigurationError
from fairlead.lab.fairness import FairnessGap, Jain, PriorityFlow
from fairlead.lab.node import Memory, VirtualNode
from fairlead.lab.simulate.orders import Order
from fairlead.lab.simulate.report import KeyReport, OrderReport, SimulationReport
from fairlead.lab.simulate.script import MOST_TASKS
from fairlead.lab.simulate.workload import ArrivalMode, Maker, Push, Workload
from fairlead.lab.trace import Tenants
from fairlead.lab.waits import Waits
from fairlead.lab.weights import parse_weights

_LEAST_WINDOW = 100
_WINDOW_PER_KEY = 10
_LEAST_WINDOWS = 20
_MOST_TOP = 100
_MOST_ZIPF = 100
_MOST_RATE = 1e6


class CounterKind(StrEnum):
    """How to keep the next passes of keys."""

    EXACT = "exact"
    SKETCH = "sketch"
    """As in the engine: exact for the keys furthest ahead, a sketch for the others."""


@dataclass(frozen=True)
class SimulationSettings:
    """Options of a simulation: a script, a trace, or else a generated workload."""

    script: str | None = None
    trace: Path | None = None
    tenants: Tenants = Tenants.USER
    limit: int | None = None
    tasks: int = 10_000
    keys: int = 100
    zipf: float = 1.0
    weights: str | None = None
    arrivals: ArrivalMode | None = None
    """None means recorded with a trace, otherwise all first."""
    rate: float = 0.9
    """Mean number of new tasks per poll."""
    slots: int = 1
    partitions: int = 1
    counters: CounterKind = CounterKind.EXACT
    exact_keys: int = EXACT_KEYS
    buffer: int = 10_000
    seed: int = 1
    top: int = 10

    def check(self) -> None:
        """Raise ConfigurationError unless all values are within bounds and fit together."""
        bounds: list[tuple[str, float | None, float, float]] = [
            ("limit", self.limit, 1, 1_000_000_000),
            ("tasks", self.tasks, 1, MOST_TASKS),
            ("keys", self.keys, 1, MOST_TASKS),
            ("zipf", self.zipf, 0, _MOST_ZIPF),
            ("slots", self.slots, 1, MOST_TASKS),
            ("partitions", self.partitions, 1, MOST_TASKS),
            ("exact-keys", self.exact_keys, 2, MOST_TASKS),
            ("buffer", self.buffer, 1, MOST_TASKS),
            ("top", self.top, 1, _MOST_TOP),
        ]
        for name, value, least, most in bounds:
            if value is not None and not least <= value <= most:
                raise ConfigurationError(f"--{name} {value:,}: use {least:,} to {most:,}")
        if not (isfinite(self.rate) and 0 < self.rate <= _MOST_RATE):
            raise ConfigurationError(f"--rate {self.rate:g}: use a number of tasks a poll above 0")
        if self.script is not None and self.trace is not None:
            raise ConfigurationError("--script and --trace are two workloads: leave one out")
        if self.script is not None and self.arrivals is not None:
            raise ConfigurationError(
                "--arrivals has no meaning with --script, which sets the times of arrival itself"
            )
        if self.trace is None and self.arrivals is ArrivalMode.RECORDED:
            raise ConfigurationError("--arrivals recorded needs --trace FILE, which has the times")
        if self.trace is not None and self.arrivals is ArrivalMode.POISSON:
            raise ConfigurationError(
                "--arrivals poisson is for generated tasks: a trace has recorded or all-first"
            )


class Simulated(NamedTuple):
    """The result of `simulate`."""

    report: SimulationReport
    mean_waits: dict[str, dict[str, float]]
    """Mean waits by order, then by key, the key with the most tasks first; the plot shows them."""


def simulate(settings: SimulationSettings) -> Simulated:
    """Run the workload in both orders. Raise ConfigurationError for bad settings, BrokenTrace for
    an unreadable trace."""
    settings.check()
    workload, description = _make(settings)
    top = _flows(workload, settings.top)
    window = max(
        _LEAST_WINDOW,
        min(_WINDOW_PER_KEY * len(workload.weights), workload.tasks // _LEAST_WINDOWS),
    )
    orders: list[OrderReport] = []
    mean_waits: dict[str, dict[str, float]] = {}
    for name in ("fifo", "fair"):
        node = partial(_node, settings, name == "fair")
        found, means = _run(name, node, workload, settings, top, window)
        orders.append(found)
        mean_waits[name] = {key: means[key] for key in workload.weights if key in means}
    report = SimulationReport(
        workload=description,
        tasks=workload.tasks,
        keys=len(workload.weights),
        partitions=settings.partitions,
        slots=settings.slots,
        buffer=settings.buffer,
        counters=settings.counters,
        seed=settings.seed,
        jain_window=window,
        orders=orders,
    )
    return Simulated(report, mean_waits)


def _make(settings: SimulationSettings) -> tuple[Workload, str]:
    maker = Maker(parse_weights(settings.weights), settings.partitions, settings.seed)
    if settings.script is not None:
        return maker.scripted(settings.script), settings.script
    if settings.trace is not None:
        arrivals = settings.arrivals or ArrivalMode.RECORDED
        workload = maker.recorded(
            settings.trace, settings.tenants, settings.limit, arrivals, settings.rate
        )
        what = settings.trace.name
    else:
        arrivals = settings.arrivals or ArrivalMode.ALL_FIRST
        workload = maker.generated(
            settings.tasks, settings.keys, settings.zipf, arrivals, settings.rate
        )
        what = f"{settings.keys:,} keys, zipf {settings.zipf:g}"
    rate = "" if arrivals is ArrivalMode.ALL_FIRST else f" at {settings.rate:g} a poll"
    return workload, f"{what}, {arrivals}{rate}"


def _node(settings: SimulationSettings, is_fair: bool) -> VirtualNode:
    exact = sys.maxsize if settings.counters is CounterKind.EXACT else settings.exact_keys
    return VirtualNode("", 1, (), is_fair, Memory(exact, settings.buffer))


def _flows(workload: Workload, most: int) -> Counter[PriorityFlow]:
    """Return the flows with the most tasks, with their number of tasks."""
    tasks = Counter(
        PriorityFlow(task.priority, task.fairness_key)
        for step in workload.steps
        if isinstance(step, Push)
        for task in step.tasks
    )
    return Counter(dict(tasks.most_common(most)))


def _run(
    name: str,
    node: Callable[[], VirtualNode],
    workload: Workload,
    settings: SimulationSettings,
    top: Counter[PriorityFlow],
    window: int,
) -> tuple[OrderReport, dict[str, float]]:
    order = Order(settings.partitions, node)
    waits, jain = Waits(), Jain(workload.weights, window)
    gap = FairnessGap([(flow, workload.weights[flow.key]) for flow in top])
    arrived = array("q", bytes(8 * workload.tasks))
    """Polls before the arrival, by task."""
    sequence: list[list[str]] = []
    polls = pushed = picked = 0
    for step in workload.steps:
        if isinstance(step, Push):
            order.push(step.tasks)
            pushed += len(step.tasks)
            for task in step.tasks:
                arrived[task.seq] = polls
                jain.arrived(task.fairness_key)
                gap.arrived(PriorityFlow(task.priority, task.fairness_key))
            continue
        last = sys.maxsize if step.polls is None else polls + step.polls
        keys: list[str] = []
        while polls < last and picked < pushed:
            polls += 1
            for _ in range(settings.slots):
                found = order.pick()
                if found is None:
                    break
                picked += 1
                waits.add(found.fairness_key, polls - arrived[found.seq])
                jain.picked(found.fairness_key)
                gap.picked(PriorityFlow(found.priority, found.fairness_key))
                keys.append(found.fairness_key)
        sequence.append(keys)
    report = OrderReport(
        order=name,
        picked=picked,
        left=pushed - picked,
        waits_of_tasks=waits.of_tasks(),
        waits_of_keys=waits.of_keys(),
        jain_mean=round(sum(jain.indices) / len(jain.indices), 4) if jain.indices else None,
        jain_least=round(min(jain.indices), 4) if jain.indices else None,
        gap=round(gap.largest, 3),
        gap_between=gap.between and (gap.between[0].key, gap.between[1].key),
        keys=_keys(workload, waits, top),
        sequence=None if settings.script is None else sequence,
    )
    return report, waits.means()


def _keys(workload: Workload, waits: Waits, top: Counter[PriorityFlow]) -> list[KeyReport]:
    tasks: Counter[str] = Counter()
    for flow, count in top.items():
        tasks[flow.key] += count
    return [
        KeyReport(key, workload.weights[key], count, waits.of(key))
        for key, count in tasks.most_common()
    ]
