"""The incident store on PostgreSQL: claims, sweeps and counts pass no rows of incidents that were
delivered or dropped before.

A claim begins at a floor of delivery times, as a search for due tasks does (see due_floor.py). A
sweep knows the ids of all open incidents, and adds those that have come since the one before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from fairlead.backends.postgres.due_floor import DueFloor
from fairlead.backends.postgres.key_floors import Settled
from fairlead.backends.postgres.lane_floors import LaneFloors
from fairlead.backends.postgres.marks import Marks
from fairlead.backends.sql.incidents import SqlIncidents
from fairlead.backends.sql.rows import batch
from fairlead.backends.sql.sql_file import load
from fairlead.ports.statements import Row, SqlDatabase, Steps

_MARK_SECONDS = 0.05
"""Shortest time between two marks, so that few incidents have come since the settled position."""

_ARRIVED_AT_ONCE = 10_000
"""Maximum number of rows of one read of incidents that have come since the last sweep."""


class PostgresIncidents(SqlIncidents):
    """An incident store whose statements do not grow with the number of rows that were deleted or
    replaced."""

    def __init__(self, database: SqlDatabase) -> None:
        super().__init__(database)
        floor = load("task_store.sql", __package__)["due_floor"]
        for name in ("next_delivery", "claim"):
            self._sql[name] = f"{floor}\n{self._sql[name]}"
        self._floor = DueFloor(LaneFloors())
        self._marks = Marks(self._floor.lanes, self._statement("mark"), _MARK_SECONDS)
        self._open: list[int] = []
        """Ids of open incidents, ascending."""
        self._arrived = Settled(0, 0)
        """Position up to which `_open` has all incidents."""

    def _claim_rows(self, now: int, until: int, limit: int) -> Steps[Sequence[Row]]:
        yield from self._marks.read_if_late()
        settled = self._floor.settled()
        first = (yield self._statement("next_delivery", *self._floor.now))[0][0]
        self._floor.found(first, settled)
        return (yield self._statement("claim", *self._floor.now, now, until, limit))

    def _sweep_rows(self, after: int, over_before: int, limit: int) -> Steps[Sequence[int]]:
        yield from self._read_arrivals()
        start = bisect_right(self._open, after)
        page = self._open[start : start + limit]
        if page:
            rows = yield self._statement("sweep", batch(page), over_before)
            for gone in set(page).difference(row[0] for row in rows):
                # Another sweep may have changed the list meanwhile.
                at = bisect_left(self._open, gone)
                if self._open[at : at + 1] == [gone]:
                    del self._open[at]
        return page

    def _read_arrivals(self) -> Steps[None]:
        """Add the incidents that have come since the last sweep to the open ones."""
        yield from self._marks.read_if_late()
        settled = self._floor.settled()
        if settled.server != self._arrived.server:
            self._open, self._arrived = [], Settled(0, settled.server)
        seq, found = self._arrived.order_seq, set(self._open)
        while True:
            rows = yield self._statement("arrivals", seq, _ARRIVED_AT_ONCE)
            found.update(id for _, id in rows)
            if len(rows) < _ARRIVED_AT_ONCE:
                break
            seq = rows[-1][0]
        self._open = sorted(found)
        self._arrived = settled

    def _count_rows(self) -> Steps[Sequence[Row]]:
        seq, server = self._arrived
        return (yield self._statement("counts", self._open, seq, server))
