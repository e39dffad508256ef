"""Costs of SQLite statements, in steps of SQLite's virtual machine: they do not grow with the
number of tasks."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.backends.sqlite.task_store import SqliteTaskStore
from fairlead.testing.contract.tasks import NOW, make, submit

FEW, MANY = 100, 1000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteTaskStore]:
    store = SqliteTaskStore(SqliteDatabase(tmp_path / "tasks.db"))
    store.migrate()
    yield store
    store.database.close()


def steps(store: SqliteTaskStore, name: str, *params: object) -> int:
    """Return the number of steps that the statement takes, and undo what it does."""
    count = 0

    def counted() -> int:
        nonlocal count
        count += 1
        return 0

    connection: sqlite3.Connection = store.database.connect()
    try:
        connection.execute("BEGIN")
        connection.set_progress_handler(counted, 1)
        connection.execute(store.sql[name], params).fetchall()
        connection.set_progress_handler(None, 0)
        connection.execute("ROLLBACK")
    finally:
        connection.close()
    return count


@pytest.mark.parametrize("key", ["", "acme"])
@pytest.mark.parametrize("name", ["lanes", "oldest_ready"])
def test_a_search_of_all_lanes_costs_no_more_when_they_have_more_tasks(
    store: SqliteTaskStore, name: str, key: str
) -> None:
    for partition in range(3):
        submit(store, make(FEW, partition=partition, fairness_key=key))
    few = steps(store, name)
    submit(store, make(MANY, partition=1, fairness_key=key))
    assert steps(store, name) == few


@pytest.mark.parametrize("key", ["", "acme"])
def test_a_read_of_a_lane_costs_no_more_when_more_tasks_of_other_keys_wait(
    store: SqliteTaskStore, key: str
) -> None:
    submit(store, make(FEW, fairness_key="acme") + make(FEW))
    few = steps(store, "ready", "mail", 0, 5, 0, FEW)
    submit(store, make(MANY, fairness_key=key))
    assert steps(store, "ready", "mail", 0, 5, 0, FEW) == few


def test_a_claim_costs_no_more_when_more_tasks_of_its_ordering_key_wait(
    store: SqliteTaskStore,
) -> None:
    with store.database.connection() as connection:
        facts = (1, "0.1.0", "3.12.0")
        connection.execute(store.sql["register_node"], ("node", NOW, "[]", "[]", "", *facts))
    tasks = make(FEW, ordering_key="acme")
    submit(store, tasks)
    given = (f'[["{tasks[0].id}", 1]]', "node", NOW, "hook", NOW, 0)
    few = steps(store, "claim", *given)
    submit(store, make(MANY, ordering_key="acme"))
    assert steps(store, "claim", *given) == few


@pytest.mark.parametrize("name", ["note_events", "move_tasks", "change_tasks", "end_tasks"])
def test_a_bulk_change_costs_no_more_beside_more_tasks(store: SqliteTaskStore, name: str) -> None:
    tasks = make(FEW)
    submit(store, tasks)
    given = json.dumps([(task.id, 1, 9_000_000 + n) for n, task in enumerate(tasks)])
    params: dict[str, tuple[object, ...]] = {
        "note_events": (given, "resumed", NOW, NOW, None),
        "move_tasks": (given, "SUBMITTED", NOW, NOW, 1),
        "change_tasks": (given, 3, None, NOW),
        "end_tasks": (given,),
    }
    few = steps(store, name, *params[name])
    submit(store, make(MANY))
    assert steps(store, name, *params[name]) == few
