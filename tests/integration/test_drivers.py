"""Submits through every supported driver: a commit creates the task, and a rollback leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fairlead import App
from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.sessions import Kind
from fairlead.backends.postgres.task_store import PostgresTaskStore
from fairlead.backends.sql.drivers import is_async
from fairlead.backends.sql.migrate import migrate
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.backends.sqlite.task_store import SqliteTaskStore
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.model import NewTask, Submitted
from fairlead.ports.notification import decode
from fairlead.ports.statements import Statement, Steps
from fairlead.ports.task_records import TaskFilter
from fairlead.testing.contract.tasks import FACTS, NOW, make
from tests.builders import idle

pytestmark = pytest.mark.asyncio

Store = SqliteTaskStore | PostgresTaskStore
Messages = asyncio.Queue[str]
Using = Callable[[str, Callable[[Any], Any], bool], Awaitable[None]]


async def with_sqlite3(url: str, work: Callable[[Any], Any], commits: bool) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.row_factory = sqlite3.Row
    work(connection)
    connection.commit() if commits else connection.rollback()
    connection.close()


async def with_aiosqlite(url: str, work: Callable[[Any], Any], commits: bool) -> None:
    async with aiosqlite.connect(url.removeprefix("sqlite:///")) as connection:
        connection.row_factory = aiosqlite.Row
        await work(connection)
        await (connection.commit() if commits else connection.rollback())


async def with_psycopg(url: str, work: Callable[[Any], Any], commits: bool) -> None:
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        work(connection)
        connection.commit() if commits else connection.rollback()


async def with_psycopg_async(url: str, work: Callable[[Any], Any], commits: bool) -> None:
    async with await psycopg.AsyncConnection.connect(
        url, row_factory=psycopg.rows.dict_row
    ) as connection:
        await work(connection)
        await (connection.commit() if commits else connection.rollback())


async def with_asyncpg(url: str, work: Callable[[Any], Any], commits: bool) -> None:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    await work(connection)
    await (transaction.commit() if commits else transaction.rollback())
    await connection.close()


async def with_asyncpg_pool(url: str, work: Callable[[Any], Any], commits: bool) -> None:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
    ):
        transaction = connection.transaction()
        await transaction.start()
        await work(connection)
        await (transaction.commit() if commits else transaction.rollback())


def _sync_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


def _async_url(url: str, driver: str) -> str:
    return url.replace("sqlite://", "sqlite+aiosqlite://").replace(
        "postgresql://", f"postgresql+{driver}://"
    )


async def with_sqlalchemy_connection(url: str, work: Callable[[Any], Any], commits: bool) -> None:
    engine = create_engine(_sync_url(url))
    with engine.connect() as connection:
        work(connection)
        connection.commit() if commits else connection.rollback()
    engine.dispose()


async def with_sqlalchemy_session(url: str, work: Callable[[Any], Any], commits: bool) -> None:
    engine = create_engine(_sync_url(url))
    with Session(engine) as session:
        work(session)
        session.commit() if commits else session.rollback()
    engine.dispose()


async def _with_async_session(url: str, work: Callable[[Any], Any], commits: bool) -> None:
    engine = create_async_engine(url)
    async with AsyncSession(engine) as session:
        await work(session)
        await (session.commit() if commits else session.rollback())
    await engine.dispose()


async def with_async_session(url: str, work: Callable[[Any], Any], commits: bool) -> None:
    await _with_async_session(_async_url(url, "asyncpg"), work, commits)


async def with_async_session_psycopg(url: str, work: Callable[[Any], Any], commits: bool) -> None:
    await _with_async_session(_async_url(url, "psycopg"), work, commits)


async def with_async_connection(url: str, work: Callable[[Any], Any], commits: bool) -> None:
    engine = create_async_engine(_async_url(url, "asyncpg"))
    async with engine.connect() as connection:
        await work(connection)
        await (connection.commit() if commits else connection.rollback())
    await engine.dispose()


SQLALCHEMY = [
    with_sqlalchemy_connection,
    with_sqlalchemy_session,
    with_async_session,
    with_async_connection,
]
ON_SQLITE: list[Using] = [with_sqlite3, with_aiosqlite, *SQLALCHEMY]
ON_POSTGRES: list[Using] = [
    with_psycopg,
    with_psycopg_async,
    with_asyncpg,
    with_asyncpg_pool,
    with_async_session_psycopg,
    *SQLALCHEMY,
]


@pytest_asyncio.fixture
async def sqlite_store(sqlite_url: str) -> AsyncIterator[Store]:
    store = SqliteTaskStore(SqliteDatabase(sqlite_url.removeprefix("sqlite:///")))
    migrate(store.database)
    yield store
    await store.database.close_async()
    store.database.close()


@pytest_asyncio.fixture
async def postgres_store(postgres_url: str) -> AsyncIterator[Store]:
    store = PostgresTaskStore(PostgresDatabase(postgres_url))
    migrate(store.database)
    yield store
    await store.database.close_async()


async def commit_and_rollback(store: Store, url: str, using: Using, count: int) -> None:
    """Submit plain tasks, waiting tasks and a unique key in one transaction: roll back twice, then
    commit."""
    answers: list[Submitted] = []

    def work(connection: Any) -> Any:
        tasks = [
            *make(count),
            *make(count, run_at=NOW + 1),
            *make(1, unique_key="k"),
            *make(1, unique_key="k"),
        ]
        if is_async(connection):
            return _join_async(connection, tasks)
        answers[:] = store.database.join(connection, store.submission(tasks))[0]
        return None

    async def _join_async(connection: Any, tasks: list[NewTask]) -> None:
        answers[:] = (await store.database.join_async(connection, store.submission(tasks)))[0]

    def there() -> list[str]:
        return [record.id for record in store.database.run(store.tasks(TaskFilter(), 10_000))]

    for commits in (False, False, True):
        await using(url, work, commits)
        assert [answer.is_new for answer in answers[-2:]] == [True, False]
        assert sorted(there()) == (sorted({answer.id for answer in answers}) if commits else [])
    assert len(there()) == 2 * count + 1


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("using", ON_SQLITE, ids=lambda using: using.__name__.removeprefix("with_"))
async def test_on_sqlite_committed_tasks_exist_and_rolled_back_ones_do_not(
    sqlite_store: Store, sqlite_url: str, using: Using, count: int
) -> None:
    await commit_and_rollback(sqlite_store, sqlite_url, using, count)


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize(
    "using", ON_POSTGRES, ids=lambda using: using.__name__.removeprefix("with_")
)
async def test_on_postgresql_committed_tasks_exist_and_rolled_back_ones_do_not(
    postgres_store: Store, postgres_url: str, using: Using, count: int
) -> None:
    await commit_and_rollback(postgres_store, postgres_url, using, count)


async def with_our_own(_: str, work: Callable[[Any], Any], commits: bool) -> None:
    work(None)


@pytest.mark.parametrize(
    "using", [with_our_own, *ON_POSTGRES], ids=lambda using: using.__name__.removeprefix("with_")
)
async def test_whole_and_broken_weights_go_together(
    migrated_postgres_url: str, using: Using
) -> None:
    app = App(migrated_postgres_url)
    note = idle(app, "note")

    def work(connection: Any) -> Any:
        drafts = [note.options(weight=n, connection=connection).draft() for n in (1, 0.5)]
        if connection is not None and is_async(connection):
            return app.submit_many_async(drafts)
        return app.submit_many(drafts)

    await using(migrated_postgres_url, work, True)
    found = app.store.database.run(_statement("SELECT weight FROM fairlead_tasks"))
    assert sorted(found) == [(0.5,), (1.0,)]
    app.close()


@pytest.mark.parametrize("is_async", [False, True], ids=["sqlite3", "aiosqlite"])
async def test_a_transaction_whose_commit_a_constraint_refuses_leaves_nothing_behind(
    sqlite_url: str, is_async: bool
) -> None:
    app = App(sqlite_url)
    app.migrate()
    task = app.task(name="pay")(lambda: None)
    path = sqlite_url.removeprefix("sqlite:///")
    raw = sqlite3.connect(path)
    raw.execute(
        "CREATE TABLE orders (id integer PRIMARY KEY, parent integer REFERENCES orders"
        " DEFERRABLE INITIALLY DEFERRED)"
    )
    insert, enforce = "INSERT INTO orders VALUES (1, 7)", "PRAGMA foreign_keys = ON"
    own = await aiosqlite.connect(path)
    with pytest.raises(sqlite3.IntegrityError):
        if is_async:
            await own.execute(enforce)
            async with app.transaction(own):
                await own.execute(insert)
                await task.options(connection=own).submit_async()
        else:
            raw.execute(enforce)
            with app.transaction(raw):
                raw.execute(insert)
                task.options(connection=raw).submit()
    task.submit()  # the refused transaction holds no lock
    assert app.management.count().number == 1
    raw.close()
    await own.close()
    app.close()


async def test_a_transaction_may_be_the_first_use_of_a_new_file(sqlite_url: str) -> None:
    app = App(sqlite_url)
    own = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    with app.transaction(own):
        own.execute("CREATE TABLE orders (id integer)")
        idle(app, "pay").options(connection=own).submit()
    assert app.management.count().number == 1
    own.close()
    app.close()


async def test_a_session_of_sqlalchemy_needs_no_greenlet(sqlite_url: str) -> None:
    # SQLAlchemy installs it with its extra `asyncio` only.
    script = """if True:
        import sys
        sys.modules["greenlet"] = None
        from sqlalchemy import create_engine
        from sqlalchemy.orm import Session
        from fairlead import App
        app = App(sys.argv[1])
        app.migrate()
        with Session(create_engine(app.url)) as session, session.begin():
            app.task(name="pay")(lambda: None).options(connection=session).submit()
        assert app.management.count().number == 1"""
    subprocess.run([sys.executable, "-c", script, sqlite_url], check=True)


@pytest.mark.parametrize("is_async", [False, True], ids=["psycopg", "asyncpg"])
async def test_tasks_of_a_savepoint_are_announced_when_the_transaction_around_it_commits(
    postgres_store: Store, postgres_url: str, is_async: bool
) -> None:
    app, announced = App(postgres_url), list[int]()
    note = idle(app, "note")
    app.connector.on_announced = lambda: announced.append(app.management.count().number)

    async def submit_inside(connection: Any) -> None:
        with contextlib.suppress(KeyError):
            async with app.transaction(connection):
                await note.options(connection=connection).submit_async()
                raise KeyError
        async with app.transaction(connection):
            await note.options(connection=connection).submit_async()
        assert not announced
        await note.options(connection=connection).submit_async()

    own = await (
        asyncpg.connect(postgres_url)
        if is_async
        else psycopg.AsyncConnection.connect(postgres_url, autocommit=True)
    )
    async with app.transaction(own):
        await submit_inside(own)
    assert announced == [2, 2]  # when both are there
    announced.clear()
    async with own.transaction():
        await submit_inside(own)
    await own.close()
    assert not announced
    assert app.management.count().number == 4
    app.close()


async def test_a_transaction_refuses_a_connection_that_it_could_not_begin_one_on(
    sqlite_url: str,
) -> None:
    app, path = App(sqlite_url), sqlite_url.removeprefix("sqlite:///")
    app.migrate()
    async with aiosqlite.connect(path) as own:
        with pytest.raises(ConfigurationError, match="`async with`"), app.transaction(own):
            ...
    raw = sqlite3.connect(path)
    with pytest.raises(ConfigurationError, match="`with`"):
        async with app.transaction(raw):
            ...
    assert not raw.in_transaction  # or nobody else could write
    raw.close()
    with Session(create_engine(sqlite_url)) as session:
        with pytest.raises(ConfigurationError, match="not Session"), app.transaction(session):
            ...
    app.close()


async def test_the_error_about_an_unknown_connection_has_its_type(sqlite_store: Store) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"cannot submit through a builtins\.object; give a connection of sqlite3",
    ):
        sqlite_store.database.join(object(), sqlite_store.submission(make(1)))


@pytest_asyncio.fixture
async def messages(postgres_store: Store, postgres_url: str) -> AsyncIterator[Messages]:
    """Yield the notifications that the server sends."""
    received = Messages()
    listener = await asyncpg.connect(postgres_url)
    channel = await listener.fetchval("SELECT 'fairlead_' || 'fairlead_tasks'::regclass::oid")
    await listener.add_listener(channel, lambda *event: received.put_nowait(event[3]))
    yield received
    await listener.close()


@pytest.mark.parametrize("count", [1, 100])
async def test_the_notification_goes_out_with_the_commit_and_never_after_a_rollback(
    postgres_store: Store, postgres_url: str, messages: Messages, count: int
) -> None:
    with psycopg.connect(postgres_url) as connection:
        postgres_store.database.join(
            connection, postgres_store.submission(make(count, queue="never"))
        )
        connection.rollback()
        tasks = make(count, queue='a "queue" \u00fc') + make(count, queue="later", run_at=NOW + 7)
        postgres_store.database.join(connection, postgres_store.submission(tasks))
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT pg_notify('fairlead_' || 'fairlead_tasks'::regclass::oid, 'now')")
        assert await asyncio.wait_for(messages.get(), 5) == "now"  # and nothing before it
        connection.commit()
    received = decode(await asyncio.wait_for(messages.get(), 5))
    assert [lane.queue for lane in received.ready] == [
        'a "queue" \u00fc'
    ] and received.due == NOW + 7
    assert messages.empty()


async def test_a_notification_too_long_for_notify_means_look_everywhere(
    postgres_store: Store, messages: Messages
) -> None:
    tasks = [make(1, queue=f"{n}-" + "q" * 300)[0] for n in range(40)]
    postgres_store.database.run(postgres_store.submission(tasks))
    assert decode(await asyncio.wait_for(messages.get(), 5)).is_empty


@pytest.mark.parametrize("count", [1, 100])
async def test_a_transaction_without_notifications_can_be_prepared(
    postgres_store: Store, postgres_url: str, messages: Messages, count: int
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute("SET LOCAL fairlead.notify = off")
        tasks = make(count) + make(count, unique_key="one")
        postgres_store.database.join(connection, postgres_store.submission(tasks))
        connection.execute(f"PREPARE TRANSACTION 'prepared {count}'".encode())
        assert postgres_store.database.run(postgres_store.tasks(TaskFilter(), 1000)) == []
        connection.execute(f"COMMIT PREPARED 'prepared {count}'".encode())
        found = postgres_store.database.run(postgres_store.tasks(TaskFilter(), 1000))
        assert len(found) == count + 1
        # The setting ends with its transaction.
        postgres_store.database.join(connection, postgres_store.submission(make(1, queue="b")))
    received = decode(await asyncio.wait_for(messages.get(), 5))
    assert [lane.queue for lane in received.ready] == ["b"] and messages.empty()


# lost connections ---------------------------------------------------------------------------------


def _statement(sql: str) -> Steps[Any]:
    return (yield Statement(sql))


async def test_dead_connections_are_dropped_and_replaced(
    postgres_store: Store, postgres_url: str
) -> None:
    """After a restart of the server, no idle connection is used again."""
    database = postgres_store.database
    assert isinstance(database, PostgresDatabase)
    with database.connection(), database.connection():
        pass
    await asyncio.gather(*(database.read(_statement("SELECT pg_sleep(0.05)")) for _ in range(3)))
    await postgres_store.drop_node("nobody")
    async with database.connection_async(Kind.RELAXED):
        pass
    with psycopg.connect(postgres_url) as admin:
        killed = admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()
        assert len(killed) >= 4  # reads that meet share one
    postgres_store.database.run(postgres_store.submission(make(1)))
    await asyncio.sleep(0.05)  # let the loop notice that its sockets were closed
    for _ in range(4):
        assert len(await database.read(postgres_store.tasks(TaskFilter(), 10))) == 1
    await postgres_store.register_node("node", [], [], NOW, FACTS)


async def test_a_connection_lost_during_a_statement_raises_store_unavailable(
    postgres_store: Store, postgres_url: str
) -> None:
    database = postgres_store.database
    kill = "SELECT pg_terminate_backend(pg_backend_pid())"
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"^PostgreSQL at .*"):
            database.run(_statement(kill))
        with pytest.raises(StoreUnavailable, match=r"^PostgreSQL at .*"):
            await database.run_async(_statement(kill))
    database.run(postgres_store.submission(make(1)))
    assert len(await database.read(postgres_store.tasks(TaskFilter(), 10))) == 1


async def test_prepared_statements_survive_a_migration(
    postgres_store: Store, postgres_url: str
) -> None:
    store = postgres_store
    for _ in range(8):
        store.database.run(store.submission(make(1)))
        await store.wake_due(1, 1)
        await store.database.read(store.tasks(TaskFilter(), 10))
    with psycopg.connect(postgres_url) as admin:
        admin.execute(
            "ALTER TABLE fairlead_tasks ADD COLUMN more text; ALTER TABLE fairlead_attempts ADD COLUMN more text"
        )
        admin.execute("ALTER TABLE fairlead_tasks ALTER COLUMN priority TYPE integer")
    for attempt in range(4):
        try:
            store.database.run(store.submission(make(1)))
            await store.wake_due(1, 1)
            await store.database.read(store.tasks(TaskFilter(), 10))
        except StoreUnavailable:
            assert attempt < 2  # a plan whose result type has changed fails once
    assert len(store.database.run(store.tasks(TaskFilter(), 100))) >= 10


async def test_a_transaction_cancelled_while_it_waits_for_the_writer_holds_up_no_other_write(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = sqlite_store.database
    assert isinstance(database, SqliteDatabase)
    loop, waits = asyncio.get_running_loop(), asyncio.Event()
    acquire = database.writer_lock.acquire

    def acquire_and_signal(wait: bool = True) -> int | None:
        loop.call_soon_threadsafe(waits.set)
        return acquire(wait)

    async def use() -> None:
        async with database.transaction_async():
            raise AssertionError("begun after its cancellation")

    with database.transaction():
        monkeypatch.setattr(database.writer_lock, "acquire", acquire_and_signal)
        using = asyncio.create_task(use())
        await waits.wait()
        using.cancel()
        await asyncio.wait([using])
        assert using.cancelled()
    async with asyncio.timeout(60):
        await database.run_async(sqlite_store.submission(make(1)))
        async with database.transaction_async() as connection:
            assert connection.execute("SELECT count(*) FROM fairlead_tasks").fetchone()[0] == 1


async def test_a_commit_that_is_cancelled_has_ended_when_its_block_is_left(
    sqlite_store: Store,
) -> None:
    database = sqlite_store.database
    assert isinstance(database, SqliteDatabase)
    for n in range(20):
        leaving = asyncio.Event()

        async def write(leaving: asyncio.Event = leaving) -> None:
            async with database.transaction_async() as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS effects (n integer)")
                connection.execute("INSERT INTO effects VALUES (1)")
                leaving.set()

        writing = asyncio.create_task(write())
        await leaving.wait()  # the task now waits for the thread that commits
        writing.cancel()
        await asyncio.wait([writing])
        assert writing.cancelled()
        async with database.transaction_async() as connection:
            assert connection.execute("SELECT count(*) FROM effects").fetchone()[0] == n + 1
