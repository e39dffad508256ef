"""Sessions that viewers ended before their time, so that a copy of their cookie opens nothing.

Kept in the store, where every process of the console sees them, and in this process, for stores
without SQL. Thread-safe.
"""

from __future__ import annotations

import hashlib
import threading

from fairlead.app import App
from fairlead.clock import MICROS
from fairlead.errors import FairleadError, NotSupported
from fairlead.operate.store.ended_sessions import EndedSessions as StoredSessions
from fairlead.ports.sql_store import SqlStore
from fairlead.web.context import SharedReads
from fairlead.web.sessions import Session

MOST_KNOWN = 10_000
"""Greatest number of sessions that this process knows to be ended, or not; the eldest are forgotten
first."""

KNOWN_SECONDS = 1.0
"""Seconds for which this process does not ask the store again whether a session has ended."""


class EndedSessions:
    """Ended sessions of one console."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._ended: dict[str, None] = {}
        """Ids of sessions that this process knows to be ended."""
        self._reads = SharedReads(MOST_KNOWN)

    def add(self, session: Session, now: float) -> None:
        """End a session. `now`: seconds since the epoch. Raise StoreUnavailable after it has ended
        in this process, if the store cannot tell the others."""
        self._keep(session)
        store = self._store() if session.is_logged_in else None
        if store is not None:
            sessions: StoredSessions = StoredSessions(store.database)
            ends_at, at = session.ends_at * MICROS, round(now * MICROS)
            store.database.run(sessions.add(_hash(session), ends_at, at))

    def has(self, session: Session) -> bool:
        """Return whether a session was ended, in another process at most KNOWN_SECONDS ago. While
        the store does not respond, only ends in this process are known. May read the store."""
        if session.id in self._ended:
            return True
        if not session.is_logged_in:
            return False
        has_ended = self._reads.get(session.id, lambda: self._read(session), KNOWN_SECONDS)
        if has_ended:
            self._keep(session)
        return has_ended or session.id in self._ended  # it may have ended while this was read

    def _keep(self, session: Session) -> None:
        with self._lock:
            while len(self._ended) >= MOST_KNOWN:
                del self._ended[next(iter(self._ended))]
            self._ended[session.id] = None

    def _read(self, session: Session) -> bool:
        try:
            store = self._store()
            return store is not None and store.database.read_now(
                StoredSessions(store.database).has(_hash(session))
            )
        except FairleadError:
            return False  # the screens say what is wrong with the store

    def _store(self) -> SqlStore | None:
        """Return the store; None for one without SQL."""
        try:
            return self._app.operate_context.sql_store
        except NotSupported:
            return None


def _hash(session: Session) -> str:
    return hashlib.sha256(session.id.encode()).hexdigest()
