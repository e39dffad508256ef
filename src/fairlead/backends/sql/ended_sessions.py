"""The console's ended sessions over SQL, on SQLite and PostgreSQL."""

from __future__ import annotations

from fairlead.backends.sql.sql_file import load, package_of
from fairlead.ports.statements import SqlDatabase, Statement, Steps


class SqlEndedSessions:
    """A `fairlead.ports.ended_sessions.EndedSessions` in the database of a task store."""

    def __init__(self, database: SqlDatabase) -> None:
        self._sql = load("ended_sessions.sql", package_of(database))

    def add(self, session: str, ends_at: int, now: int) -> Steps[None]:
        yield Statement(self._sql["clean"], (now,))
        yield Statement(self._sql["add"], (session, ends_at))

    def has(self, session: str) -> Steps[bool]:
        return bool((yield Statement(self._sql["has"], (session,))))
