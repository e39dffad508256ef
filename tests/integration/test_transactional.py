"""Transactional handlers: all or nothing, and no try is spent before a handler begins."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import pytest

import fairlead
from fairlead import App, Fixed, NoRetry, State
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.clock import MICROS
from fairlead.engine.executors.invocation import Invocation
from fairlead.engine.node import Node
from fairlead.engine.run import CancelReason, Run
from fairlead.testing import drain, running, settled
from tests.attempts import SOON, of_kind, outcomes
from tests.waiting import until

pytestmark = pytest.mark.virtual_time


def declare(app: App, kind: str, call: Callable[[], None], **options: Any) -> Any:
    """Declare a transactional task `effect`, asynchronous or in a thread, that does `call`."""
    effect = of_kind(kind, lambda connection: call())
    return app.task(transactional=True, name="effect", **options)(effect)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_transactional_handler_commits_all_or_nothing(app: App, kind: str) -> None:
    @app.task
    async def follow(n: int) -> None: ...

    fail_once = {1: True}

    def judge(n: int) -> None:
        if fail_once.pop(n, False):
            raise ValueError("after the write")

    if kind == "async":

        @app.task(transactional=True, retry=Fixed(0, max_attempts=3))
        async def effect(n: int, connection) -> None:
            done = connection.execute(f"INSERT INTO effects VALUES ({n})")
            if asyncio.iscoroutine(done):
                await done
            await follow.submit_async(n=n)
            judge(n)

    else:

        @app.task(transactional=True, retry=Fixed(0, max_attempts=3))
        def effect(n: int, connection) -> None:
            connection.execute(f"INSERT INTO effects VALUES ({n})")
            follow.submit(n=n)
            judge(n)

    with app.store.database.transaction() as connection:
        connection.execute("CREATE TABLE effects (n integer)")
    handles = effect.submit_many([{"n": 1}, {"n": 2}])
    await drain(app)
    with app.store.database.transaction() as connection:
        assert sorted(row[0] for row in connection.execute("SELECT n FROM effects").fetchall()) == [
            1,
            2,
        ]
        runs = connection.execute(
            "SELECT count(*) FROM fairlead_attempts WHERE name = 'follow'"
        ).fetchall()
    assert runs[0][0] == 2
    assert outcomes(app, handles[0]) == ["retried", "done"]


@pytest.mark.stores
@pytest.mark.parametrize(
    "check", ["", " DEFERRABLE INITIALLY DEFERRED"], ids=["at once", "deferred"]
)
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_handler_that_violates_a_foreign_key_is_not_done(
    app: App, kind: str, check: str
) -> None:
    customer = iter([7, 1])

    def order(connection: Any) -> Any:
        return connection.execute(f"INSERT INTO orders VALUES ({next(customer)})")

    with app.store.database.transaction() as connection:
        connection.execute("CREATE TABLE customers (id integer PRIMARY KEY)")
        connection.execute("INSERT INTO customers VALUES (1)")
        connection.execute(f"CREATE TABLE orders (customer integer REFERENCES customers{check})")
    task = app.task(transactional=True, retry=Fixed(0, max_attempts=2))(of_kind(kind, order))
    handle = task.submit()
    await drain(app)
    assert outcomes(app, handle) == ["retried", "done"]
    failed = app.management.attempts(handle.id)[0]
    assert "FOREIGN KEY" in str(failed.error_text).upper()
    with app.store.database.transaction() as connection:
        assert [*connection.execute("SELECT customer FROM orders").fetchall()[0]] == [1]


class Refusals(fairlead.Interceptor):
    """Let a store refuse new transactions during the first `count` runs."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.refusal: Any = None
        self.message = "database is locked"

    @contextmanager
    def running(self, task: fairlead.CurrentTask) -> Iterator[None]:
        if self.left == 0:
            yield
            return
        self.left -= 1
        with self.refusal():
            yield


def refusing_app(url: str, refusals: Refusals) -> App:
    """Return a migrated application on a store that refuses new transactions on demand: SQLite while
    another writer holds the file, PostgreSQL while the role may open no further connection."""
    if url.startswith("sqlite"):
        app = App(url, interceptors=[refusals])
        database = cast(SqliteDatabase, app.store.database)
        database.close()  # its connections keep their time limit
        database.busy_timeout = 0.05

        @contextmanager
        def refuse() -> Iterator[None]:
            with closing(sqlite3.connect(database.path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                yield
    else:
        import psycopg

        parts = urlsplit(url)
        role = f"clerk_{secrets.token_hex(4)}"
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p' IN ROLE {parts.username}")
        where = parts.netloc.rpartition("@")[2]
        own = urlunsplit(parts._replace(netloc=f"{role}:p@{where}"))
        app = App(own, interceptors=[refusals])
        refusals.message = "too many connections"

        @contextmanager
        def refuse() -> Iterator[None]:
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")
                try:
                    yield
                finally:
                    admin.execute(f"ALTER ROLE {role} CONNECTION LIMIT -1")

    refusals.refusal = refuse
    app.migrate()
    return app


@pytest.mark.stores
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_transaction_that_cannot_begin_spends_no_try(store_url: str, kind: str) -> None:
    refusals = Refusals(4)
    app = refusing_app(store_url, refusals)
    tries: list[int] = []

    def note() -> None:
        task = fairlead.current_task()
        assert task is not None
        tries.append(task.tries)

    effect = declare(app, kind, note, retry=NoRetry())
    handle = effect.submit()
    app.store.database.close()  # so that a transaction needs a new connection
    await drain(app, timeout=60)
    assert handle.state() == State.DONE
    assert tries == [1]
    attempts = app.management.attempts(handle.id)
    assert [attempt.outcome for attempt in attempts] == ["snoozed"] * 4 + ["done"]
    assert all("could not begin" in str(each.error_text) for each in attempts[:-1])
    assert all(refusals.message in str(each.error_text) for each in attempts[:-1])
    pauses = [
        (after.started_at - before.finished_at) / MICROS
        for before, after in zip(attempts, attempts[1:], strict=False)
    ]
    assert all(pause >= 0.1 for pause in pauses), "a back-off, no hot loop"
    app.close()


@pytest.mark.stores
@pytest.mark.system_time
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_timeout_before_a_transaction_begins_spends_no_try(
    app: App, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, release = list[int](), threading.Event()
    runs: list[str] = []
    most = getattr(app.store.database, "pool_size", 1)
    if kind == "async":

        @app.task(transactional=True)
        async def hold(connection: Any) -> None:
            begun.append(1)
            await until(lambda: release.is_set())
    else:

        @app.task(transactional=True)
        def hold(connection: Any) -> None:
            begun.append(1)
            release.wait(SOON)

    effect = declare(app, kind, lambda: runs.append("effect"), retry=NoRetry(), timeout=1.0)
    _begin_after(begun, most, monkeypatch)
    # One claim takes all: while a transaction holds SQLite, there is no other.
    *_, handle = app.submit_many([*[hold.draft()] * most, effect.draft()])
    observer = App(app.url)  # with connections of its own
    try:
        async with running(app) as node:
            await until(lambda: _stopped(node, handle.id) or outcomes(observer, handle))
            release.set()
            await settled(app, node)
    finally:
        release.set()  # a failure must not keep the handlers
        observer.close()
    assert runs == ["effect"]
    assert handle.state() == State.DONE
    attempts = app.management.attempts(handle.id)
    assert {attempt.outcome for attempt in attempts[:-1]} == {"snoozed"}
    assert "did not begin within its timeout of 1.0 s" in str(attempts[0].error_text)


def _begin_after(begun: list[int], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `effect` ask for its transaction when `most` others have begun."""
    begin, begin_async = Invocation._transaction, Invocation._transaction_async

    def transaction(self: Invocation, run: Run) -> Any:
        while run.trigger.name == "effect" and len(begun) < most:
            time.sleep(0.001)
        return begin(self, run)

    @asynccontextmanager
    async def transaction_async(self: Invocation, run: Run) -> AsyncIterator[Any]:
        await until(lambda: not (run.trigger.name == "effect" and len(begun) < most))
        async with begin_async(self, run) as connection:
            yield connection

    monkeypatch.setattr(Invocation, "_transaction", transaction)
    monkeypatch.setattr(Invocation, "_transaction_async", transaction_async)


def _stopped(node: Node, task_id: str) -> bool:
    """Return whether the node has stopped a run of the task for its timeout."""
    run = node.parts.context.in_flight.get(task_id)
    return run is not None and run.cancel_reason is CancelReason.TIMEOUT
