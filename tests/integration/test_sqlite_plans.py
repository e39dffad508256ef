"""SQLite finds the rows of every frequent statement by an index, whatever its statistics say."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.backends.sql.sql_file import load
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.backends.sqlite.task_store import SqliteTaskStore
from tests.integration import plans

GROWING = plans.GROWING | {"fairlead_actions", "fairlead_audit"}
FIRST = "reads the first rows of the order, up to a limit"
PEOPLE = "counts all tasks, for people"
FEW_ROWS = "the table has a row for each bulk action of a person, and is cleaned"
SCANS = {
    "task_store.lanes": "reads the first row, then walks from lane to lane",
    "task_store.oldest_ready": "begins as task_store.lanes",
    "task_store.clean_attempts": FIRST,
    "task_store.clean_events": FIRST,
    "task_store.has_retry": "reads the waiting tasks in their order; retries are among the first",
    "task_store.queue_counts": PEOPLE,
    "task_store.unfinished": "counts all tasks, for a node that drains its queues",
    "task_reads.runs": FIRST,
    "task_reads.range": FIRST,
    "task_reads.backlog": "runs only if the table has few rows",
    "audit.entries": "reads the last rows of the order, up to a limit, for people",
    "audit.has_old": FIRST,
    "audit.clean": FIRST,
    "actions.actions": FEW_ROWS,
    "actions.unperformed": FEW_ROWS,
    "actions.has_old": FEW_ROWS,
    "actions.clean": FEW_ROWS,
    "incidents.undelivered": FIRST,
    "incidents.counts": "counts all incidents, which are open",
}
"""Statements that may scan a growing table, each with the reason."""

BATCH = "sorts the rows of a batch"
PAGE = "sorts the rows of a page"
OF_ONE = "sorts the rows of one task"
KEYS = "groups rows that are read anyway"
SORTS = {
    "task_store.ready_of": PAGE,
    "task_store.ordered": PAGE,
    "task_store.ids_after": PAGE,
    "task_store.held_by": "sorts the claimed tasks of lost nodes",
    "task_store.stuck": "sorts claimed tasks",
    "task_store.attempts": OF_ONE,
    "task_store.progress": OF_ONE,
    "task_store.nodes": "sorts the nodes",
    "task_store.oldest_ready": "groups the lanes",
    "task_store.queue_counts": KEYS,
    "task_store.heaviest_keys": KEYS,
    "task_reads.backlog": KEYS,
    "task_reads.backlog_of": KEYS,
    "task_reads.errors": PAGE,
    "task_reads.tasks_of_oldest": BATCH,
    "task_reads.sizes_of_oldest": BATCH,
    "task_reads.ids_of_oldest": BATCH,
    "task_reads.tasks_of_newest": BATCH,
    "task_reads.sizes_of_newest": BATCH,
    "task_reads.ids_of_newest": BATCH,
    "backlog.ahead": PAGE,
    "task_reads.running": "sorts claimed tasks",
    "history.ended": KEYS,
    "incidents.counts": KEYS,
    "incidents.undelivered": PAGE,
    "incidents.open": PAGE,
    "schedule.append": BATCH,
    "schedule.append_attempts": BATCH,
    "schedule.receive": PAGE,
    "schedule.read": PAGE,
    "schedule.read_of": PAGE,
}
"""Statements that may sort rows, each with the reason why these are few."""

FILES = ("backlog", "history", "incidents", "periodic", "schedule")
OPERATE_FILES = ("actions", "audit", "ended_sessions", "policies")
PARTS = {
    "task_store.walk",
    "task_store.run",
    "task_store.run_of_t",
    "task_reads.matching",
    *(f"task_reads.{columns}" for columns in ("tasks", "sizes", "ids", "finished", "ends")),
    *(f"task_reads.{rows}" for rows in ("in_range", "of", "in_history")),
    *(f"task_reads.matching_{rows}" for rows in ("tasks", "attempts")),
    *(
        f"task_reads.{order}_first"
        for order in ("oldest_task", "newest_task", "oldest_end", "newest_end")
    ),
}
"""Parts of statements, which are not complete alone."""

TABLE = re.compile(r"\b(fairlead_\w+)(?:\s+AS)?\s+(\w+)", re.IGNORECASE)
FAULT = re.compile(r"^(SCAN) (\w+)|^(USE TEMP B-TREE)")


def _statements(store: SqliteTaskStore) -> Iterator[tuple[str, str]]:
    for name, sql in store.sql.items():
        yield f"task_store.{name}", sql
    for name, sql in store.reads.sql.items():
        yield f"task_reads.{name}", sql
    for file in FILES:
        for name, sql in load(f"{file}.sql", "fairlead.backends.sqlite").items():
            yield f"{file}.{name}", sql
    for file in OPERATE_FILES:
        for name, sql in load(f"sqlite/{file}.sql", "fairlead.operate.store").items():
            yield f"{file}.{name}", sql


FILL = (
    """
INSERT INTO fairlead_tasks (id, queue, partition, name, state, priority, fairness_key, weight, ordering_key, unique_key, keep_result,
       submitted_at, run_at, ready_at, ready_seq, trigger_path, payload_format, payload, order_at)
SELECT 'a' || n, 'mail', 0, 'send', CASE WHEN n % 4 > 0 THEN 'SUBMITTED' ELSE 'WAITING' END, 5,
       CASE WHEN n % 2 > 0 THEN 'key-' || n % 100 ELSE '' END, 1, CASE WHEN n % 3 = 0 THEN 'key-' || n % 100 END, 'u' || n, 0, n, n, n,
       CASE WHEN n % 4 > 0 THEN n END, 'hook', 'json', CAST('{}' AS BLOB), CASE WHEN n % 3 = 0 THEN n END
  FROM numbers
""",
    """
INSERT INTO fairlead_attempts (task_id, attempt, tries, queue, name, partition, priority, fairness_key, weight, version,
       submitted_at, run_at, finished_at, outcome, next_state, trigger_path, payload_bytes)
SELECT 'a' || n, 1, 1, 'mail', 'send', 0, 5, '', 1, 1, n, n, n, 'done', 'DONE', 'hook', 0 FROM numbers
""",
    """
INSERT INTO fairlead_events (task_id, version, kind, at, queue, name, fairness_key, weight, priority, run_at)
SELECT 'a' || n, 1, 'changed', n, 'mail', 'send', '', 1, 5, n FROM numbers
""",
    "INSERT INTO fairlead_results (task_id, finished_at, result) SELECT 'a' || n, n, CAST('1' AS BLOB) FROM numbers",
    "INSERT INTO fairlead_run_notes (task_id, attempt, began_at) SELECT 'a' || n, 1, n FROM numbers",
    "INSERT INTO fairlead_unique_keys SELECT 'mail', 'u' || n, 'a' || n, n, 1 FROM numbers",
    """
INSERT INTO fairlead_incidents (kind, subject, version, queue, name, since, seen_at, details, deliver_at, delivered_at)
SELECT CASE WHEN n % 10 > 0 THEN 'stuck' ELSE 'error' END, 'a' || n, 1, 'mail', 'send', n, n, '', n,
       CASE WHEN n % 9 > 0 THEN n END
  FROM numbers
""",
    """
INSERT INTO fairlead_backlog (queue, partition, priority, pass, id, task_id, version, name, fairness_key, weight, seq, order_at)
SELECT 'mail', 0, 5, n, n, 'a' || n, 1, 'send', 'key-' || n % 100, 1, n, 0 FROM numbers
""",
    "INSERT INTO fairlead_task_log (queue, partition, message) SELECT 'mail', 0, '{}' FROM numbers",
    """
INSERT INTO fairlead_schedule (queue, partition, run_at, ordering_key, unique_key, id, task)
SELECT 'mail', 0, n, 'key-' || n % 100, 'u' || n, 'a' || n, '{}' FROM numbers
""",
    """
INSERT INTO fairlead_completions (queue, partition, run_at, ordering_key, unique_key, finished_at)
SELECT 'mail', 0, n, 'key-' || n % 100, 'u' || n, n FROM numbers
""",
    """
INSERT INTO fairlead_actions (verb, change, filter, actor, asked_at, state) SELECT 'retry', '{}', '{}', 'me', n, 'done' FROM numbers
""",
    """
INSERT INTO fairlead_audit (at, actor, verb, outcome, task_id, tenant)
SELECT n, 'person-' || n % 10, 'retry', 'done', 'a' || n, 'tenant-' || n % 10 FROM numbers
""",
)
"""Statements that fill the tables with as many rows as `numbers`."""


def _fill(connection: sqlite3.Connection, rows: int) -> None:
    numbers = (
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)"
    )
    connection.execute("BEGIN")
    for table in sorted(GROWING):
        connection.execute(f"DELETE FROM {table}")
    for statement in FILL:
        connection.execute(f"{numbers} {statement}", (rows,))
    connection.execute("COMMIT")


def _faults(connection: sqlite3.Connection, sql: str) -> Iterator[str]:
    """Yield the parts of the plan that read a whole table, or sort."""
    count = max(map(int, re.findall(r"\?(\d+)", sql)), default=0)
    names = {alias.lower(): table for table, alias in TABLE.findall(sql)}
    names |= {table: table for table in GROWING}
    for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * count):
        found = FAULT.match(detail)
        if found and (found[3] or names.get(found[2].lower()) in GROWING):
            yield detail


@pytest.mark.parametrize("statistics", ["none", "empty", "few", "many"])
def test_no_frequent_statement_scans_a_growing_table(tmp_path: Path, statistics: str) -> None:
    store = SqliteTaskStore(SqliteDatabase(tmp_path / "tasks.db"))
    store.keeps_levels = True
    store.prepare()
    if statistics in ("empty", "few"):
        with store.database.connection() as connection:
            connection.execute("CREATE TABLE users (name TEXT)")
            connection.execute("INSERT INTO users VALUES ('ada')")
            if statistics == "few":
                _fill(connection, 10)
            connection.execute("ANALYZE")
        store.database.close()
        store = SqliteTaskStore(SqliteDatabase(tmp_path / "tasks.db"))
        store.prepare()
        with store.database.connection() as connection:
            assert connection.execute("SELECT tbl FROM sqlite_stat1").fetchall() == [("users",)]
    with store.database.connection() as connection:
        _fill(connection, 2000)
        if statistics == "many":
            connection.execute("ANALYZE")
        found = [
            f"{name}: {fault}"
            for name, sql in _statements(store)
            if name not in PARTS
            for fault in _faults(connection, sql)
            if name not in (SCANS if fault.startswith("SCAN") else SORTS)
        ]
    store.database.close()
    assert not found, "\n".join(found)
