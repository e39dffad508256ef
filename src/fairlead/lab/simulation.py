"""A workload of a few keys, simulated in the order of arrival and in fair order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil
from typing import Literal

import msgspec

from fairlead.clock import MICROS
from fairlead.core import values
from fairlead.errors import ConfigurationError
from fairlead.lab.schedule import Schedule, VirtualNode, schedule, simulated_task
from fairlead.model import DEFAULT_PRIORITY, DEFAULT_WEIGHT, MAX_WEIGHT, MIN_WEIGHT

MOST_TASKS = 1_000_000
_FORM = "use KEY=TASKS, then ,weight=W ,run=SECONDS ,at=SECONDS as needed"
_OPTIONS = {
    "weight": (MIN_WEIGHT, MAX_WEIGHT),
    "run": (0, values.MOST_SECONDS),
    "at": (0, values.MOST_SECONDS),
}
"""Least and greatest value of each option of a key."""


class KeyLoad(msgspec.Struct, frozen=True):
    """Tasks of one key, which arrive together."""

    key: str
    tasks: int
    weight: float = DEFAULT_WEIGHT
    run: float = 1.0
    """Seconds that each task runs."""
    at: float = 0.0
    """Seconds after the beginning at which the tasks arrive."""


class Waits(msgspec.Struct, frozen=True):
    """Waits of the tasks of one key, from arrival to start, in seconds."""

    p50: float
    p99: float
    most: float
    share: float
    """Share of the key in the starts until the first key has no task left."""


class KeyResult(msgspec.Struct, frozen=True):
    """One key in both orders."""

    key: str
    weight: float
    tasks: int
    fifo: Waits
    fair: Waits


def parse_load(text: str) -> KeyLoad:
    """Return the load that a text such as `acme=600,weight=2,run=0.5` describes. Raise
    ConfigurationError."""
    head, *options = text.split(",")
    key, equals, tasks = head.rpartition("=")
    if not equals or not tasks.isdecimal():
        raise ConfigurationError(f"{values.brief(text)}: {_FORM}")
    given: dict[str, float] = {}
    for option in options:
        name, _, value = option.partition("=")
        try:
            given[name] = values.number(f"{key}: {name}", float(value), *_OPTIONS[name])
        except (KeyError, ValueError):
            raise ConfigurationError(f"{values.brief(text)}: {_FORM}") from None
    return KeyLoad(key, values.whole(f"{key}: tasks", int(tasks), 1, MOST_TASKS), **given)


def simulate(loads: Sequence[KeyLoad], slots: int) -> list[KeyResult]:
    """Run the tasks of all keys on one node with this many slots. Raise ConfigurationError for two
    loads of one key, or too many tasks."""
    if repeated := [key for key, count in Counter(load.key for load in loads).items() if count > 1]:
        raise ConfigurationError(f"key {values.brief(repeated[0])}: name each key once")
    values.whole("tasks of all keys", sum(load.tasks for load in loads), 1, MOST_TASKS)
    fifo, fair = _waits(loads, slots, "fifo"), _waits(loads, slots, "fair")
    return [
        KeyResult(load.key, load.weight, load.tasks, one, other)
        for load, one, other in zip(loads, fifo, fair, strict=True)
    ]


def _waits(loads: Sequence[KeyLoad], slots: int, order: Literal["fifo", "fair"]) -> list[Waits]:
    by_time = sorted(range(len(loads)), key=lambda index: loads[index].at)
    of = [index for index in by_time for _ in range(loads[index].tasks)]
    arrived = [round(loads[index].at * MICROS) for index in of]
    tasks = [
        simulated_task(number, loads[index].key, loads[index].weight, DEFAULT_PRIORITY, 0)
        for number, index in enumerate(of)
    ]
    found = schedule(
        tasks,
        [round(loads[index].run * MICROS) for index in of],
        [VirtualNode("", slots, is_fair=order == "fair")],
        arrived,
    )
    waits: list[list[float]] = [[] for _ in loads]
    for number, index in enumerate(of):
        waits[index].append((found.started[number] - arrived[number]) / MICROS)
    served = _served_together(found, of)
    result = []
    for index, each in enumerate(map(sorted, waits)):
        p50, p99 = (each[ceil(rank * len(each)) - 1] for rank in (0.5, 0.99))
        result.append(Waits(p50, p99, each[-1], served[index] / served.total()))
    return result


def _served_together(found: Schedule, of: Sequence[int]) -> Counter[int]:
    """Return the number of starts by load, until the first load has no task left."""
    left, served = Counter(of), Counter[int]()
    for number in found.order:
        index = of[number]
        served[index] += 1
        if served[index] == left[index]:
            break
    return served
