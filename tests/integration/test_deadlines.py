"""PostgreSQL: a submit or a wait ends in time if its connection is silent or a lock is held."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

import asyncpg
import psycopg
import pytest

import fairlead
from fairlead import App, ResultTimeout, State, StoreUnavailable, TaskHandle
from fairlead.backends.sql.sql_file import load
from fairlead.declare.task import Task
from fairlead.testing import drain
from tests.proxies import Proxy

LATE = "write response_timeout=SECONDS in the URL"
LOCK = "LOCK fairlead_tasks, fairlead_queues, fairlead_attempts"
WAITING = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'fairlead' AND state = 'active'
"""

STATEMENTS: dict[str, Callable[[Task[[], Any], TaskHandle], Any]] = {
    "submit": lambda task, _: task.submit(),
    "submit_many": lambda task, _: task.submit_many([{}] * 100),
    "submit_many in pieces": lambda task, _: task.submit_many([{}] * 1001),
    "state": lambda _, handle: handle.state(),
    "submit_async": lambda task, _: task.submit_async(),
    "submit_many_async": lambda task, _: task.submit_many_async([{}] * 100),
    "state_async": lambda _, handle: handle.state_async(),
}
WAITS: dict[str, Callable[[TaskHandle], Any]] = {
    "result": lambda handle: handle.result(timeout=0.2),
    "gather": lambda handle: fairlead.gather(handle, timeout=0.2),
    "as_completed": lambda handle: list(fairlead.as_completed([handle], timeout=0.2)),
    "result_async": lambda handle: handle.result_async(0.2),
}


@asynccontextmanager
async def ailing(
    url: str, fault: str, timeout: float
) -> AsyncIterator[tuple[Task[[], Any], TaskHandle, psycopg.Connection[Any]]]:
    """Give a task, a handle and a connection of another session, while all open connections of the
    application are silent, or the other session holds locks on the tables."""
    with closing(Proxy(url)) as proxy, psycopg.connect(url) as other:
        app = App(f"{proxy.url}?response_timeout={timeout}")

        @app.task(keep_result=True)
        async def work() -> None: ...

        handle = await asyncio.to_thread(work.submit)
        await work.submit_async()  # so that each driver has an idle connection
        if fault == "silent":
            proxy.silence()
        else:
            other.execute(LOCK)
        yield work, handle, other
        await app.store.database.close_async()


async def called(call: Callable[..., Any], *arguments: Any) -> Any:
    """Make the call in a thread, and await what it returns if that is a coroutine."""
    found = await asyncio.to_thread(call, *arguments)
    return await found if asyncio.iscoroutine(found) else found


@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_statement_on_a_silent_connection_raises_an_error_that_names_its_setting(
    migrated_postgres_url: str, name: str
) -> None:
    async with ailing(migrated_postgres_url, "silent", 1.5) as (task, handle, _):
        with pytest.raises(StoreUnavailable, match=LATE):
            await called(STATEMENTS[name], task, handle)
        assert task.submit().is_new and (await task.submit_async()).is_new


async def test_a_statement_that_waits_for_a_lock_raises_the_error_and_is_cancelled(
    migrated_postgres_url: str,
) -> None:
    async with ailing(migrated_postgres_url, "locked", 1.5) as (task, handle, other):
        calls = (called(call, task, handle) for call in STATEMENTS.values())
        for error in await asyncio.gather(*calls, return_exceptions=True):
            with pytest.raises(StoreUnavailable, match=LATE):
                raise error
        while other.execute(WAITING).fetchall() != [(0,)]:
            await asyncio.sleep(0.05)
        other.rollback()
        assert task.submit().is_new and (await task.submit_async()).is_new


@pytest.mark.parametrize("fault", ["silent", "locked"])
@pytest.mark.parametrize("name", WAITS)
async def test_a_wait_keeps_its_timeout_while_its_read_gets_no_response(
    migrated_postgres_url: str, fault: str, name: str
) -> None:
    async with ailing(migrated_postgres_url, fault, 0) as (_, handle, other):
        with pytest.raises(ResultTimeout, match=r"0\.2 s"):
            await called(WAITS[name], handle)
        other.rollback()


async def test_threads_wait_for_a_server_together_and_not_one_after_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        options = "sslmode=disable&gssencmode=disable&connect_timeout=0"
        app = App(f"postgresql://a:b@127.0.0.1:{server.getsockname()[1]}/x?{options}")
        work = app.task(name="work")(lambda: None)
        calls = [asyncio.create_task(asyncio.to_thread(work.submit)) for _ in range(3)]
        for connection, _ in [await asyncio.to_thread(server.accept) for _ in calls]:
            connection.close()
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, StoreUnavailable)


async def test_handlers_and_migrations_take_as_long_as_they_take(
    migrated_postgres_url: str,
) -> None:
    app = App(f"{migrated_postgres_url}?response_timeout=1.5")

    @app.task(transactional=True)
    def in_thread(connection: psycopg.Connection[Any]) -> None:
        connection.execute("SELECT pg_sleep(2)")

    @app.task(transactional=True)
    async def in_loop(connection: asyncpg.Connection) -> None:
        await connection.execute("SELECT pg_sleep(2)")

    handles = app.submit_many([in_thread.draft(), in_loop.draft()])
    with psycopg.connect(migrated_postgres_url) as other:
        other.execute(load("migrations.sql", "fairlead.backends.postgres")["lock"].encode())
        migrating = asyncio.create_task(asyncio.to_thread(app.migrate))
        await drain(app)
        other.rollback()
    assert await migrating == []
    assert [handle.state() for handle in handles] == [State.DONE] * 2
    await app.store.database.close_async()
