"""A node registers on PostgreSQL at the moment at which another node drops it."""

from __future__ import annotations

import threading

import psycopg

from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.task_store import PostgresTaskStore
from fairlead.testing.contract.tasks import FACTS, NOW, SECOND


def wait_until_blocked(connection: psycopg.Connection) -> None:
    """Return when another session waits for a lock of this one."""
    query = "SELECT 1 FROM pg_locks WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
    while not connection.execute(query).fetchall():
        pass


def test_a_node_that_is_dropped_while_it_registers_learns_it_from_its_next_heartbeat(
    migrated_postgres_url: str,
) -> None:
    database = PostgresDatabase(migrated_postgres_url)
    store = PostgresTaskStore(database)
    database.run(store._register_node("one", "[]", "[]", NOW, FACTS))
    drop = threading.Thread(target=lambda: database.run(store._drop_node("one")))
    with database.connection() as connection:
        with connection.transaction():
            database.join(connection, store._register_node("one", "[]", "[]", NOW + SECOND, FACTS))
            drop.start()
            wait_until_blocked(connection)
        drop.join()
        left = connection.execute("SELECT node FROM fairlead_heartbeats").fetchall()
    assert database.run(store.nodes()) == []
    assert not database.run(store._heartbeat("one", NOW + SECOND))
    assert left == []
    database.close()
