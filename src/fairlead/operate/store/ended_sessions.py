"""Sessions of the web console that people have ended."""

from __future__ import annotations

from fairlead.operate.store.sql import StatementFile
from fairlead.ports.statements import SqlDatabase, Steps


class EndedSessions(StatementFile):
    """Sessions that ended before their time, known to every process of a console."""

    def __init__(self, database: SqlDatabase) -> None:
        super().__init__("ended_sessions.sql", database)

    def add(self, session: str, ends_at: int, now: int) -> Steps[None]:
        """Record that a session is over, by the hash of its id, until `ends_at`; forget those that
        would have ended by `now` (microseconds since the epoch)."""
        yield self._statement("clean", now)
        yield self._statement("add", session, ends_at)

    def has(self, session: str) -> Steps[bool]:
        """Return whether a session was ended."""
        return bool((yield self._statement("has", session)))
