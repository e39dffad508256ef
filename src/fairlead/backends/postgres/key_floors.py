"""Floors of ordering keys: positions below which a key has no task but those that came later.

While any transaction is open, PostgreSQL keeps the index entries of deleted rows, and a scan passes
each of them. A claim checks the tasks of its ordering key from the key's floor, so that the number
of tasks that ran before does not matter.

A task may come at any position, because its `run_at` is free. So a floor holds for tasks whose
`order_seq` was settled when the floor was found (see lane_floors.py). The claim looks for the tasks
that came later by their `order_seq`, of which there are few.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from fairlead.backends.postgres.lane_floors import LaneFloors

_MOST_KEYS = 10_000


class KeyFloor(NamedTuple):
    """Floor of one ordering key: no task with `order_seq` up to this one is before this place."""

    order_at: int
    id: str
    order_seq: int


_LOWEST = KeyFloor(-(2**63), "00000000-0000-0000-0000-000000000000", 2**63 - 1)


class Settled(NamedTuple):
    """Positions that were settled before a statement began."""

    order_seq: int
    server: int
    """Instant at which the server started, in microseconds since the epoch. Another server may have
    other rows, so the statements use a floor only on its own server."""


class KeyFloors:
    """Floors of the ordering keys that were claimed or read last."""

    def __init__(self, lanes: LaneFloors) -> None:
        self._lanes = lanes
        self._floors: OrderedDict[tuple[str, str], KeyFloor] = OrderedDict()
        self._server = 0

    def settled(self) -> Settled:
        """Return what is settled now."""
        return Settled(self._lanes.settled, self._lanes.server)

    def of(self, queue: str, ordering_key: str | None) -> KeyFloor:
        """Return the floor of a key on the present server, the lowest one if none is known."""
        if ordering_key is None or self._server != self._lanes.server:
            return _LOWEST
        return self._floors.get((queue, ordering_key), _LOWEST)

    def found(self, key: tuple[str, str], order_at: int, id: str, settled: Settled) -> None:
        """Raise the floor of (queue, ordering key), whose first task was found by a statement that
        began when `settled` was."""
        if settled.server != self._server:
            self._floors.clear()
            self._server = settled.server
        self._floors[key] = KeyFloor(order_at, id, settled.order_seq)
        self._floors.move_to_end(key)
        if len(self._floors) > _MOST_KEYS:
            self._floors.popitem(last=False)
