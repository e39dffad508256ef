"""Reads of marks, by which the positions of a table are settled (see lane_floors.py)."""

from __future__ import annotations

import threading
import time

from fairlead.backends.postgres.lane_floors import Floors, Mark
from fairlead.ports.statements import Statement, Steps


class Marks:
    """Marks of one table. Safe to use from several threads."""

    def __init__(self, floors: Floors, statement: Statement, seconds: float) -> None:
        """`statement`: returns a mark's position, server and holders. `seconds`: shortest time
        between two marks of `read_if_late`."""
        self._floors = floors
        self._statement = statement
        self._seconds = seconds
        self._reading = threading.Lock()
        self.late_at = 0.0
        """Monotonic seconds from which another mark is to be read."""

    @property
    def is_late(self) -> bool:
        """Whether another mark is to be read."""
        return time.monotonic() >= self.late_at

    def read(self) -> Steps[None]:
        """Read a mark, unless another thread reads one."""
        if self._reading.acquire(blocking=False):
            try:
                position, server, holders = (yield self._statement)[0]
                self._floors.marked(Mark(position, server, frozenset(holders)))
                self.late_at = time.monotonic() + self._seconds
            finally:
                self._reading.release()

    def read_if_late(self) -> Steps[None]:
        """Read a mark if the last one is old."""
        if self.is_late:
            yield from self.read()
