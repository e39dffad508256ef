"""Commands of operators in the transaction of Django's connection."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from django.db import connections

from fairlead.connections import Connections
from fairlead.connector import Connector
from fairlead.contrib.django.project import get_app
from fairlead.operate.tasks import Management
from fairlead.ports.notification import Notification
from fairlead.submit.transaction import announce_after_commit


class _Announcer:
    """A trigger channel that announces after the commit of Django's transaction."""

    def __init__(self, channel: Any, alias: str) -> None:
        self._channel = channel
        self._alias = alias

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def announce(self, notification: Notification) -> None:
        announce_after_commit(
            connections[self._alias], lambda: self._channel.announce(notification)
        )


class _InTransaction:
    """The connector of a process, whose synchronous steps run on Django's connection."""

    def __init__(self, connector: Connector, alias: str) -> None:
        self._connector = connector
        found = connector.connections
        store, database = copy.copy(found.sql_store), copy.copy(found.sql_store.database)

        def run(steps: Any) -> Any:
            return found.sql_store.database.join(connections[alias], steps)

        vars(database).update(run=run, read_now=run)
        vars(store).update(database=database)
        self.connections: Connections = found._replace(
            cluster=store, channel=_Announcer(found.channel, alias)
        )
        self.cluster = self.store = self.sql_store = store
        self.channel = self.connections.channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)


def management() -> Management:
    """Return the commands of operators, for this thread. Their writes commit with the transaction
    of Django's connection."""
    app = get_app()
    connector: Any = _InTransaction(app.connector, app.alias)
    return Management(replace(app.operate_context, connector=connector))
