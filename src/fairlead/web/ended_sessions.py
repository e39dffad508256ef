"""Sessions that viewers ended before their time, so that a copy of their cookie opens nothing.

Kept in the store, where every process of the console sees them, and in this process, for stores
without SQL. Thread-safe.
"""

from __future__ import annotations

import hashlib
import threading
import time
from typing import TypeVar

from fairlead.app import App
from fairlead.clock import MICROS
from fairlead.errors import FairleadError, NotSupported
from fairlead.operate.store.ended_sessions import EndedSessions as StoredSessions
from fairlead.ports.sql_store import SqlStore
from fairlead.web.sessions import Session

T = TypeVar("T")

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
        self._ended: dict[str, int] = {}
        """Ends of sessions that this process knows to be ended, by id."""
        self._open: dict[str, float] = {}
        """When this process last found sessions open, by id, in monotonic seconds."""

    def add(self, session: Session, now: float) -> None:
        """End a session. `now`: seconds since the epoch. Raise StoreUnavailable after it has ended
        in this process, if the store cannot tell the others."""
        with self._lock:
            for id in [id for id, ends_at in self._ended.items() if ends_at <= now]:
                del self._ended[id]
            self._open.pop(session.id, None)
            _put(self._ended, session.id, session.ends_at)
        store = self._store() if session.is_logged_in else None
        if store is not None:
            sessions: StoredSessions = StoredSessions(store.database)
            ends_at, at = session.ends_at * MICROS, round(now * MICROS)
            store.database.run(sessions.add(_hash(session), ends_at, at))

    def is_known(self, session: Session) -> bool:
        """Return whether `has` responds without the store, as for a session without a login."""
        found = self._open.get(session.id, float("-inf"))
        if session.id in self._ended or not session.is_logged_in:
            return True
        return time.monotonic() - found < KNOWN_SECONDS

    def has(self, session: Session) -> bool:
        """Return whether a session was ended, in another process at most KNOWN_SECONDS ago. While
        the store does not respond, only ends in this process are known."""
        if session.id in self._ended:
            return True
        if self.is_known(session):
            return False
        try:
            store, at = self._store(), time.monotonic()
            has_ended = store is not None and store.database.read_now(
                StoredSessions(store.database).has(_hash(session))
            )
        except FairleadError:
            return False  # the screens say what is wrong with the store
        with self._lock:
            if has_ended:
                _put(self._ended, session.id, session.ends_at)
            else:
                _put(self._open, session.id, at)
        return has_ended

    def _store(self) -> SqlStore | None:
        """Return the store; None for one without SQL."""
        try:
            return self._app.operate_context.sql_store
        except NotSupported:
            return None


def _put(known: dict[str, T], id: str, value: T) -> None:
    known.pop(id, None)
    while len(known) >= MOST_KNOWN:
        del known[next(iter(known))]
    known[id] = value


def _hash(session: Session) -> str:
    return hashlib.sha256(session.id.encode()).hexdigest()
