"""The database of an application without a SQL database: it runs named statements of `store.cql`,
and joins no transaction."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, NoReturn

from fairlead.backends.cassandra.session import CassandraSession, CassandraUrl
from fairlead.errors import NotSupported
from fairlead.ports.statements import Row, Steps

APP = "fairlead"
"""Partition of each table of `store.cql`."""

SQL_CURE = "name one in the url of the App, or in FAIRLEAD_URL"
"""Cure for whatever needs a SQL database."""

SCHEMA = ("create_store", "create_queues", "create_nodes", "create_incidents")


class CassandraDatabase:
    """A `fairlead.ports.statements.Database` whose statements have the names of `store.cql`. Each
    statement is a transaction of its own."""

    def __init__(self, url: str) -> None:
        """Open no connection yet. Raise ConfigurationError."""
        self.url = CassandraUrl.parse(url)
        self.session = CassandraSession(self.url, "store.cql", SCHEMA)
        self.location = f"{self.url.location}/{self.url.keyspace}"

    def run(self, steps: Steps[Any]) -> Any:
        rows: list[Row] | None = None
        while True:
            try:
                step: Any = next(steps) if rows is None else steps.send(rows)
            except StopIteration as end:
                return end.value
            rows = self.session.execute_now(step.sql, step.params)

    read_now = run

    async def run_async(self, steps: Steps[Any], durable: bool = True) -> Any:
        return await asyncio.to_thread(self.run, steps)

    async def read(self, steps: Steps[Any], *, together: bool = False) -> Any:
        return await asyncio.to_thread(self.run, steps)

    def transaction(self) -> AbstractContextManager[Any]:
        self._refuse()

    def transaction_async(self) -> AbstractAsyncContextManager[Any]:
        self._refuse()

    def join(self, connection: Any, steps: Steps[Any]) -> NoReturn:
        self._refuse()

    async def join_async(self, connection: Any, steps: Steps[Any]) -> NoReturn:
        self._refuse()

    complete, complete_async = join, join_async

    async def close_async(self) -> None:
        """Do nothing: there is no connection for the event loop alone."""

    async def close_loop(self) -> None:
        """Do nothing: there is no connection for the event loop alone."""

    def close(self) -> None:
        self.session.close_now()

    @staticmethod
    def _refuse() -> NoReturn:
        raise NotSupported(
            f"an application without a SQL database joins no transaction: {SQL_CURE}"
        )
