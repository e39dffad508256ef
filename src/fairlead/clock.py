"""Time: integer microseconds since 1970 UTC, and a port so that tests can control the clock."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

MICROS = 1_000_000
"""Microseconds in a second."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_MICRO = timedelta(microseconds=1)


def to_micros(instant: datetime) -> int:
    """Return the microseconds since 1970 UTC of an aware datetime, exactly. Raises ValueError for a
    naive one."""
    if instant.tzinfo is None or instant.utcoffset() is None:
        raise ValueError(
            f"naive datetime {instant!r}: give a timezone, as in datetime.now(timezone.utc)"
        )
    return (instant - _EPOCH) // _ONE_MICRO


def to_datetime(micros: int) -> datetime:
    """Return the aware UTC datetime of `micros` microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=micros)


class Clock(Protocol):
    """Source of time for an engine."""

    def now(self) -> int:
        """Return the wall time in microseconds since 1970 UTC; may step."""

    def monotonic(self) -> float:
        """Return the seconds on a clock that never steps back."""

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` of this clock have passed."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


class StoreClock(SystemClock):
    """The clock of the machine, set right by the clock that the nodes of a store share."""

    def __init__(self) -> None:
        self.ahead = 0
        """Microseconds by which the clock of the machine is ahead of the shared one."""

    def now(self) -> int:
        return super().now() - self.ahead

    def observe(self, at: int, began: int) -> None:
        """Set the clock right by a reading of the shared one, `at`, which was made between `began`
        and now, both by this clock. A difference within these bounds changes nothing."""
        now = self.now()
        if not began <= at <= now:
            self.ahead += (began + now) // 2 - at
