"""The messages that one consumer holds, by task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class PriorityLane(NamedTuple):
    """One priority of one queue, in which messages wait."""

    queue: str
    priority: int


class LaneClaim(NamedTuple):
    """A claimed message of a task."""

    lane: PriorityLane
    id: str


class Claims:
    """The messages that the consumer has read and not yet ended, by task."""

    def __init__(self) -> None:
        self._held: dict[str, list[LaneClaim]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._held

    def add(self, task_id: str, claim: LaneClaim) -> bool:
        """Keep a claim; return False if the same message is held already, because it was delivered
        again. A task whose message was written twice has two claims, which end together."""
        held = self._held.setdefault(task_id, [])
        if claim in held:
            return False
        held.append(claim)
        return True

    def of(self, task_id: str) -> list[LaneClaim]:
        """Return the claims of a task."""
        return self._held.get(task_id, [])

    def pop(self, task_id: str) -> list[LaneClaim]:
        """Remove and return the claims of a task."""
        return self._held.pop(task_id, [])

    def drop(self, lane: PriorityLane, ids: Iterable[str]) -> None:
        """Drop messages that belong to another consumer by now."""
        lost = {LaneClaim(lane, id) for id in ids}
        for task_id, held in list(self._held.items()):
            if not lost.isdisjoint(held):
                self._held[task_id] = left = [claim for claim in held if claim not in lost]
                if not left:
                    del self._held[task_id]

    def by_lane(self) -> Mapping[PriorityLane, list[str]]:
        """Return the ids of all messages, by lane."""
        return by_lane(claim for held in self._held.values() for claim in held)


def by_lane(claims: Iterable[LaneClaim]) -> Mapping[PriorityLane, list[str]]:
    """Return the ids of these claims, by lane."""
    found: defaultdict[PriorityLane, list[str]] = defaultdict(list)
    for lane, id in claims:
        found[lane].append(id)
    return found
