"""Arrivals of a key by minute, and their mean."""

from __future__ import annotations

from typing import Protocol

import msgspec

from fairlead.clock import MICROS

MINUTE = 60 * MICROS
MEAN_MINUTES = 60
"""Maximum number of minutes that count in the mean of a key."""


class KeyMinutes(msgspec.Struct):
    """Arrivals of a key by minute."""

    minute: int
    """Last minute with arrivals, counted from the epoch."""
    tasks: int = 0
    """Arrivals in that minute."""
    before: int = 0
    """Arrivals in the minute before."""
    mean: float = 0.0
    """Mean arrivals per minute in the known minutes before these two."""
    known: int = -2
    """Number of minutes in the mean; below 0 while the first minute, of which only the end may be
    known, is one of these two. The first minute is not in the mean."""

    def arrive(self, tasks: int, minute: int) -> None:
        """Add arrivals in `minute`: the last minute with arrivals, or a later one."""
        while self.minute < minute:
            self.known = min(self.known + 1, MEAN_MINUTES)
            if self.known > 0:
                self.mean += (self.before - self.mean) / self.known
            self.before, self.tasks = self.tasks, 0
            self.minute += 1
            if self.minute < minute - MEAN_MINUTES:  # skip a long gap, and start a new mean
                self.minute, self.before, self.mean = minute, 0, 0.0
        self.tasks += tasks

    def last_minute(self, at: int) -> float:
        """Return the approximate arrivals in the sixty seconds before `at` (microseconds)."""
        minute, into = divmod(at, MINUTE)
        if minute == self.minute:
            return self.tasks + self.before * (1 - into / MINUTE)
        return self.tasks * (1 - into / MINUTE) if minute == self.minute + 1 else 0.0


class Keys(Protocol):
    """Storage for the minutes of keys."""

    def get(self, key: str) -> KeyMinutes | None:
        """Return the minutes of a key; None if there are none."""

    def put(self, key: str, minutes: KeyMinutes) -> None:
        """Store the minutes of a key."""


class KeysInMemory(dict[str, KeyMinutes]):
    """Minutes of keys in memory."""

    put = dict.__setitem__

    def drop(self, before: int) -> None:
        """Drop the keys without arrivals from the minute `before` on."""
        for key in [key for key, minutes in self.items() if minutes.minute < before]:
            del self[key]
