"""Aging between priorities: which lower priority is served although a higher one has work.

Priorities are strict, so a low one may wait for ever. With `starve_after`, a flow (one priority of
a queue) is starved once none of its tasks has started for so long in its own turn. Starved flows
together get one start in every `EVERY`, one after another, until their own turn comes. So others
give away at most that share, and of n starved flows each starts a task in at most n x `EVERY`
starts. The caller brings the time and the columns, and makes the starts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

EVERY = 10
"""Starts of tasks (dimensionless) of which one belongs to starved flows."""

_FEW = 64
"""Positions of a flow that are kept before stale ones are searched for."""

Position = tuple[int, Any, Any]
"""(priority, order, column): a place among the ready columns, stale once `column.position` is
another."""


class _Flow:
    """One priority of a queue that has `starve_after`."""

    __slots__ = ("_positions", "_room", "behind", "has_deadline", "parked", "since", "starve_after")

    def __init__(self, starve_after: float) -> None:
        self.starve_after = starve_after
        """Seconds without a start in its own turn after which the flow is starved."""
        self.since: float | None = None
        """Monotonic seconds from which the flow waits; None if it does not, or from the next
        `Aging.begin`."""
        self.parked: dict[Any, None] = {}
        """Columns that wait for a limit, the next to be tried first."""
        self.behind: set[Any] = set()
        """Columns that wait behind a parked column of a higher priority."""
        self.has_deadline = False
        """Whether the flow is among the deadlines."""
        self._positions: list[Position] = []
        self._room = _FEW

    def add(self, position: Position) -> None:
        heappush(self._positions, position)
        if len(self._positions) > self._room:
            self._positions = [one for one in self._positions if one[2].position is one]
            heapify(self._positions)
            self._room = max(_FEW, 2 * len(self._positions))

    def first(self) -> Any | None:
        """Return the column to be tried next, or None: the first that is ready, else one that
        waits for a limit, which may have been freed for a higher priority."""
        positions = self._positions
        while positions and positions[0][2].position is not positions[0]:
            heappop(positions)
        return positions[0][2] if positions else next(iter(self.parked), None)


class Aging:
    """The flows of queues that have `starve_after`, and whose turn it is. Each call costs O(log n)
    of the flow's positions, or of the flows."""

    def __init__(self, starve_after: Mapping[str, float]) -> None:
        """`starve_after`: seconds by queue."""
        self._starve_after = starve_after
        self._flows: dict[tuple[str, int], _Flow] = {}
        self._held: dict[Any, _Flow] = {}
        """Flows of the columns that wait for a limit or behind another column."""
        self._arrived: dict[_Flow, None] = {}
        """Flows that wait from the next `begin` on."""
        self._deadlines: list[tuple[float, int, _Flow]] = []
        self._starved: dict[_Flow, None] = {}
        """Starved flows, the next to be served first."""
        self._stopped: set[_Flow] = set()
        """Starved flows that a limit has stopped since the last `begin`."""
        self._now = 0.0
        """Time of the last `begin`, in monotonic seconds."""
        self._passed = 0
        """Starts of others since the last start of a starved flow."""
        self._numbers = count()

    # columns --------------------------------------------------------------------------------------

    def offer(self, queue: str, position: Position) -> None:
        """Note the position of a column that became ready."""
        flow = self._flow(queue, position[0])
        if flow is not None:
            self.release(position[2])
            flow.add(position)
            if flow.since is None:
                self._arrived[flow] = None

    def hold(self, queue: str, column: Any, is_behind: bool) -> None:
        """Note that a column waits for a limit, or behind a parked column of a higher priority."""
        flow = self._flow(queue, column.priority)
        if flow is not None:
            self._held[column] = flow
            if is_behind:
                flow.behind.add(column)
            else:
                flow.parked[column] = None

    def release(self, column: Any) -> None:
        """Note that a column no longer waits for a limit or another column."""
        flow = self._held.pop(column, None)
        if flow is not None:
            flow.parked.pop(column, None)
            flow.behind.discard(column)

    # turns ----------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Find the flows that are starved at `now` (monotonic seconds)."""
        self._now = now
        self._stopped.clear()
        for flow in self._arrived:
            self._wait(flow)
        self._arrived.clear()
        while self._deadlines and self._deadlines[0][0] <= now:
            flow = heappop(self._deadlines)[2]
            flow.has_deadline = False
            if flow.since is not None and flow.since + flow.starve_after > now:
                self._set_deadline(flow, flow.since)
            elif flow.since is not None:
                self._passed = self._passed if self._starved else 0
                self._starved[flow] = None

    def next(self) -> Any | None:
        """Return the column of a starved flow whose turn it is, or None."""
        if not self._starved or self._passed < EVERY - 1:
            return None
        for flow in [flow for flow in self._starved if flow not in self._stopped]:
            column = flow.first()
            if column is not None:
                return column
            if not flow.behind:
                self._end(flow)
        return None

    @property
    def left(self) -> int:
        """Number of starts that others may make before `next` is called again."""
        return max(1, EVERY - 1 - self._passed) if self._starved else sys.maxsize

    def started(self, queue: str, priority: int, starts: int) -> None:
        """Note that tasks of a flow started in its own turn, or because others could not."""
        if self._starved:
            self._passed += starts
        flow = self._flow(queue, priority)
        if flow is not None and starts:
            self._end(flow)
            if flow.behind or flow.first() is not None:
                self._wait(flow)

    def tried(self, queue: str, priority: int, has_started: bool) -> None:
        """Note that a starved flow was tried in the place of others. If no task started, a limit
        stops it, and its turn comes with the next `begin`."""
        flow = self._flow(queue, priority)
        if flow is None:
            return
        if has_started:
            self._passed = 0
            self._starved[flow] = self._starved.pop(flow, None)
        else:
            self._stopped.add(flow)

    def _flow(self, queue: str, priority: int) -> _Flow | None:
        flow = self._flows.get((queue, priority))
        if flow is None and queue in self._starve_after:
            flow = self._flows[queue, priority] = _Flow(self._starve_after[queue])
        return flow

    def _wait(self, flow: _Flow) -> None:
        flow.since = self._now
        if not flow.has_deadline:
            self._set_deadline(flow, self._now)

    def _end(self, flow: _Flow) -> None:
        flow.since = None
        self._starved.pop(flow, None)
        self._arrived.pop(flow, None)

    def _set_deadline(self, flow: _Flow, since: float) -> None:
        flow.has_deadline = True
        heappush(self._deadlines, (since + flow.starve_after, next(self._numbers), flow))
