"""Throughput control: how many tasks of a partition's schedule are in memory, how many bytes they
take, and how far ahead they are read."""

from __future__ import annotations

from dataclasses import dataclass

_LEAST_LINE = 2
"""Tasks of an ordering key that are in memory even when there is little room: one that runs, and
the next."""

SPARE = 4
"""Multiple of `in_flight` tasks allowed in memory when most tasks wait behind others of their
ordering key."""


@dataclass(frozen=True)
class Window:
    """Limits of one partition. Times in microseconds."""

    in_flight: int = 1000
    """Ordering keys in memory that run, may run, or will within the look-ahead."""
    per_key: int = 20
    """Tasks of one ordering key in memory, while there is room."""
    page: int = 1000
    """Tasks in one read."""
    most_bytes: int = 64_000_000
    """Bytes of the tasks in memory. A partition may always hold one task that can run."""
    look_ahead: int = 300_000_000
    prefetch: int = 5_000_000
    """The next read takes place this long before the due time of the last task that was read."""

    @property
    def most_loaded(self) -> int:
        """Maximum number of tasks in memory, whatever they wait for."""
        return SPARE * self.in_flight

    @property
    def most_held_bytes(self) -> int:
        """Bytes of tasks that wait for retries from which further ones keep no payload."""
        return self.most_bytes // 2

    @property
    def least_bytes(self) -> int:
        """Free bytes for which a page is worthwhile."""
        return self.most_bytes // 8

    def room(self, live: int, loaded: int) -> int:
        """Return how many tasks to read now. `live`: ordering keys that do not wait for a retry;
        `loaded`: tasks in memory. 0 until there is room for a read that is worthwhile."""
        room = min(self.in_flight - live, self.most_loaded - loaded, self.page)
        return room if room >= max(1, min(self.page, self.in_flight) // 10) else 0

    def line(self, loaded: int, size: int) -> int:
        """Return how many tasks of one ordering key to keep in memory: fewer when there is less
        room, but at least two, one running and the next."""
        is_half_empty = loaded < self.most_loaded // 2 and size < self.most_bytes // 2
        return self.per_key if is_half_empty else _LEAST_LINE

    def line_room(self, in_line: int, loaded: int) -> int:
        """Return how many tasks of one ordering key to read, at least one: as many as memory keeps,
        because the others would be read again. `in_line`: tasks of the key in memory."""
        room = max(self.most_loaded // 2 - loaded, _LEAST_LINE - in_line)
        return max(1, min(self.per_key - in_line, room))

    def is_exceeded(self, live: int, loaded: int) -> bool:
        """Return whether there is more in memory than allowed."""
        return live > self.in_flight or loaded > self.most_loaded
