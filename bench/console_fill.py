"""A big task table for benchmarks of the console: real rows of each state, copied by statements of
the database until the tables have the wanted sizes.

The copies differ in id, fairness key, ordering key, time and position. Nothing runs them; they are
there to be looked at.
"""

from __future__ import annotations

import sqlite3
import time
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

TENANTS = 1_000
KEYS = 10_000
CHUNK = 1_000_000
"""Rows that one statement writes."""

INCIDENTS = """
INSERT INTO fairlead_incidents (kind, subject, version, queue, name, since, seen_at, details,
       deliver_at, delivered_at)
SELECT 'error', {id}, version, queue, name, run_at, run_at, error_text, run_at, run_at
  FROM fairlead_tasks
 WHERE state = 'ERROR'
ON CONFLICT DO NOTHING
"""
"""Each task in ERROR has an incident."""


def fill(url: str, tasks: int, attempts: int) -> None:
    """Copy the tasks and attempts that are in the store until there are so many more."""
    open_store = _postgres if urlsplit(url).scheme.startswith("postgres") else _sqlite
    open_store(url, tasks, attempts)


def _postgres(url: str, tasks: int, attempts: int) -> None:
    # Ids are UUIDv7 whose times go on by one millisecond for each row.
    new_id = (
        "(lpad(to_hex(%(ms)s + n), 12, '0') || '7000' || '8000' || lpad(to_hex(n), 12, '0'))::uuid"
    )
    key = "'tenant-' || (n %% %(tenants)s) || '/key-' || (n %% %(keys)s)"
    following = "CASE WHEN t.{} IS NULL THEN NULL ELSE nextval('fairlead_ready_seq') END"
    changed = {
        "fairlead_tasks": {
            "id": new_id,
            "fairness_key": key,
            "ordering_key": "t.ordering_key || n",
            "unique_key": "NULL",
            **{name: following.format(name) for name in ("ready_seq", "due_seq", "order_seq")},
        },
        "fairlead_attempts": {
            "task_id": new_id,
            "fairness_key": key,
            "finished_at": "t.finished_at - %(count)s + n",
        },
    }
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for table, count in (("fairlead_tasks", tasks), ("fairlead_attempts", attempts)):
            connection.execute(
                sql.SQL("CREATE TEMP TABLE template AS SELECT row_number() OVER () - 1 AS nr, t.*"
                        " FROM {} t").format(sql.Identifier(table))
            )  # fmt: skip
            columns = [
                name
                for (name,) in connection.execute(
                    "SELECT column_name FROM information_schema.columns WHERE table_name = %s"
                    " AND column_name NOT IN ('xid', 'seq') ORDER BY ordinal_position",
                    (table,),
                )
            ]
            values = [changed[table].get(name, f't."{name}"') for name in columns]
            copy = (
                f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)}"
                " FROM generate_series(%(low)s::bigint, %(high)s::bigint) n"
                " JOIN template t ON t.nr = n %% (SELECT count(*) FROM template)"
            )
            _in_chunks(
                count, lambda bounds, copy=copy: connection.execute(copy, {**bounds, "keys": KEYS})
            )
            connection.execute("DROP TABLE template")
        connection.execute(INCIDENTS.format(id="id::text"))
        for table in changed:
            connection.execute(sql.SQL("VACUUM (ANALYZE) {}").format(sql.Identifier(table)))


def _sqlite(url: str, tasks: int, attempts: int) -> None:
    new_id = (
        "printf('%s-%s-7000-8000-%012x', substr(printf('%012x', :ms + n), 1, 8),"
        " substr(printf('%012x', :ms + n), 9), n)"
    )
    key = "printf('tenant-%d/key-%d', n % :tenants, n % :keys)"
    ready = "CASE WHEN t.ready_seq IS NULL THEN NULL ELSE :first + n END"
    changed = {
        "fairlead_tasks": {
            "seq": ":first + n",
            "id": new_id,
            "fairness_key": key,
            "ordering_key": "t.ordering_key || n",
            "unique_key": "NULL",
            "ready_seq": ready,
        },
        "fairlead_attempts": {
            "task_id": new_id,
            "fairness_key": key,
            "finished_at": "t.finished_at - :count + n",
        },
    }
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("PRAGMA synchronous = off")
    (first,) = connection.execute("SELECT value + 1 FROM fairlead_sequence").fetchone()
    connection.execute("UPDATE fairlead_sequence SET value = value + 1 + ?", (tasks,))
    for table, count in (("fairlead_tasks", tasks), ("fairlead_attempts", attempts)):
        connection.execute(
            "CREATE TEMP TABLE template AS SELECT row_number() OVER () - 1 AS nr, t.*"
            f" FROM {table} t"
        )
        columns = [
            row[1]
            for row in connection.execute(f"PRAGMA table_info({table})")
            if row[1] != "seq" or "seq" in changed[table]
        ]
        values = [changed[table].get(name, f't."{name}"') for name in columns]
        copy = (
            "WITH RECURSIVE numbers(n) AS (SELECT :low UNION ALL SELECT n + 1 FROM numbers"
            f" WHERE n < :high) INSERT INTO {table} ({', '.join(columns)})"
            f" SELECT {', '.join(values)} FROM numbers JOIN template t"
            " ON t.nr = n % (SELECT count(*) FROM template)"
        )
        _in_chunks(
            count,
            lambda bounds, copy=copy: connection.execute(
                copy, {**bounds, "keys": KEYS, "first": first}
            ),
        )
        connection.execute("DROP TABLE template")
    connection.execute(INCIDENTS.format(id="id"))
    connection.execute("ANALYZE")
    connection.close()


def _in_chunks(count: int, write: Any) -> None:
    since = int(time.time() * 1000) - count
    for low in range(0, count, CHUNK):
        high = min(low + CHUNK, count) - 1
        write({"low": low, "high": high, "ms": since, "count": count, "tenants": TENANTS})
