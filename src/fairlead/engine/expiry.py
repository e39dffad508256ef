"""The expiry of what a node holds: its leases, and the tasks that it has claimed."""

from __future__ import annotations

import time

from fairlead.clock import Clock

_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Expiry:
    """Instant from which other nodes may take what this node holds. Time passes also while the
    process is stopped and while the machine is suspended. Any thread may use it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at = 0.0
        """Seconds of `now`; the node holds nothing before its first renewal."""

    def now(self) -> float:
        """Return the seconds on a monotonic clock that counts suspensions of the machine."""
        suspended = time.clock_gettime(_BOOT_TIME) - time.monotonic()
        return self._clock.monotonic() + int(suspended)

    def is_ahead(self) -> bool:
        """Return whether the node certainly holds what it had at the last renewal."""
        return self.now() < self.at

    def extend(self, began: float, seconds: float) -> None:
        """Record a renewal for some seconds, which was requested at `began` (seconds of `now`)."""
        self.at = max(self.at, began + seconds)
