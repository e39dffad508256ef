"""Pool of migrated PostgreSQL databases, which tests use one after another. To create and drop a
database for each test would take longer than most tests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from fairlead import App
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.ports.statements import Statement, Steps
from services.postgres import PostgresServer

_OURS = "(SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)"

_SHAPE = (
    "SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%' ORDER BY 1",
    "SELECT relname, relkind, reloptions FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1",
    f"SELECT attrelid, attname, atttypid, atttypmod, attnotnull FROM pg_attribute WHERE attrelid IN {_OURS} ORDER BY 1, 2",
    f"SELECT adrelid, adnum, adbin::text FROM pg_attrdef WHERE adrelid IN {_OURS} ORDER BY 1, 2",
    f"SELECT indexrelid, indkey::text, indisunique, indexprs::text, indpred::text FROM pg_index WHERE indrelid IN {_OURS} ORDER BY 1",
    f"SELECT conrelid, conname, conkey, conbin::text FROM pg_constraint WHERE conrelid IN {_OURS} ORDER BY 1, 2",
    f"SELECT tgrelid, tgname FROM pg_trigger WHERE tgrelid IN {_OURS} ORDER BY 1, 2",
    "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1, 2",
    "SELECT setconfig FROM pg_db_role_setting ORDER BY 1",
    "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY 1",
    "SELECT version, name FROM fairlead_schema ORDER BY 1",
    "SELECT store_id FROM fairlead_store ORDER BY 1",
)
"""Queries of everything that a test must not change if its database is to be used again: tables with
their indexes, constraints and triggers, settings, and the two tables that `migrate` fills."""

_ALONE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

_KEPT = {"fairlead_schema", "fairlead_store"}


T = TypeVar("T")


def beside_an_open_transaction(
    database: PostgresDatabase, first: Steps[Any], second: Steps[T]
) -> tuple[Any, T]:
    """Run the second transaction beside the first one, which commits once the second waits for it or
    has ended. Return the results of both."""
    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as connection:
            result = database.join(connection, first)
            running = pool.submit(database.run, second)
            while not running.done() and not database.read_now(_is_waiting()):
                pass
        return result, running.result()


def _is_waiting() -> Steps[bool]:
    return bool((yield Statement("SELECT 1 FROM pg_locks WHERE NOT granted")))


class Databases:
    """Pool of migrated databases on one server. A database that a test changed in more than its
    rows is not used again."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        url = server.create_database()
        application = App(url)
        application.migrate()
        application.close()
        server.disconnect(url)
        with psycopg.connect(url, autocommit=True) as connection:
            self._shape = _shape(connection)
            kinds = connection.execute(_SHAPE[1]).fetchall()
        self._tables = [name for name, kind, _ in kinds if kind == "r" and name not in _KEPT]
        self._sequences = [name for name, kind, _ in kinds if kind == "S"]
        self._template = url.rpartition("/")[2]
        self._spare: list[str] = []

    def take(self) -> str:
        """Return the URL of a migrated database without rows."""
        return self._spare.pop() if self._spare else self._server.create_database(self._template)

    def release(self, url: str) -> None:
        """Close all connections to the database, and put it back into the pool if its schema is
        unchanged."""
        if self._server.pid is None:
            return
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_ALONE)
            is_as_it_was = _shape(connection) == self._shape
            if is_as_it_was:
                self._empty(connection)
        if is_as_it_was:
            self._spare.append(url)

    def _empty(self, connection: Any) -> None:
        looks = [
            sql.SQL("SELECT {} WHERE EXISTS (SELECT FROM {})").format(table, sql.Identifier(table))
            for table in self._tables
        ]
        filled = [
            sql.Identifier(row[0]) for row in connection.execute(sql.SQL(" UNION ALL ").join(looks))
        ]
        if filled:
            connection.execute(
                sql.SQL("TRUNCATE {} RESTART IDENTITY").format(sql.SQL(", ").join(filled))
            )
        restarts = [
            sql.SQL("ALTER SEQUENCE {} RESTART").format(sql.Identifier(name))
            for name in self._sequences
        ]
        connection.execute(sql.SQL("; ").join(restarts))


def _shape(connection: Any) -> Any:
    # All databases are copies of the template, so their tables have the same ids.
    each = ", ".join(f"(SELECT json_agg(found) FROM ({query}) AS found)" for query in _SHAPE)
    return connection.execute(f"SELECT {each}").fetchone()
