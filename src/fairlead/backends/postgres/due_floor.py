"""Floor of due times: the instant before which no task waits but those that came later.

While any transaction is open, PostgreSQL keeps the index entries of tasks that have waited, and a
scan passes each of them. A search for due tasks begins at the floor, so that the number of tasks
that have waited before does not matter.

A task may come to wait with any due time, because its `run_at` is free and its transaction may
commit late. So the floor holds for tasks whose `due_seq` was settled when the floor was found (see
lane_floors.py). A search finds the tasks that came later by their `due_seq`.
"""

from __future__ import annotations

from typing import NamedTuple

from fairlead.backends.postgres.key_floors import Settled
from fairlead.backends.postgres.lane_floors import LaneFloors

_FIRST, _LAST = -(2**63), 2**63 - 1


class Floor(NamedTuple):
    """Parameters of the statement `due_floor`."""

    due_at: int
    due_seq: int
    server: int
    """Instant at which the server started, in microseconds since the epoch. The statements use the
    floor only on this server."""


class DueFloor:
    """Floor of the due times of one database."""

    def __init__(self, lanes: LaneFloors) -> None:
        self.lanes = lanes
        self.now = Floor(_FIRST, _LAST, 0)
        """The present floor, the lowest one at first."""

    def settled(self) -> Settled:
        """Return what is settled now."""
        return Settled(self.lanes.settled, self.lanes.server)

    def found(self, due_at: int | None, settled: Settled) -> None:
        """Move the floor to the earliest due time, None without one, which was found by a statement
        that began when `settled` was."""
        if settled.order_seq:
            due_at = _LAST if due_at is None else due_at
            self.now = Floor(due_at, settled.order_seq, settled.server)
