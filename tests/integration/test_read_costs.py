"""Costs of the reads for consoles on a long table: they do not grow with the number of rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.task_store import PostgresTaskStore
from fairlead.backends.sql.drivers import drive, executor
from fairlead.backends.sql.task_reads import MOST_SAMPLED, MOST_WALKED
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.backends.sqlite.task_store import SqliteTaskStore
from fairlead.model import ArgumentFilter, State
from fairlead.ports.statements import Row, Step
from fairlead.ports.task_records import TaskFilter
from services.postgres import PostgresServer
from tests.integration.plans import Explainer, do

ROWS = 200_000
FILTERS = {
    "none": TaskFilter(),
    "a name that no task has": TaskFilter(name="nothing"),
    "a fairness key": TaskFilter(fairness_key="t7/x"),
    "a tenant": TaskFilter(tenants=("t7",)),
    "a tenant that has no task": TaskFilter(tenants=("nobody",)),
    "an ordering key": TaskFilter(ordering_key="o7"),
    "an ordering key with many tasks": TaskFilter(queue="mail", ordering_key="o0"),
    "a unique key": TaskFilter(unique_key="u7"),
    "an argument": TaskFilter(argument=ArgumentFilter(("n",), "no")),
    "the state WAITING": TaskFilter(state=State.WAITING),
    "the state ERROR": TaskFilter(state=State.ERROR),
    "finished, of a tenant that has none": TaskFilter(state=State.DONE, tenants=("nobody",)),
    "finished": TaskFilter(state=State.DONE),
}
FILL_TASKS = """
INSERT INTO fairlead_tasks (id, queue, partition, name, state, priority, fairness_key, weight, ordering_key, unique_key,
       keep_result, submitted_at, run_at, ready_at, triggered_at, ready_seq, payload_format, payload, order_at{more})
SELECT {id}, 'mail', n % 4, 'send', 'SUBMITTED', 5, 't' || n || '/x', 1, CASE WHEN n % 2 = 0 THEN 'o0' ELSE 'o' || n END,
       'u' || n, {false}, n, n, n, n, n, 'json', {payload}, n{values}
  FROM {series}
"""
FILL_KEYS = """
INSERT INTO fairlead_unique_keys (queue, unique_key, task_id, submitted_at)
SELECT queue, unique_key, id, submitted_at FROM fairlead_tasks
"""
FILL_ATTEMPTS = """
INSERT INTO fairlead_attempts (task_id, attempt, tries, queue, name, partition, priority, fairness_key, weight, version,
       submitted_at, run_at, ready_at, claimed_at, started_at, finished_at, outcome, next_state, trigger_path, payload_bytes)
SELECT id, 1, 1, queue, name, partition, priority, fairness_key, weight, 1, submitted_at, run_at, ready_at, ready_at + 5,
       ready_at + 6, ready_at + 9, 'done', 'DONE', 'hook', 10
  FROM fairlead_tasks
"""


@pytest.fixture(scope="module")
def sqlite_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteTaskStore]:
    path: Path = tmp_path_factory.mktemp("long") / "tasks.db"
    store = SqliteTaskStore(SqliteDatabase(path))
    store.migrate()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    tasks = FILL_TASKS.format(
        id="printf('01938d2c-0000-7000-8000-%012x', n)",
        false="0",
        payload="CAST('{\"n\": ' || n || '}' AS BLOB)",
        series=f"(WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {ROWS})"
        " SELECT n FROM s)",
        more=", trigger_path",
        values=", 'hook'",
    )
    for statement in (tasks, FILL_KEYS, FILL_ATTEMPTS):
        connection.execute(statement)
    connection.commit()
    connection.close()
    yield store
    store.database.close()


@pytest.fixture(scope="module")
def postgres_store(postgres_server: PostgresServer) -> Iterator[PostgresTaskStore]:
    database = PostgresDatabase(postgres_server.create_database())
    store = PostgresTaskStore(database)
    store.migrate()
    with database.connection() as connection:
        tasks = FILL_TASKS.format(
            id="('01938d2c-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid",
            false="false",
            payload="convert_to('{\"n\": ' || n || '}', 'UTF8')",
            series=f"generate_series(1, {ROWS}) AS n",
            more="",
            values="",
        )
        for statement in (tasks, FILL_KEYS, FILL_ATTEMPTS):
            connection.execute(statement)
    with database.connect() as connection:
        connection.autocommit = True
        connection.execute("VACUUM ANALYZE")
    yield store
    database.close()


class _Steps:
    """Runs steps on SQLite, and counts the steps of its virtual machine."""

    def __init__(self, store: SqliteTaskStore) -> None:
        self.count = 0
        self._connection = store.database.connect()

    def __call__(self, step: Step) -> Sequence[Row]:
        def counted() -> int:
            self.count += 1
            return 0

        self._connection.set_progress_handler(counted, 100)
        try:
            return executor(self._connection)(step)
        finally:
            self._connection.set_progress_handler(None, 0)


def _run(store: SqliteTaskStore, steps: Any) -> tuple[Any, int]:
    """Return the result of steps, and the hundreds of steps of SQLite's machine that they took."""
    counter = _Steps(store)
    result = drive(steps, counter)
    return result, counter.count


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("name", FILTERS)
def test_a_page_on_sqlite_walks_over_few_rows(
    sqlite_store: SqliteTaskStore, name: str, newest_first: bool
) -> None:
    page, took = _run(sqlite_store, sqlite_store.reads.page(FILTERS[name], 50, newest_first))
    # A full walk takes below 100 steps for each row; a scan of the table passes ten times as many rows.
    assert took * 100 < 100 * MOST_WALKED, took
    assert len(page.tasks) <= 50


@pytest.mark.parametrize("read", ["runs", "backlog", "errors", "mark"])
def test_other_reads_on_sqlite_read_few_rows(sqlite_store: SqliteTaskStore, read: str) -> None:
    reads = sqlite_store.reads
    steps: Any = {
        "runs": reads.runs(10_000),
        "backlog": reads.backlog(),
        "errors": reads.errors(1000),
        "mark": reads.mark(),
    }
    found, took = _run(sqlite_store, steps[read])
    assert took * 100 < 100 * MOST_WALKED, took
    if read == "backlog":
        estimated = sum(count.tasks for count in found.counts) * found.factor
        assert ROWS * 0.9 < estimated < ROWS * 1.1
        assert len(found.counts) <= MOST_SAMPLED


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("name", FILTERS)
def test_a_page_on_postgres_walks_over_few_rows(
    postgres_store: PostgresTaskStore, name: str, newest_first: bool
) -> None:
    with postgres_store.database.connect() as connection:
        explain = Explainer(connection)
        do(postgres_store.reads.page(FILTERS[name], 50, newest_first), explain)
    _check(explain)


@pytest.mark.parametrize("read", ["runs", "backlog", "errors", "settings", "mark"])
def test_other_reads_on_postgres_read_few_rows(
    postgres_store: PostgresTaskStore, read: str
) -> None:
    reads = postgres_store.reads
    steps: Any = {
        "runs": reads.runs(10_000),
        "backlog": reads.backlog(),
        "errors": reads.errors(1000),
        "mark": reads.mark(),
        "settings": reads.key_settings([("mail", f"t{n}") for n in range(1000)]),
    }
    with postgres_store.database.connect() as connection:
        explain = Explainer(connection)
        found = do(steps[read], explain)
    _check(explain)
    if read == "backlog":
        estimated = sum(count.tasks for count in found.counts) * found.factor
        assert ROWS * 0.8 < estimated < ROWS * 1.2


def _check(explain: Explainer) -> None:
    """Fail if a statement has read more than a page may."""
    for finding in explain.findings:
        for node in finding.nodes:
            assert node.removed <= MOST_WALKED, finding.text
            assert node.returned <= 3 * MOST_WALKED, finding.text
