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


class ClockSteps:
    """Steps of the wall clock, found by its offset from the monotonic clock: a time server set it,
    or the machine was suspended. Wall times written before a step say nothing about silence."""

    _LEAST = MICROS
    """Microseconds; smaller steps do not matter here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = self._read()
        self._stepped_at = float("-inf")

    def is_within(self, seconds: float) -> bool:
        """Return whether a step was found in the last `seconds`, now or by an earlier call."""
        offset, now = self._read(), self._clock.monotonic()
        if abs(offset - self._offset) > self._LEAST:
            self._offset, self._stepped_at = offset, now
        return now - self._stepped_at < seconds

    def _read(self) -> int:
        return self._clock.now() - round(self._clock.monotonic() * MICROS)
