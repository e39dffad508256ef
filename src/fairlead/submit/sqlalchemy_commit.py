"""SQLAlchemy: call back after the commit of a session or connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

_waiting: WeakKeyDictionary[Any, list[Callable[[], None]]] = WeakKeyDictionary()
"""Calls to make after the commit, by session or connection. Each has its listeners once, because
SQLAlchemy keeps a listener until its target is gone."""


def after_commit(source: Any, call: Callable[[], None]) -> None:
    """Call back once after the commit of the transaction of `source`, and never after its
    rollback. The release of a savepoint is no commit."""
    if callable(source):  # a scoped session
        source = source()
    # Not by their classes: without greenlet, `sqlalchemy.ext.asyncio` cannot be imported.
    for synchronous in ("sync_session", "sync_connection"):
        source = getattr(source, synchronous, source)
    calls = _waiting.get(source)
    if calls is None:
        calls = _waiting[source] = []
        if isinstance(source, Session):
            event.listen(source, "after_commit", _session_committed)
            event.listen(source, "after_transaction_end", _session_ended)
        else:
            event.listen(source, "commit", _connection_committed)
            event.listen(source, "rollback", _connection_rolled_back)
    calls.append(call)


def _session_committed(session: Session) -> None:
    if session.in_nested_transaction():
        return
    if isinstance(session.bind, Connection) and session.bind.in_transaction():
        for call in _taken(session):  # the session has only released a savepoint
            after_commit(session.bind, call)
    for call in _taken(session):
        call()


def _session_ended(session: Session, transaction: Any) -> None:
    if transaction.parent is None:  # no savepoint
        _waiting[session].clear()


def _connection_committed(connection: Any) -> None:
    if _waiting[connection]:
        # A connection emits the event before its commit. Commit here, before the calls;
        # SQLAlchemy's own commit then does nothing.
        connection.connection.commit()
        for call in _taken(connection):
            call()


def _connection_rolled_back(connection: Any) -> None:
    _waiting[connection].clear()


def _taken(source: Any) -> list[Callable[[], None]]:
    calls = [*_waiting[source]]
    _waiting[source].clear()
    return calls
