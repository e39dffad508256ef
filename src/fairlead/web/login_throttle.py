"""Bound on failed logins: a window for each address, and one for all addresses together."""

from __future__ import annotations

from collections import deque

MOST_OF_ONE = 10
"""Failed logins of one address within the window after which it waits."""
MOST_OF_ALL = 100
"""Failed logins of all addresses within the window after which everybody waits."""
WINDOW_SECONDS = 60.0


class FailedLogins:
    """Failed logins of the last WINDOW_SECONDS. The number that is kept is at most MOST_OF_ALL."""

    def __init__(self) -> None:
        self._failed: deque[tuple[float, str]] = deque(maxlen=MOST_OF_ALL)

    def wait(self, address: str, now: float) -> float:
        """Return the seconds until the next login of this address may be tried; 0 if it may be
        tried now. `now`: seconds of a clock that never goes back."""
        while self._failed and self._failed[0][0] <= now - WINDOW_SECONDS:
            self._failed.popleft()
        own = [at for at, who in self._failed if who == address]
        if len(self._failed) == MOST_OF_ALL:
            return self._failed[0][0] + WINDOW_SECONDS - now
        if len(own) >= MOST_OF_ONE:
            return own[-MOST_OF_ONE] + WINDOW_SECONDS - now
        return 0.0

    def add(self, address: str, now: float) -> None:
        """Count a failed login."""
        self._failed.append((now, address))
