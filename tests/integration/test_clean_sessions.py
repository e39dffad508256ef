"""PostgreSQL: a handler changes its session, and neither its completion nor the next task sees it."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.string import StrDumper

from fairlead import App, NoRetry, State
from fairlead.testing import drain

pytestmark = pytest.mark.asyncio


class Marking(StrDumper):
    """Dumper that damages every text."""

    def dump(self, obj: str) -> bytes:
        return b"damaged " + obj.encode()


@pytest.fixture
def clean_app(migrated_postgres_url: str) -> Iterator[App]:
    """Application whose next handler gets the same connection as the one before."""
    app = App(migrated_postgres_url)
    with psycopg.connect(migrated_postgres_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE fairlead_nobody") if not connection.execute(
            "SELECT 1 FROM pg_roles WHERE rolname = 'fairlead_nobody'"
        ).fetchone() else None
    yield app
    app.close()


CHANGES = {
    "a role": "SET ROLE fairlead_nobody",
    "a local role": "SET LOCAL ROLE fairlead_nobody",
    "a search path": "SET search_path TO pg_catalog",
    "a time limit": "SET statement_timeout TO '1ms'",
    "a planner setting": "SET work_mem TO '64kB'",
    "an advisory lock": "SELECT pg_advisory_lock(815)",
    "a temporary table": "CREATE TEMP TABLE fairlead_tasks (id integer)",
    "a prepared statement": "PREPARE mine AS SELECT 1",
    "a cursor": "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
    "a channel": "LISTEN mine",
}

STATE = """
SELECT current_user::text, current_setting('search_path'), current_setting('statement_timeout'),
       current_setting('work_mem'),
       (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND objid = 815),
       to_regclass('pg_temp.fairlead_tasks')::text,
       (SELECT count(*) FROM pg_prepared_statements WHERE name = 'mine'),
       (SELECT count(*) FROM pg_cursors WHERE name = 'mine'), (SELECT count(*) FROM pg_listening_channels())
"""


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_change_of_the_session_ends_with_its_handler(clean_app: App, kind: str) -> None:
    states: list[Any] = []
    if kind == "async":

        @clean_app.task(transactional=True, retry=NoRetry())
        async def work(change: str | None, fails: bool, connection: asyncpg.Connection) -> None:
            states.append(tuple(await connection.fetchrow(STATE)))
            if change is not None:
                await connection.execute(change)
            assert not fails
    else:

        @clean_app.task(transactional=True, retry=NoRetry())
        def work(change: str | None, fails: bool, connection: psycopg.Connection[Any]) -> None:
            states.append(connection.execute(STATE, prepare=False).fetchone())
            if change is not None:
                connection.execute(change)
            assert not fails

    runs = [("nothing", None, False)]
    runs += [(name, change, fails) for name, change in CHANGES.items() for fails in (False, True)]
    handles = [work.submit(change=change, fails=fails) for _, change, fails in runs]
    work.submit(change=None, fails=False)
    await drain(clean_app, concurrency=1)
    for handle, (name, _, fails) in zip(handles, runs, strict=True):
        assert handle.state() == (State.ERROR if fails else State.DONE), name
    after = zip(runs, states[1:], strict=True)
    assert [name for (name, *_), state in after if state != states[0]] == []


async def test_a_codec_of_a_handler_ends_with_it(clean_app: App) -> None:
    found: list[Any] = []

    @clean_app.task(transactional=True, retry=NoRetry(), keep_result=True)
    async def work(connection: asyncpg.Connection) -> int:
        found.append(await connection.fetchval("SELECT '[1]'::json"))
        for name in ("json", "jsonb", "uuid", "text", "int8"):
            await connection.set_type_codec(
                name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads
            )
        found.append(await connection.fetchval("SELECT '[1]'::json"))
        return 7

    handles = [work.submit(), work.submit()]
    await drain(clean_app, concurrency=1)
    assert found == ["[1]", [1]] * 2
    assert [await asyncio.to_thread(handle.result, 5) for handle in handles] == [7, 7]


async def test_what_a_handler_sets_on_a_psycopg_connection_ends_with_it(clean_app: App) -> None:
    found: list[Any] = []

    @clean_app.task(transactional=True, retry=NoRetry(), keep_result=True)
    def work(connection: psycopg.Connection[Any]) -> int:
        found.append(connection.execute("SELECT %s AS one", ("x",)).fetchone())
        connection.row_factory = dict_row
        connection.adapters.register_dumper(str, Marking)
        connection.prepare_threshold = 0
        connection.add_notice_handler(lambda notice: None)
        found.append(connection.execute("SELECT %s::text AS one", ("x",)).fetchone())
        return 7

    handles = [work.submit(), work.submit()]
    await drain(clean_app, concurrency=1)
    assert found == [("x",), {"one": "damaged x"}] * 2
    assert [await asyncio.to_thread(handle.result, 5) for handle in handles] == [7, 7]


@pytest.mark.parametrize("count", [1, 3, 60])
async def test_a_codec_of_a_caller_does_not_damage_a_submit(clean_app: App, count: int) -> None:
    @clean_app.task
    async def work(name: str) -> None: ...

    connection = await asyncpg.connect(clean_app.url)
    for name in ("json", "jsonb"):
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads
        )
    await connection.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=str)
    async with connection.transaction():
        submit = work.options(connection=connection)
        handles = await submit.submit_many_async([{"name": str(n)} for n in range(count)])
        lone = work.options(connection=connection, unique_key="k")
        keyed, again = await lone.submit_async(name="k"), await lone.submit_async(name="k")
    await connection.close()
    assert (again.id, again.is_new) == (keyed.id, False)
    assert {handle.state() for handle in [*handles, keyed]} == {"SUBMITTED"}


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_handler_may_wait_longer_than_the_server_lets_transactions_idle(
    migrated_postgres_url: str, kind: str
) -> None:
    role = f"hasty_{secrets.token_hex(4)}"
    with psycopg.connect(migrated_postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p' SUPERUSER")
        admin.execute(f"ALTER ROLE {role} SET idle_in_transaction_session_timeout TO '1s'")
    address = migrated_postgres_url.rpartition("@")[2]
    app = App(f"postgresql://{role}:p@{address}")
    if kind == "async":

        @app.task(transactional=True, retry=NoRetry())
        async def wait(connection: asyncpg.Connection) -> None:
            await asyncio.sleep(1.5)
            await connection.execute("SELECT 1")
    else:

        @app.task(transactional=True, retry=NoRetry())
        def wait(connection: psycopg.Connection[Any]) -> None:
            connection.execute("SELECT pg_sleep(0)")
            asyncio.run(asyncio.sleep(1.5))
            connection.execute("SELECT 1")

    handle = wait.submit()
    await drain(app)
    assert handle.state() == State.DONE
    app.close()
