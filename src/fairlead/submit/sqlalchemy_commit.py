"""SQLAlchemy: call back after the commit of a session or connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session


def after_commit(source: Any, call: Callable[[], None]) -> None:
    """Call back once after the commit of the transaction of `source`, and never after its
    rollback."""
    if isinstance(source, async_scoped_session):
        source = source()
    if isinstance(source, AsyncSession):
        source = source.sync_session
    elif isinstance(source, AsyncConnection):
        source = source.sync_connection
    elif isinstance(source, scoped_session):
        source = source()
    commit, rollback = (
        ("after_commit", "after_rollback")
        if isinstance(source, Session)
        else ("commit", "rollback")
    )
    done = False

    def committed(committing: Any) -> None:
        nonlocal done
        if not done:
            done = True
            if not isinstance(committing, Session):
                # A connection emits the event before its commit. Commit here, before the call;
                # SQLAlchemy's own commit then does nothing.
                committing.connection.commit()
            call()

    def rolled_back(_: Any) -> None:
        nonlocal done
        done = True

    event.listen(source, commit, committed, once=True)
    event.listen(source, rollback, rolled_back, once=True)
