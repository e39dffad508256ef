"""Polling in place of LISTEN, behind a pooler in transaction mode.

Tasks get positions from a sequence before their transactions commit. So a node reads again from the
last position below which nothing can commit any more: when all transactions have ended that were
open one poll after the position was given.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from fairlead.backends.postgres.low_water import TaskMarks
from fairlead.backends.sql.rows import batch
from fairlead.backends.sql.sql_file import load
from fairlead.ports.notification import Lane, Notification
from fairlead.ports.statements import Database, Statement, Steps

FIRST_PAUSE, LAST_PAUSE = 0.02, 0.25
"""Seconds between two polls: after news, and the longest one, to which the pause grows."""

UNSETTLED_SECONDS = 5.0
"""Seconds after which a node no longer waits for a transaction that stays open. The sweep of the
channel finds what it commits later."""

_FIRST_REREAD = 1000
"""Positions before the first poll that are read again, because their tasks may commit later."""


@dataclass(slots=True)
class _Unsettled:
    position: int
    since: float  # monotonic seconds
    horizon: int | None = None
    """First transaction that cannot have given this position; None until the next poll."""


class Positions:
    """Positions of tasks, of which the last ones may not be committed yet."""

    def __init__(self) -> None:
        self._settled: int | None = None
        """Position up to which all tasks are visible; None before the first poll."""
        self._last = 0
        self._unsettled: deque[_Unsettled] = deque()

    def read_above(self, last: int, oldest: int, following: int, now: float) -> int | None:
        """Return the position above which to read again, or None without news.

        `last`: last position given. `oldest`, `following`: the oldest open transaction and the next
        one.
        """
        is_first = self._settled is None
        begin = max(0, last - _FIRST_REREAD) if self._settled is None else self._settled
        was_unsettled = bool(self._unsettled)
        settled = begin
        for each in self._unsettled:
            each.horizon = following if each.horizon is None else each.horizon
        while self._unsettled and (
            oldest >= (self._unsettled[0].horizon or 0)
            or now - self._unsettled[0].since > UNSETTLED_SECONDS
        ):
            settled = self._unsettled.popleft().position
        is_new = last != self._last
        if last < self._last:  # the sequence was set back
            self._unsettled.clear()
            begin = settled = 0
        if is_new:
            self._unsettled.append(_Unsettled(last, now))
        self._settled, self._last = settled, last
        return begin if (is_new and not is_first) or was_unsettled else None


class Polling:
    """Notifications found by statements, one poll after another."""

    def __init__(self, database: Database, marks: TaskMarks) -> None:
        self._database = database
        self._marks = marks
        self._sql = load("polling.sql", __package__)
        tasks = load("task_store.sql", __package__)
        self._changed = self._sql["changes"].replace("NEXT_DUE", tasks["next_due"])
        self._lanes_above = self._sql["lanes_above"].replace("LANES", tasks["lanes"])
        self._positions = Positions()
        self._changes: int | None = None
        self._due: int | None = None
        self.pause = FIRST_PAUSE
        """Seconds until the next poll."""

    async def poll(self) -> Notification | None:
        """Return what is new since the last poll, or None. Raise StoreUnavailable."""
        notification = await self._database.read(self._poll())
        is_busy = notification is not None
        self.pause = FIRST_PAUSE if is_busy else min(self.pause * 1.5, LAST_PAUSE)
        return notification

    def _poll(self) -> Steps[Notification | None]:
        marks, settled = self._marks, self._marks.settled
        rows = yield Statement(self._changed, marks.due)
        last, oldest, following, changes, due = rows[0]
        marks.raise_due(due, settled)
        above = self._positions.read_above(last, oldest, following, time.monotonic())
        lanes: list[Lane] = []
        if above is not None:
            found = yield Statement(self._lanes_above, (batch(marks.rows()), above))
            lanes = [
                Lane(queue, partition, priority, above + 1) for queue, partition, priority in found
            ]
        has_changed = self._changes is not None and changes != self._changes
        is_sooner = due is not None and (self._due is None or due < self._due)
        self._changes, self._due = changes, due
        if not (lanes or has_changed or is_sooner):
            return None
        return Notification(ready=lanes, control=has_changed, due=due if is_sooner else None)
