"""The messages that one consumer holds, by the task that each is about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Lane(NamedTuple):
    """Where messages wait: one priority of one queue."""

    queue: str
    priority: int


class LaneClaim(NamedTuple):
    """A message of a task."""

    lane: Lane
    id: str


class Claims:
    """What has been read and not been ended."""

    def __init__(self) -> None:
        self._held: dict[str, list[LaneClaim]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._held

    def add(self, task_id: str, claim: LaneClaim) -> bool:
        """False when the same message is held already: it came again. A task may have two messages,
        if one was written twice; they end together."""
        held = self._held.setdefault(task_id, [])
        if claim in held:
            return False
        held.append(claim)
        return True

    def of(self, task_id: str) -> list[LaneClaim]:
        """The messages of a task."""
        return self._held.get(task_id, [])

    def pop(self, task_id: str) -> list[LaneClaim]:
        """The messages of a task; they are no longer held."""
        return self._held.pop(task_id, [])

    def drop(self, lane: Lane, ids: Iterable[str]) -> None:
        """These are another consumer's by now."""
        gone = {LaneClaim(lane, id) for id in ids}
        for task_id, held in list(self._held.items()):
            if not gone.isdisjoint(held):
                self._held[task_id] = left = [claim for claim in held if claim not in gone]
                if not left:
                    del self._held[task_id]

    def by_lane(self) -> Mapping[Lane, list[str]]:
        """The ids of all messages."""
        return by_lane(claim for held in self._held.values() for claim in held)


def by_lane(claims: Iterable[LaneClaim]) -> Mapping[Lane, list[str]]:
    """The ids of these messages."""
    found: defaultdict[Lane, list[str]] = defaultdict(list)
    for lane, id in claims:
        found[lane].append(id)
    return found
