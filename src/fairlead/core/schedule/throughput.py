"""Throughput control: how much of a schedule one partition has in memory, and how far ahead it
reads."""

from __future__ import annotations

from dataclasses import dataclass

SPARE = 4
"""As many times `in_flight` tasks may be in memory, when most of them wait behind others of their
ordering keys."""


@dataclass(frozen=True)
class Window:
    """Bounds of one partition. Times in microseconds."""

    in_flight: int = 1000
    """Ordering keys in memory that run, may run, or will within the look-ahead."""
    per_key: int = 20
    """Tasks of one ordering key in memory, while there is room."""
    page: int = 1000
    """Tasks in one read."""
    look_ahead: int = 300_000_000
    prefetch: int = 5_000_000
    """So long before what was read ends, more is read."""

    @property
    def most_loaded(self) -> int:
        """Tasks in memory, whatever they wait for."""
        return SPARE * self.in_flight

    def room(self, live: int, loaded: int) -> int:
        """How many tasks to read now, with `live` ordering keys that do not wait for a retry and
        `loaded` tasks in memory; 0: not before there is room for a read that is worth it."""
        room = min(self.in_flight - live, self.most_loaded - loaded, self.page)
        return room if room >= max(1, min(self.page, self.in_flight) // 10) else 0

    def line(self, loaded: int) -> int:
        """How many tasks of one ordering key are kept in memory now: the less room, the fewer; one
        runs, one comes next."""
        return self.per_key if loaded < self.most_loaded // 2 else 2

    def is_exceeded(self, live: int, loaded: int) -> bool:
        """There is more in memory than may be."""
        return live > self.in_flight or loaded > self.most_loaded
