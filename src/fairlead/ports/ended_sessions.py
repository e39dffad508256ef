"""Sessions of the web console that people have ended. `SqlStore.ended_sessions` returns them."""

from __future__ import annotations

from typing import Protocol

from fairlead.ports.statements import Steps


class EndedSessions(Protocol):
    """Sessions that ended before their time, known to every process of a console."""

    def add(self, session: str, ends_at: int, now: int) -> Steps[None]:
        """Record that a session is over, by the hash of its id, until `ends_at`; forget those that
        would have ended by `now` (microseconds since the epoch)."""

    def has(self, session: str) -> Steps[bool]:
        """Return whether a session was ended."""
