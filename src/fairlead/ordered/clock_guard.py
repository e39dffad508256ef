"""The clock by which a node runs its ordered tasks: it follows no step of the machine's clock that
the store's clock does not confirm."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from fairlead.clock import MICROS, Clock
from fairlead.errors import StoreUnavailable
from fairlead.model import Finish, IncidentKind, IncidentReport

log = logging.getLogger("fairlead.ordered")

LEAST_STEP = MICROS
"""Microseconds; smaller steps are followed at once."""

HOLD_SECONDS = 60.0
"""Seconds after which a step is followed that no other clock can judge."""

CHECK_SECONDS = 5.0
"""Seconds between two checks of the machine's clock while nothing else reads it, and between two
reads of the store's clock during a step."""

_COMPARE_SECONDS = 60.0
"""Seconds between two reads of the store's clock while the machine's clock makes no step, and
between two reports of one step."""

_SLOW = 0.5
"""Seconds; a read of the store's clock that takes longer says nothing."""


class ClockGuard:
    """A `fairlead.clock.Clock` whose time of day goes on steadily when the machine's clock steps.

    A step is a change of the machine's time of day against its monotonic clock. The guard then adds
    the monotonic clock to the time before the step, reports an incident, and asks the store. It
    follows at once if the store's time of day made the same step, because the monotonic clock stood
    still (the machine was suspended), and if the step brought the machine nearer to the store's
    time. Else it waits until the machine's clock is set right. Without a store that has its own
    clock, the guard follows after HOLD_SECONDS.
    """

    def __init__(
        self,
        clock: Clock,
        node: str,
        on_incidents: Callable[[Sequence[IncidentReport]], None],
        store_now: Callable[[], Awaitable[int | None]],
    ) -> None:
        """`store_now`: returns the time of the store's own clock (microseconds since the epoch), or
        None if it has none; raises StoreUnavailable."""
        self._clock = clock
        self._node = node
        self._on_incidents = on_incidents
        self._store_now = store_now
        self._then, self._at = clock.now(), clock.monotonic()
        """Time of day and monotonic seconds of one instant before any step."""
        self._stepped_at: float | None = None
        """Monotonic seconds at which the present step was found; None without a step."""
        self._store_ahead: int | None = None
        """Microseconds by which the store's clock was ahead before any step; None if unknown."""
        self._is_judged_by_store = False
        self._report_at = 0.0
        """Monotonic seconds from which the present step is reported again."""

    def now(self) -> int:
        """Return the time of day in microseconds since the epoch, without unconfirmed steps."""
        now, at = self._clock.now(), self._clock.monotonic()
        steady = self._steady(at)
        if abs(now - steady) < LEAST_STEP:
            if self._stepped_at is not None:
                log.warning("the clock of this machine is right again", extra={"node": self._node})
            self._follow(now, at)
            return now
        if self._stepped_at is None:
            self._stepped_at = at
            self._report(now - steady)
        elif not self._is_judged_by_store and at - self._stepped_at >= HOLD_SECONDS:
            log.warning("a step of the clock is followed", extra={"node": self._node})
            self._follow(now, at)
            return now
        return steady

    def monotonic(self) -> float:
        """Return the seconds on a clock that never steps back."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` have passed."""
        await self._clock.sleep(seconds)

    def corrected(self, finish: Finish) -> Finish:
        """Return the end of a run with the times of this guard instead of the machine's clock."""
        now = self.now()
        if self._stepped_at is None:
            return finish
        by = now - self._clock.now()
        return msgspec.structs.replace(
            finish,
            started_at=None if finish.started_at is None else finish.started_at + by,
            finished_at=finish.finished_at + by,
            run_at=None if finish.run_at is None else finish.run_at + by,
        )

    async def run(self) -> None:
        """Watch the clocks until cancelled."""
        compare_at = self.monotonic()
        while True:
            self.now()
            if self._stepped_at is not None:
                await self._judge()
            elif self.monotonic() >= compare_at:
                self._store_ahead = await self._ahead()
                self._is_judged_by_store = self._store_ahead is not None
                compare_at = self.monotonic() + _COMPARE_SECONDS
            await self.sleep(CHECK_SECONDS)

    async def _judge(self) -> None:
        """Follow the step if the store's clock confirms it; report it again if it does not."""
        before = self._store_ahead
        ahead = await self._ahead()
        if before is None or ahead is None or self._stepped_at is None:
            return
        now, at = self._clock.now(), self._clock.monotonic()
        step = now - self._steady(at)
        if abs(ahead - before) < abs(step) / 2 or abs(ahead) < abs(before):
            log.warning(
                "a step of the clock is followed: the store confirms it",
                extra={"node": self._node, "seconds": round(step / MICROS, 1)},
            )
            self._follow(now, at)
        elif abs(ahead + step - before) < abs(step) / 2:
            if at >= self._report_at:
                self._report(step)
        else:  # three clocks, three times
            self._is_judged_by_store = False

    async def _ahead(self) -> int | None:
        """Return by how many microseconds the store's clock is ahead; None if unknown."""
        began = self.monotonic()
        before = self._clock.now()
        try:
            found = await self._store_now()
        except StoreUnavailable:
            return None if self._stepped_at is not None else self._store_ahead
        took = self.monotonic() - began
        if found is None:
            return None
        if took > _SLOW:
            return None if self._stepped_at is not None else self._store_ahead
        return found - before - round(took / 2 * MICROS)

    def _steady(self, at: float) -> int:
        return self._then + round((at - self._at) * MICROS)

    def _follow(self, now: int, at: float) -> None:
        self._then, self._at, self._stepped_at = now, at, None

    def _report(self, step: int) -> None:
        self._report_at = self.monotonic() + _COMPARE_SECONDS
        seconds = step / MICROS
        way = "ahead" if step > 0 else "back"
        what = f"the clock of node {self._node} stepped {way} by {abs(seconds):.1f} s"
        log.error("the clock stepped", extra={"node": self._node, "seconds": round(seconds, 1)})
        until = (
            "until the clock is right or the store's clock confirms it"
            if self._is_judged_by_store
            else f"for {HOLD_SECONDS:.0f} s"
        )
        self._on_incidents(
            [
                IncidentReport(
                    kind=IncidentKind.CLOCK_STEP,
                    subject=self._node,
                    details=(
                        f"{what}: its ordered queues keep the time before the step, {until}. Set"
                        " the clock of the machine, and let a time server discipline it"
                    ),
                    since=self._steady(self._clock.monotonic()),
                )
            ]
        )
