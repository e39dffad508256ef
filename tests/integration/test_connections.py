"""PostgreSQL: how many connections a process holds, and the limits of the server."""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from fairlead import App, NoRetry, State
from fairlead.backends.postgres import pools
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.sessions import Kind
from fairlead.backends.postgres.task_store import PostgresTaskStore
from fairlead.errors import ConfigurationError, SchemaMismatch, StoreUnavailable
from fairlead.operate.doctor import examine
from fairlead.ports.statements import Statement, Steps
from fairlead.testing import drain, running, settled
from tests.builders import idle

pytestmark = pytest.mark.asyncio

AT_REST = 3
"""Connections of a worker: one listens, one is durable, one is relaxed."""


def count(url: str) -> int:
    """Return the number of connections of Fairlead to this database."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'fairlead'"
        ).fetchone()
        assert row is not None
        return int(row[0])


def asked() -> Steps[int]:
    """Yield the steps of a small statement."""
    return int((yield Statement("SELECT 1"))[0][0])


@contextmanager
def limited(url: str, settings: str) -> Iterator[str]:
    """Create a role with this setting or limit, and return its URL."""
    role = f"limited_{secrets.token_hex(4)}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p' IN ROLE fairlead")
        admin.execute(f"ALTER ROLE {role} {settings}")
    yield f"postgresql://{role}:p@{url.rpartition('@')[2]}"


async def test_a_worker_at_rest_holds_three_connections(
    migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "IDLE_SECONDS", 0.5)
    app = App(migrated_postgres_url)

    @app.task(transactional=True)
    async def effect(connection: asyncpg.Connection) -> None: ...

    @app.task(transactional=True)
    def effect_in_thread(connection: psycopg.Connection[Any]) -> None: ...

    async with running(app) as node:
        for _ in range(20):
            effect.submit()
            effect_in_thread.submit()
        await settled(app, node)
        async with asyncio.timeout(20):
            while await asyncio.to_thread(count, migrated_postgres_url) > AT_REST:
                await asyncio.sleep(0.1)
    app.close()


async def test_an_application_whose_event_loops_do_not_run_closes_all_sessions(
    postgres_server: Any,
) -> None:
    url = postgres_server.create_database()
    app = App(url)
    app.migrate()
    note = idle(app, "note")

    def work() -> None:
        stopped.run_until_complete(note.submit_async())
        asyncio.run(drain(app))

    stopped = asyncio.new_event_loop()
    await asyncio.to_thread(work)
    app.close()
    with psycopg.connect(url.rpartition("/")[0] + "/postgres", autocommit=True) as admin:
        # Waits until the server has ended what is closed, and fails if a session is left.
        admin.execute(f"DROP DATABASE {url.rpartition('/')[2]}")
    stopped.close()


@pytest.mark.parametrize("kind", [Kind.NODE, Kind.RELAXED], ids=["durable", "relaxed"])
async def test_statements_of_a_node_that_meet_share_a_connection(
    migrated_postgres_url: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "PATIENCE", 60.0)
    database = PostgresDatabase(migrated_postgres_url)

    async def use(n: int) -> int:
        async with database.connection_async(kind) as connection:
            return int(await connection.fetchval("SELECT $1::integer FROM pg_sleep(0.001)", n))

    async with asyncio.TaskGroup() as together:
        used = [together.create_task(use(n)) for n in range(20)]
        together.create_task(use(20)).cancel()
    assert [each.result() for each in used] == list(range(20))
    # One more is that of a thread, which found out that there is no pooler.
    assert count(migrated_postgres_url) <= 1 + 1
    await database.close_async()


async def test_a_statement_that_waits_opens_a_connection_when_the_other_one_is_lost(
    migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "PATIENCE", 3600.0)
    database = PostgresDatabase(migrated_postgres_url)
    async with database.connection_async() as lost:
        waiting = asyncio.create_task(database.read(asked()))
        await asyncio.sleep(0)
        lost.terminate()
    assert await waiting == 1
    await database.close_async()


async def test_a_submit_that_is_cancelled_while_a_connection_opens_leaves_no_unseen_error(
    migrated_postgres_url: str,
) -> None:
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    for steps in range(20):
        database = PostgresDatabase(f"{migrated_postgres_url}?pooler=none")
        read = asyncio.create_task(database.read(asked()))
        for _ in range(steps):
            await asyncio.sleep(0)
        read.cancel()
        await asyncio.wait([read])
        assert await database.read(asked()) == 1
        await database.close_async()
    gc.collect()
    assert unseen == []


async def test_the_size_of_the_pools_is_set_in_the_url(migrated_postgres_url: str) -> None:
    database = PostgresDatabase(f"{migrated_postgres_url}?pool_size=2")

    async def use(kind: Kind) -> str:
        async with database.connection_async(kind) as connection:
            await connection.execute("SELECT pg_sleep(0.01)")
            return str(await connection.fetchval("SHOW synchronous_commit"))

    kinds = [Kind.NODE, Kind.RELAXED] * 6
    settings = await asyncio.gather(*map(use, kinds))
    assert settings == ["on" if kind is Kind.NODE else "off" for kind in kinds]
    # One more is that of a thread, which found out that there is no pooler.
    assert count(migrated_postgres_url) <= 2 + 1
    await database.close_async()
    for wrong in ("0", "many", "-1"):
        with pytest.raises(ConfigurationError, match="write a number from 1 to 1000"):
            PostgresDatabase(f"{migrated_postgres_url}?pool_size={wrong}")


@pytest.mark.parametrize(
    ("settings", "statement", "text"),
    [
        ("SET statement_timeout TO '50ms'", "SELECT pg_sleep(5)", "raise it for this role"),
        ("SET lock_timeout TO '50ms'", "LOCK fairlead_tasks", "raise lock_timeout for this role"),
    ],
    ids=["statement_timeout", "lock_timeout"],
)
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_time_limit_of_the_server_is_named_with_its_cure(
    migrated_postgres_url: str, settings: str, statement: str, text: str, kind: str
) -> None:
    with limited(migrated_postgres_url, settings) as url:
        database = PostgresDatabase(url)
        with psycopg.connect(migrated_postgres_url) as other:
            other.execute("LOCK fairlead_tasks")
            with pytest.raises(StoreUnavailable, match=text):
                if kind == "async":
                    async with database.transaction_async() as connection:
                        with database.failures(connection):
                            await connection.execute(statement)
                else:
                    with database.transaction() as connection, database.failures(connection):
                        connection.execute(statement)
        await database.close_async()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_setting_of_the_url_that_the_server_refuses_is_named_with_its_cure(
    migrated_postgres_url: str, kind: str
) -> None:
    for setting, text in (("nosuch%3D1", "nosuch"), ("work_mem%3Dlots", "work_mem")):
        database = PostgresDatabase(f"{migrated_postgres_url}?pooler=none&options=-c{setting}")
        with pytest.raises(ConfigurationError, match=f"{text}.* correct `options` in the URL"):
            await database.connect_async() if kind == "async" else database.connect()


async def test_the_url_may_wait_for_a_connection_without_limit(migrated_postgres_url: str) -> None:
    database = PostgresDatabase(f"{migrated_postgres_url}?connect_timeout=0")
    assert (await database.connect_async()).get_server_pid()
    await database.close_async()


async def test_arguments_are_kept_where_strings_have_escapes(migrated_postgres_url: str) -> None:
    text = "\\x7b back\\slash \\\\ 'quote' ü"
    seen: list[str] = []
    with limited(migrated_postgres_url, "SET standard_conforming_strings TO off") as url:
        app = App(url)

        @app.task(transactional=True)
        def work(text: str, connection: psycopg.Connection[Any]) -> None:
            seen.append(text)

        work.submit(text=text)
        await work.submit_async(text=text)
        work.submit_many([{"text": text}] * 60)
        with psycopg.connect(url) as connection:
            work.options(connection=connection, fairness_key=text, ordering_key=text).submit(
                text=text
            )
        await drain(app)
        await app.store.database.close_async()
    assert seen == [text] * 63


async def test_tasks_without_keys_and_with_keys_named_null_are_kept_where_arrays_have_no_nulls(
    migrated_postgres_url: str,
) -> None:
    keys = {"ordering_key": "NULL", "unique_key": "null"}
    with limited(migrated_postgres_url, "SET array_nulls TO off") as url:
        app = App(url)

        @app.task
        def work() -> None: ...

        named = work.options(**keys, context={"a": "NULL"})  # type: ignore[arg-type]
        work.submit()
        await work.submit_async()
        work.submit_many([{}] * 3)
        with psycopg.connect(url) as connection:
            work.options(connection=connection).submit()
        with app.store.database.connection() as own:
            sql = "SELECT DISTINCT ordering_key, unique_key, context FROM fairlead_tasks"
            assert own.execute(sql).fetchall() == [(None, None, None)]
            own.execute("DELETE FROM fairlead_tasks")
            named.submit()
            assert own.execute(sql).fetchall() == [("NULL", "null", '{"a": "NULL"}')]
        await app.store.database.close_async()


FAIL_TWICE = """
    CREATE SEQUENCE reads;
    CREATE FUNCTION is_third() RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        IF nextval('reads') % 3 <> 0 THEN
            RAISE serialization_failure;
        END IF;
        RETURN true;
    END $$;
    ALTER TABLE fairlead_queues RENAME TO queues;
    CREATE VIEW fairlead_queues AS SELECT * FROM queues WHERE is_third();
    INSERT INTO queues VALUES ('mail', 1)
"""
"""Makes two of three reads of queues fail, as one may where the default is SERIALIZABLE."""


async def test_a_read_that_cannot_be_serialized_is_tried_again(postgres_url: str) -> None:
    database = PostgresDatabase(postgres_url)
    store = PostgresTaskStore(database)
    store.migrate()
    with database.connection() as connection:
        connection.execute(FAIL_TWICE)
    assert list(database.read_now(store.queue_settings())) == ["mail"]
    assert list(await database.read(store.queue_settings())) == ["mail"]
    await database.close_async()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_transactions_of_a_node_are_read_committed_whatever_the_default_is(
    migrated_postgres_url: str, isolation: str
) -> None:
    settings = f"SET default_transaction_isolation TO '{isolation}'"
    with limited(migrated_postgres_url, settings) as url:
        database = PostgresDatabase(url)
        assert database.run(level()) == await database.run_async(level()) == "read committed"
        with database.transaction() as connection:  # a handler's
            assert connection.execute("SHOW transaction_isolation").fetchone() == (isolation,)
        await database.close_async()


def level() -> Steps[str]:
    """Yield the steps that read the isolation of the transaction."""
    return str((yield Statement("SHOW transaction_isolation"))[0][0])


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_role_that_may_only_read_is_named_with_the_cure(
    migrated_postgres_url: str, kind: str
) -> None:
    with limited(migrated_postgres_url, "SET default_transaction_read_only TO on") as url:
        app = App(url)

        @app.task
        async def work() -> None: ...

        with pytest.raises(StoreUnavailable, match="default_transaction_read_only is on for this"):
            await work.submit_async() if kind == "async" else work.submit()
        await app.store.database.close_async()


async def test_a_worker_whose_table_is_gone_ends_and_its_tasks_stay(
    migrated_postgres_url: str,
) -> None:
    app = App(migrated_postgres_url)
    work = idle(app, "work")
    later = datetime.now(UTC) + timedelta(hours=1)
    handle = work.options(run_at=later).submit()
    with psycopg.connect(migrated_postgres_url, autocommit=True) as admin:
        with pytest.raises(ExceptionGroup) as caught:
            node = app.node()
            run = asyncio.create_task(node.run())
            await node.ready.wait()
            await asyncio.to_thread(admin.execute, "ALTER TABLE fairlead_tasks RENAME TO gone")
            await run
        admin.execute("ALTER TABLE gone RENAME TO fairlead_tasks")
    assert caught.value.split(SchemaMismatch)[1] is None
    assert handle.state() == State.WAITING
    app.close()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_too_many_connections_are_named_with_their_cure(
    migrated_postgres_url: str, kind: str
) -> None:
    with limited(migrated_postgres_url, "CONNECTION LIMIT 0") as url:
        database = PostgresDatabase(f"{url}?pooler=none")
        with pytest.raises(StoreUnavailable, match="too many .* lower pool_size in the URL"):
            await database.connect_async() if kind == "async" else database.connect()


async def test_a_worker_whose_role_may_open_few_connections_loses_no_task(
    migrated_postgres_url: str,
) -> None:
    with limited(migrated_postgres_url, "CONNECTION LIMIT 6") as url:
        app, observer = App(url), App(migrated_postgres_url)

        async def effect(n: int, connection: asyncpg.Connection) -> None:
            await asyncio.sleep(0.01)

        app.task(transactional=True, retry=NoRetry())(effect)
        observer.task(transactional=True)(effect).submit_many([{"n": n} for n in range(50)])
        async with running(app) as node:
            await settled(observer, node)
        app.close()
        with psycopg.connect(migrated_postgres_url) as connection:
            row = connection.execute(
                "SELECT count(*) FROM fairlead_attempts WHERE outcome = 'done'"
            ).fetchone()
        assert row == (50,)
        await observer.store.database.close_async()


async def test_a_listening_worker_outlives_the_limit_of_idle_sessions(
    migrated_postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with limited(migrated_postgres_url, "SET idle_session_timeout TO '300ms'") as url:
        app = App(url)

        @app.task
        async def work() -> None: ...

        async with running(app) as node:
            await asyncio.sleep(1.0)  # longer than the limit
            handle = work.submit()
            await settled(app, node)
        assert handle.state() == State.DONE
        assert "not listening" not in caplog.text
        app.close()


async def test_the_doctor_shows_the_connections_and_their_limit(migrated_postgres_url: str) -> None:
    app = App(migrated_postgres_url)
    found = [finding.what for finding in await examine(app.operate_context)]
    assert any("connections are in use" in what for what in found)
    app.close()
    with limited(migrated_postgres_url, "CONNECTION LIMIT 3") as url:
        app = App(url)
        with psycopg.connect(url):
            problems = [
                finding
                for finding in await examine(app.operate_context)
                if "the CONNECTION LIMIT of the role" in finding.what
            ]
        app.close()
    assert [finding.severity for finding in problems] == ["problem"]
