"""The look-ahead of this node: lanes ask for memory, and the shares are divided again when a lane
has too little."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from fairlead.clock import Clock
from fairlead.core.look_ahead import TRIGGER_BYTES, Budget
from fairlead.engine.lifecycle import SimplePart
from fairlead.model import LaneKey, Trigger

log = logging.getLogger("fairlead.look_ahead")

REBALANCE_SECONDS = 1.0
"""Shortest time between two rebalances."""

REBALANCE_SHARE = 0.01
"""Greatest share of the time that rebalances take."""

WARN_SECONDS = 3600.0
"""Shortest time between two warnings that the budget is too small."""

LEAST_IN_INBOX = 20
"""Triggers that a lane takes from the channel at least while it has none."""

INBOX_SHARE = 8
"""Fraction (one in INBOX_SHARE) of the budget for triggers of fair queues that have no level
yet."""


class LookAhead:
    """The budget of a node, for the parts that hold triggers. Counts are triggers. `most`: triggers
    that the lane may hold whatever the budget is."""

    def __init__(self, size: int, clock: Clock) -> None:
        """`size`: bytes."""
        self.budget = Budget[LaneKey](size - size // INBOX_SHARE)
        self.inboxes = 0
        """Triggers of fair queues in memory without a level, or whose write has not landed."""
        self._most_in_inboxes = size // INBOX_SHARE // TRIGGER_BYTES
        """Above this number, a lane takes more triggers from the channel only if it has none."""
        self.is_short = asyncio.Event()
        """Set while a lane has less than it needs."""
        self._clock = clock

    @property
    def are_inboxes_full(self) -> bool:
        """Whether no more triggers of fair queues should come until others are in the store."""
        return self.inboxes >= self._most_in_inboxes

    @property
    def least_in_inbox(self) -> int:
        """Number of triggers that a lane without any takes while the inboxes are full, so that it
        does not wait for other lanes."""
        return max(LEAST_IN_INBOX, self._most_in_inboxes // max(1, len(self.budget.shares)))

    def capacity(self, lane: LaneKey, most: int) -> int:
        """Return how many triggers the lane may hold now; `most` if it holds none yet."""
        share = self.budget.shares.get(lane)
        return most if share is None else min(most, share.capacity)

    def want(self, lane: LaneKey, count: int, most: int) -> int:
        """Ask for memory for `count` triggers; return how many the lane may hold now."""
        share = self.budget.want(lane, count, most, self._clock.monotonic())
        self._note_short()
        return share.capacity

    def refill(self, lane: LaneKey, most: int) -> int:
        """Ask for memory before a read; return how many triggers the lane may hold now."""
        share = self.budget.refill(lane, most, self._clock.monotonic())
        self._note_short()
        return share.capacity

    def took(self, lane: LaneKey, count: int) -> None:
        """Note that a lane has dispatched triggers."""
        if (share := self.budget.shares.get(lane)) is not None:
            share.taken += count

    def measure(self, lane: LaneKey, triggers: Sequence[Trigger]) -> None:
        """Measure triggers that have just come into memory."""
        self.budget.measure(lane, triggers)

    def leave(self, lane: LaneKey) -> None:
        """Take back the share of a lane that holds no trigger and has no more."""
        self.budget.leave(lane)

    def _note_short(self) -> None:
        if self.budget.is_short:
            self.is_short.set()


class Rebalances(SimplePart):
    """Divide the budget again while a lane has less than it needs."""

    def __init__(
        self,
        look_ahead: LookAhead,
        held: Callable[[LaneKey], int | None],
        resize: Callable[[Collection[LaneKey]], None],
        clock: Clock,
    ) -> None:
        """`held`: see `fairlead.core.look_ahead.Budget.rebalance`. `resize`: called with the lanes
        whose capacity changed."""
        self._look_ahead = look_ahead
        self._held = held
        self._resize = resize
        self._clock = clock
        self._warn_at = 0.0
        """Monotonic seconds before which no further warning is logged."""

    async def run(self) -> None:
        """Rebalance until cancelled."""
        look_ahead, clock = self._look_ahead, self._clock
        while True:
            await look_ahead.is_short.wait()
            began = clock.monotonic()
            if changed := look_ahead.budget.rebalance(began, self._held):
                log.debug("the look-ahead is divided again", extra={"lanes": len(changed)})
                self._resize(changed)
            if not look_ahead.budget.is_short:
                look_ahead.is_short.clear()
            elif began >= self._warn_at:
                self._warn_at = began + WARN_SECONDS
                log.warning(
                    "waiting tasks need more memory than the look-ahead has, so they are read in"
                    " smaller parts; raise look_ahead_bytes (--look-ahead-mb)",
                    extra={"lanes": len(look_ahead.budget.shares), "bytes": look_ahead.budget.size},
                )
            took = clock.monotonic() - began
            await clock.sleep(max(REBALANCE_SECONDS, took / REBALANCE_SHARE))
