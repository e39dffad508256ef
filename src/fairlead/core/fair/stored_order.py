"""The order in which the tasks of one submit are stored: a few tasks of each fairness key side by
side.

A fair lane takes a few tasks of each key at a time. A database writes whole pages: a page of one
key is written once or twice, and a page of many keys once for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

IN_TURN = 8
"""Tasks of each key that are stored first, one of each in turn: a lane that begins finds all keys
before it starts one."""

RUN = 32
"""Tasks of a key that are stored side by side after that: a few pages of SQLite, of 4 KiB each.
Among 8, 32 and 100, one million tasks drained fastest with 32."""


class Keyed(Protocol):
    """The keys that the place of a task depends on."""

    @property
    def fairness_key(self) -> str:
        """Key that shares; it may be a path."""

    @property
    def ordering_key(self) -> str | None:
        """Key whose tasks run in their order."""

    @property
    def unique_key(self) -> str | None:
        """Key of which one task waits at a time."""


def stored_order(tasks: Sequence[Keyed]) -> list[int] | None:
    """Return the positions of the tasks in the order to store them: IN_TURN times one task of each
    fairness key, then one run of each, the next run of each, and so on; None if all have one key.
    Tasks of one fairness key, one ordering key or one unique key stay in their order.

    Example with one task in turn and runs of two: a a a a b b b is stored as a b a a b b a.
    """
    numbers: dict[str, int] = {}
    for task in tasks:
        numbers.setdefault(task.fairness_key, len(numbers))
    if len(numbers) < 2:
        return None
    places = [(0, 0)] * len(tasks)
    """Run and number of the fairness key of each task."""
    stored = dict.fromkeys(numbers, 0)
    links: dict[tuple[bool, str], tuple[int, int]] = {}
    """Place of the last task of each ordering key and of each unique key."""
    for position, task in enumerate(tasks):
        key = task.fairness_key
        run, number = _run_of(stored[key]), numbers[key]
        keys = [(False, task.ordering_key), (True, task.unique_key)]
        linked = [(kind, name) for kind, name in keys if name is not None]
        for last in filter(None, map(links.get, linked)):
            run = max(run, last[0] + (number < last[1]))
        stored[key] = max(stored[key], _first_of(run)) + 1
        places[position] = run, number
        links.update(dict.fromkeys(linked, (run, number)))
    return sorted(range(len(tasks)), key=places.__getitem__)


def _run_of(count: int) -> int:
    """Return the run of the task of a key that comes after so many others."""
    return count if count < IN_TURN else IN_TURN + (count - IN_TURN) // RUN


def _first_of(run: int) -> int:
    """Return how many tasks of a key come before its first one in a run."""
    return run if run < IN_TURN else IN_TURN + (run - IN_TURN) * RUN
