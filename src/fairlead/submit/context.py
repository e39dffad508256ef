"""The context of a submit: the declarations of the application, and where its tasks are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairlead.clock import Clock
from fairlead.connector import Connector
from fairlead.declare.current import current_task
from fairlead.declare.declarations import Declarations
from fairlead.declare.handler import RunInterceptor
from fairlead.ports.notification import Notification
from fairlead.ports.observer import Observer
from fairlead.submit.transaction import Waiting, announce_after_commit


class Hooks(Protocol):
    """Settings an application may change at any time, read at each submit."""

    interceptors: Sequence[RunInterceptor]
    clock: Clock
    payload_limit: int
    """Bytes of JSON."""


@dataclass(frozen=True, kw_only=True)
class SubmitContext:
    """Context of all submits of one application."""

    connector: Connector
    declared: Declarations
    hooks: Hooks
    observer: Observer
    waiting: Waiting = field(default_factory=dict)
    """Notifications of the open transactions of `App.transaction`."""

    def announce(self, notification: Notification | None, connection: Any) -> None:
        """Notify the nodes now, or after the commit of this connection's transaction if one is
        open. None: that transaction notifies them itself."""
        if notification is None and self.connector.on_announced is None:
            return
        if connection is None:
            self.connector.announce(notification)
            return
        task = current_task()
        if task is not None and task.connection is connection:
            task.notifications.append(notification)
        elif (waiting := self.waiting.get(id(connection))) is not None:
            waiting.append(notification)
        else:
            announce_after_commit(connection, lambda: self.connector.announce(notification))
