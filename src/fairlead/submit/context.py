"""The surroundings of a submit: what the application has declared, and where its tasks live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fairlead.clock import Clock
from fairlead.connector import Connector
from fairlead.declare.current import current_task
from fairlead.declare.declarations import Declarations
from fairlead.declare.handler import RunInterceptor
from fairlead.ports.notification import Notification
from fairlead.ports.observer import Observer
from fairlead.submit.transaction import OpenTransactions, announce_after_commit


class Hooks(Protocol):
    """What an application may set at any time; read anew at each submit."""

    interceptors: Sequence[RunInterceptor]
    observer: Observer
    clock: Clock
    payload_limit: int
    """Bytes of JSON."""


@dataclass(frozen=True, kw_only=True)
class SubmitContext:
    """One per application."""

    connector: Connector
    declared: Declarations
    hooks: Hooks
    transactions: OpenTransactions

    def announce(self, notification: Notification, connection: Any) -> None:
        """Tell the nodes: now, or after the commit of this connection's transaction, by whoever
        sees that commit first."""
        if connection is None:
            self.connector.channel.announce(notification)
            return
        task = current_task()
        if task is not None and task.connection is connection:
            task.notifications.append(notification)
        elif not self.transactions.keep(connection, notification):
            announce_after_commit(connection, lambda: self.connector.channel.announce(notification))
