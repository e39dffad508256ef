"""Pool of migrated keyspaces in Cassandra, which tests use one after another. A change of the schema
takes longer than most tests, and each driver reads all tables of the server when it connects."""

from __future__ import annotations

from typing import Any

from services.cassandra import CassandraServer

_SHAPE = (
    "SELECT * FROM system_schema.keyspaces WHERE keyspace_name = %s",
    "SELECT * FROM system_schema.tables WHERE keyspace_name = %s",
    "SELECT * FROM system_schema.columns WHERE keyspace_name = %s",
    "SELECT * FROM system_schema.indexes WHERE keyspace_name = %s",
)
"""Queries of everything that a test must not change if its keyspace is to be used again."""

_WRITES = "SELECT keyspace_name, table_name, count FROM system_views.local_write_latency"

_WAIT = 600.0
"""Seconds to wait for a response; long, because changes wait for each other."""


class Keyspaces:
    """Pool of keyspaces with all tables on one server. A keyspace that a test changed in more than its
    rows is not used again."""

    def __init__(self, server: CassandraServer) -> None:
        self._server = server
        self._session = server.connect()
        self._shapes: dict[str, Any] = {}
        self._writes: dict[str, dict[str, int]] = {}
        """Number of writes to each table when it was empty, by keyspace."""
        self._spare: list[str] = []

    def take(self) -> str:
        """Return the URL of a keyspace with all tables and without rows."""
        while self._spare:
            url = self._spare.pop()
            if self._shape(_name(url)) == self._shapes[url]:
                self._empty(url)
                return url
        return self._make()

    def release(self, url: str) -> None:
        """Put the keyspace back into the pool."""
        self._spare.append(url)

    def close(self) -> None:
        """Close the connections."""
        self._session.cluster.shutdown()

    def _make(self) -> str:
        from fairlead.backends.cassandra.backlog import CassandraBacklogStore
        from fairlead.backends.cassandra.cluster import CassandraCluster

        url = self._server.create_keyspace(is_durable=False)
        tasks = CassandraCluster(url)
        tasks.migrate()
        tasks.database.close()
        CassandraBacklogStore(url).session.migrate_now()
        self._shapes[url] = self._shape(_name(url))
        self._writes[url] = {}
        self._empty(url)
        return url

    def _empty(self, url: str) -> None:
        """Truncate the tables that were written since they were empty."""
        keyspace, known = _name(url), self._writes[url]
        for name, table, count in self._session.execute(_WRITES, timeout=_WAIT):
            if name == keyspace and count != known.get(table, 0):
                self._session.execute(f"TRUNCATE {keyspace}.{table}", timeout=_WAIT)
                known[table] = count

    def _shape(self, keyspace: str) -> Any:
        return [self._session.execute(query, (keyspace,), timeout=_WAIT).all() for query in _SHAPE]


def _name(url: str) -> str:
    return url.rpartition("/")[2]
