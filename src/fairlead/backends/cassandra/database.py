"""The database of an application without a SQL database: it runs named statements of
`store.cql`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.backends.cassandra.session import CassandraSession, CassandraUrl
from fairlead.backends.memory.database import PlainDatabase
from fairlead.ports.statements import Row

APP = "fairlead"
"""Partition of each table of `store.cql`."""

SCHEMA = ("create_store", "create_queues", "create_nodes", "create_incidents")


class CassandraDatabase(PlainDatabase):
    """A `fairlead.ports.statements.Database` whose statements have the names of `store.cql`. Each
    statement is a transaction of its own."""

    def __init__(self, url: str) -> None:
        """Open no connection yet. Raise ConfigurationError."""
        self.url = CassandraUrl.parse(url)
        super().__init__(f"{self.url.location}/{self.url.keyspace}")
        self.session = CassandraSession(self.url, "store.cql", SCHEMA)

    def execute(self, step: Any) -> Sequence[Row]:
        return self.session.execute_now(step.sql, step.params)

    def close(self) -> None:
        self.session.close_now()
