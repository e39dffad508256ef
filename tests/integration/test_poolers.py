"""PgBouncer in transaction mode: submits and workers get along without sessions of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from fairlead import App
from fairlead.errors import ConfigurationError
from fairlead.testing import drain, running, settled
from services.pgbouncer import PgBouncerServer
from services.postgres import PostgresServer
from tests.builders import idle
from tests.conftest import skip_if_missing

pytestmark = pytest.mark.asyncio

THREADS, SUBMITS = 12, 120


@pytest.fixture
def pooled(pooled_url: str) -> Iterator[App]:
    """Application behind the pooler."""
    app = App(pooled_url)
    yield app
    app.close()


async def test_submits_of_threads_through_a_pooler_all_succeed(pooled: App) -> None:
    work = idle(pooled, "work")
    begin = threading.Barrier(THREADS)

    def submit(first: int) -> None:
        begin.wait()
        for n in range(first, SUBMITS, THREADS):
            work.submit(n=n)
            work.options(unique_key=str(n)).submit(n=n)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(submit, range(THREADS)))
    work.submit_many([{"n": n} for n in range(200)])
    statuses = pooled.store.database.read_now(pooled.sql_store.queue_statuses())
    assert sum(status.submitted for status in statuses) == 2 * SUBMITS + 200


@pytest.mark.parametrize("kind", ["async", "thread", "transactional", "transactional thread"])
async def test_workers_behind_a_pooler_run_every_kind_of_task(pooled: App, kind: str) -> None:
    runs: list[int] = []

    if "thread" in kind:

        @pooled.task(transactional="transactional" in kind, keep_result=True)
        def work(n: int, connection: Any = None) -> int:
            if connection is not None:
                assert connection.execute("SELECT 1").fetchone() == (1,)
            runs.append(n)
            return n
    else:

        @pooled.task(transactional=kind == "transactional", keep_result=True)
        async def work(n: int, connection: Any = None) -> int:
            if connection is not None:
                assert await connection.fetchval("SELECT $1::int", n) == n
            runs.append(n)
            return n

    handles = work.submit_many([{"n": n} for n in range(50)])
    await drain(pooled)
    assert sorted(runs) == [*range(50)]
    results = [await asyncio.to_thread(handle.result, 5) for handle in handles]
    assert results == [*range(50)]


async def test_a_worker_behind_a_pooler_finds_what_others_submit(
    pooled: App, migrated_postgres_url: str
) -> None:
    finished = asyncio.Queue[str]()
    direct = App(migrated_postgres_url)

    async def work(name: str) -> None:
        finished.put_nowait(name)

    pooled.task(work)
    task = direct.task(work)

    async with running(pooled) as node:
        await settled(pooled, node)
        for name in ("first", "second"):
            await asyncio.to_thread(task.submit, name=name)
            async with asyncio.timeout(5):  # before the sweep, which comes after 15 s
                assert await finished.get() == name
        with psycopg.connect(migrated_postgres_url) as connection:
            task.options(connection=connection).submit(name="late")
            await asyncio.to_thread(task.submit, name="early")
            async with asyncio.timeout(5):
                assert await finished.get() == "early"
            connection.commit()
        async with asyncio.timeout(5):
            assert await finished.get() == "late"
        soon = datetime.now(UTC) + timedelta(seconds=0.2)
        await asyncio.to_thread(task.options(run_at=soon).submit, name="delayed")
        async with asyncio.timeout(5):
            assert await finished.get() == "delayed"
    direct.close()


async def test_a_worker_with_a_direct_way_listens_and_holds_its_lock(
    pooled_url: str, migrated_postgres_url: str
) -> None:
    port = urlsplit(migrated_postgres_url).port
    app = App(f"{pooled_url}?direct=127.0.0.1:{port}")
    work = idle(app, "work")
    async with running(app) as node:
        handle = work.submit()
        await settled(app, node)
        with psycopg.connect(migrated_postgres_url) as connection:
            found = connection.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database ="
                " (SELECT oid FROM pg_database WHERE datname = current_database())"
            ).fetchone()
        assert found == (1,)
    assert handle.state() == "DONE"
    app.close()


@pytest.mark.parametrize("most", [0, 100])
async def test_nothing_is_prepared_in_a_pooler_whatever_it_allows(
    postgres_server: PostgresServer, migrated_postgres_url: str, most: int
) -> None:
    with skip_if_missing(PgBouncerServer.name):
        server = PgBouncerServer(postgres_server)
    if server.version >= (1, 21):
        server = PgBouncerServer(postgres_server, max_prepared_statements=most)
    elif most:
        pytest.skip("PgBouncer 1.21 or later is missing: it can prepare statements")
    with server:
        app = App(server.url_of(migrated_postgres_url))

        @app.task(transactional=True)
        async def work(n: int, connection: asyncpg.Connection) -> None:
            assert await connection.fetchval("SELECT $1::int", n) == n

        for n in range(30):  # psycopg prepares a statement that has come five times
            work.submit(n=n)
        await asyncio.gather(*(work.submit_async(n=n) for n in range(30)))
        await drain(app)
        statuses = app.store.database.read_now(app.sql_store.queue_statuses())
        assert sum(status.submitted + status.error for status in statuses) == 0
        app.close()
        with psycopg.connect(server.url_of(migrated_postgres_url), autocommit=True) as any_session:
            any_session.prepare_threshold = None
            for _ in range(10):
                found = any_session.execute(
                    "SELECT count(*) FROM pg_prepared_statements"
                ).fetchone()
                assert found == (0,)


async def test_a_worker_goes_on_behind_a_pooler_with_few_sessions(
    postgres_server: PostgresServer, migrated_postgres_url: str
) -> None:
    with skip_if_missing(PgBouncerServer.name):
        server = PgBouncerServer(postgres_server, "session", default_pool_size=6)
    with server:
        url = f"{server.url_of(migrated_postgres_url)}?pooler=session&connect_timeout=1"
        app = App(url)

        @app.task(transactional=True)
        async def work(connection: asyncpg.Connection) -> None: ...

        # Before the worker runs: a submit may find no session either.
        handles = [work.submit() for _ in range(30)]
        async with running(app) as node:
            await settled(app, node, timeout=90)
        with psycopg.connect(migrated_postgres_url) as direct:
            found = direct.execute("SELECT count(*) FROM fairlead_tasks").fetchone()
        assert (found, len(handles)) == ((0,), 30)
        app.close()


async def test_a_pooler_that_was_denied_is_named_by_the_error(pooled_url: str) -> None:
    app = App(f"{pooled_url}?pooler=none")
    work = idle(app, "work")
    with pytest.raises(ConfigurationError, match="a pooler is in between: write .pooler="):
        await work.submit_async()
    app.close()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_options_that_a_pooler_refuses_are_named_with_their_cure(
    pooled_url: str, kind: str
) -> None:
    app = App(f"{pooled_url}?pooler=transaction&options=-csearch_path%3Dpublic")
    with pytest.raises(ConfigurationError, match="leave `options` out .* ALTER ROLE .* SET"):
        await app.store.database.connect_async() if kind == "async" else app.migrate()
    app.close()
