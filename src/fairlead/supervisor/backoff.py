"""The back-off of restarts: how long a worker process that ended waits for its next start."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
SETTLED_SECONDS = 10.0


@dataclass(frozen=True)
class Backoff:
    """Delays that double with each early end in a row. Times are in seconds."""

    first: float = FIRST_SECONDS
    """Delay after the first early end."""
    longest: float = LONGEST_SECONDS
    settled: float = SETTLED_SECONDS
    """Age of a process, in seconds, from which its end is not early; the delays then start again
    from the first."""

    def failures(self, before: int, lived: float) -> int:
        """Return the number of early ends in a row, after an end at the age `lived`."""
        return 0 if lived >= self.settled else before + 1

    def delay(self, failures: int) -> float:
        """Return the seconds until the next start: 0 if the last end was not early."""
        if not failures:
            return 0.0
        doublings = min(failures - 1, 32)  # keeps the float finite
        return min(self.longest, self.first * 2.0**doublings)
