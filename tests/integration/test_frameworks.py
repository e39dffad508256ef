"""Integrations with web frameworks: lifespans, submitters bound to a request's session, and
application contexts."""

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from fairlead import App, InvalidTask, NoRetry, SchemaMismatch, State
from fairlead.contrib.asgi import lifespan
from fairlead.contrib.sqlalchemy import Submitter
from fairlead.errors import ConfigurationError
from fairlead.testing import drain

pytestmark = pytest.mark.system_time


def shop(url: str) -> tuple[App, list[int], Any]:
    app, paid = App(url), []
    app.migrate()

    @app.task
    async def pay(order: int) -> None:
        paid.append(order)

    return app, paid, pay


# SQLAlchemy ---------------------------------------------------------------------------------------


def async_engine_of(url: str) -> AsyncEngine:
    """Return an asynchronous engine of this database."""
    driver = url.replace("postgresql:", "postgresql+psycopg:")
    return create_async_engine(driver.replace("sqlite:", "sqlite+aiosqlite:"))


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_submitter_joins_the_transaction_and_its_savepoints(
    store: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("migrated_postgres_url" if store == "postgres" else "sqlite_url")
    app, paid, pay = shop(url)
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with Session(engine) as session, session.begin():
        if store == "sqlite":  # the driver begins no transaction at a savepoint by itself
            session.execute(text("BEGIN IMMEDIATE"))
        submitter = Submitter(session)
        submitter.submit(pay, order=1)
        with pytest.raises(InvalidTask, match="order"):
            submitter.submit(pay, order="one")
        nested = session.begin_nested()
        submitter.submit(pay.options(priority=0), order=2)
        nested.rollback()
        with session.begin_nested():
            submitter.submit(pay, order=3)
    with Session(engine) as session:
        Submitter(session).submit(pay, order=4)
        session.rollback()
    async_engine = async_engine_of(url)
    async with AsyncSession(async_engine) as found, found.begin():
        await Submitter(found).submit_async(pay, order=5)
    await async_engine.dispose()
    engine.dispose()
    await drain(app)
    assert sorted(paid) == [1, 3, 5]
    app.close()


def engine_of(url: str) -> Engine:
    """Return an engine whose transactions begin with BEGIN on SQLite too, as SQLAlchemy's manual
    says."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    if url.startswith("sqlite"):

        @event.listens_for(engine, "connect")
        def leave_transactions_to_us(connection: Any, _: Any) -> None:
            connection.isolation_level = None

        @event.listens_for(engine, "begin")
        def begin(connection: Any) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


class Announced:
    """A shop whose notifications are counted, with the tasks that are visible at each."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app, self.paid, self.pay = shop(url)
        self.reader = App(url)
        self.engine = engine_of(url)
        self.visible: list[int] = []
        self.app.connector.on_announced = lambda: self.visible.append(self.tasks())

    def tasks(self) -> int:
        """Return the number of tasks that other connections see."""
        return len(self.reader.management.find())

    def close(self) -> None:
        self.engine.dispose()
        self.app.close()
        self.reader.close()


@pytest.fixture(params=["sqlite_url", "migrated_postgres_url"])
def announced(request: pytest.FixtureRequest) -> Iterator[Announced]:
    found = Announced(request.getfixturevalue(request.param))
    yield found
    found.close()


def test_savepoints_of_a_session_announce_nothing_and_lose_no_notification(
    announced: Announced,
) -> None:
    with Session(announced.engine) as session:
        submitter = Submitter(session)
        submitter.submit(announced.pay, order=1)
        with session.begin_nested():
            submitter.submit(announced.pay, order=2)
        session.begin_nested().rollback()
        assert announced.visible == []
        session.commit()
        assert announced.visible == [2, 2]
        with session.begin_nested():
            submitter.submit(announced.pay, order=3)
        session.rollback()
        submitter.submit(announced.pay, order=4)
        session.close()
        submitter.submit(announced.pay, order=5)
        with session.begin_nested(), session.begin_nested():
            pass
        session.commit()
    assert announced.visible == [2, 2, 3]


@pytest.mark.parametrize("mode", ["create_savepoint", "rollback_only", "control_fully"])
def test_a_session_inside_a_transaction_of_its_connection_announces_at_the_real_commit(
    announced: Announced, mode: Any
) -> None:
    """As in tests that roll all back at their end."""
    with announced.engine.connect() as connection:
        for order, end in enumerate(("commit", "rollback")):
            transaction = connection.begin()
            with Session(connection, join_transaction_mode=mode) as session:
                Submitter(session).submit(announced.pay, order=order)
                session.commit()
            if mode == "control_fully":
                assert not transaction.is_active
            else:
                assert len(announced.visible) == announced.tasks() <= 1
                getattr(transaction, end)()
    committed = 2 if mode == "control_fully" else 1
    assert announced.visible == [*range(1, committed + 1)]


@pytest.mark.parametrize("kind", ["session", "connection", "scoped"])
def test_a_long_lived_session_keeps_no_listener_for_each_submit(
    announced: Announced, kind: str
) -> None:
    with Session(announced.engine) as session, announced.engine.connect() as connection:
        scoped = scoped_session(lambda: session)
        found: Any = {"session": session, "connection": connection, "scoped": scoped}[kind]
        for order in range(5):
            Submitter(found).submit(announced.pay, order=order)
            (found.commit if order % 2 else found.rollback)()
        target = connection if kind == "connection" else session
        names = ("commit", "rollback", "after_commit", "after_rollback", "after_transaction_end")
        listeners = [getattr(target.dispatch, name, ()) for name in names]
        assert max(len(list(each)) for each in listeners) == 1
    assert announced.visible == [1, 2]


@pytest.mark.parametrize("kind", ["session", "connection"])
async def test_asynchronous_savepoints_announce_once_after_the_commit(
    announced: Announced, kind: str
) -> None:
    engine = async_engine_of(announced.url)
    async with AsyncSession(engine) as session, engine.connect() as connection:
        found: Any = session if kind == "session" else connection
        await Submitter(found).submit_async(announced.pay, order=1)
        async with found.begin_nested():
            await Submitter(found).submit_async(announced.pay, order=2)
        await (await found.begin_nested()).rollback()
        assert announced.visible == []
        await found.commit()
        assert announced.visible == [2, 2]
        await Submitter(found).submit_async(announced.pay, order=3)
        await found.rollback()
        await found.commit()
    assert announced.visible == [2, 2]
    await engine.dispose()


async def test_a_two_phase_transaction_is_refused_before_anything_is_written(
    announced: Announced,
) -> None:
    engine = announced.engine
    scoped = scoped_session(sessionmaker(engine, twophase=True))
    for session in (Session(engine, twophase=True), scoped):
        with pytest.raises(ConfigurationError, match="two-phase.*after its commit"):
            Submitter(session).submit(announced.pay, order=1)
        session.close()
    if announced.url.startswith("postgresql"):
        with engine.connect() as connection, connection.begin_twophase():
            with pytest.raises(ConfigurationError, match="two-phase"):
                Submitter(connection).submit(announced.pay, order=1)
    async_engine = async_engine_of(announced.url)
    async with AsyncSession(async_engine, twophase=True) as found:
        with pytest.raises(ConfigurationError, match="two-phase"):
            await Submitter(found).submit_async(announced.pay, order=1)
    await async_engine.dispose()
    assert announced.tasks() == 0


# ASGI ---------------------------------------------------------------------------------------------


async def test_a_lifespan_refuses_a_store_that_was_not_migrated(postgres_url: str) -> None:
    app = App(postgres_url)
    with pytest.raises(SchemaMismatch, match="fairlead migrate"):
        async with lifespan(app)(None):
            pass
    app.close()


async def test_a_lifespan_runs_that_of_the_site_inside_and_passes_its_state(
    sqlite_url: str,
) -> None:
    app, paid, pay = shop(sqlite_url)
    calls: list[Any] = []

    @asynccontextmanager
    async def own(site: Any) -> AsyncIterator[dict[str, int]]:
        calls.append(site)
        yield {"state": 1}
        pay.submit(order=1)  # the App is still open

    async with lifespan(app, own)("site") as state:
        calls.append(state)
    assert calls == ["site", {"state": 1}]
    await drain(app)
    assert paid == [1]
    app.close()


def test_fastapi_gives_the_submitter_the_session_of_the_endpoint(sqlite_url: str) -> None:
    pytest.importorskip("fastapi")
    from fastapi import Depends, FastAPI
    from fastapi.testclient import TestClient

    from fairlead.contrib.fastapi import submitter

    app, paid, pay = shop(sqlite_url)
    engine = create_engine(sqlite_url)
    sessions = []

    def get_session() -> Iterator[Session]:
        with Session(engine) as session, session.begin():
            sessions.append(session)
            yield session
            if fails:
                raise OSError("the commit fails")

    fails = False
    SessionDep = Annotated[Session, Depends(get_session, scope="function")]
    site = FastAPI()

    @site.post("/orders/{order}")
    def place(
        order: int, session: SessionDep, tasks: Annotated[Submitter, submitter(SessionDep)]
    ) -> bool:
        tasks.submit(pay, order=order)
        return tasks.session is session

    with TestClient(site, raise_server_exceptions=False) as client:
        assert client.post("/orders/1").json() is True
        fails = True
        assert client.post("/orders/2").status_code == 500
    assert len(sessions) == 2
    asyncio.run(drain(app))
    assert paid == [1]
    engine.dispose()
    app.close()


@pytest.mark.parametrize("scope", ["function", "request", None])
@pytest.mark.parametrize("way", ["background", "stream"])
def test_fastapi_refuses_a_submit_that_no_commit_follows(
    sqlite_url: str, scope: Any, way: str
) -> None:
    """A session of the scope "function" ends before the response; one of a request after it."""
    pytest.importorskip("fastapi")
    from fastapi import BackgroundTasks, Depends, FastAPI
    from fastapi.responses import StreamingResponse
    from fastapi.testclient import TestClient

    from fairlead.contrib.fastapi import submitter

    app, paid, pay = shop(sqlite_url)
    engine = create_engine(sqlite_url, connect_args={"check_same_thread": False})

    def get_session() -> Iterator[Session]:
        with Session(engine) as session:
            yield session
            session.commit()

    SessionDep = Annotated[Session, Depends(get_session, scope=scope)]
    Tasks = Annotated[Submitter, submitter(SessionDep)]
    site = FastAPI()
    errors: list[str] = []

    def late(tasks: Submitter) -> str:
        try:
            tasks.submit(pay, order=2)
        except InvalidTask as error:
            errors.append(str(error))
        return "done"

    @site.post("/background")
    def background(tasks: Tasks, after: BackgroundTasks) -> None:
        tasks.submit(pay, order=1)
        after.add_task(late, tasks)

    @site.post("/stream")
    def stream(tasks: Tasks) -> StreamingResponse:
        tasks.submit(pay, order=1)
        return StreamingResponse(late(tasks) for _ in range(1))

    with TestClient(site) as client:
        assert client.post(f"/{way}").status_code == 200
    asyncio.run(drain(app))
    if scope == "function":
        assert paid == [1] and "the session of this request has ended" in errors[0]
    else:
        assert sorted(paid) == [1, 2] and errors == []
    engine.dispose()
    app.close()


@pytest.mark.parametrize("way", ["background", "stream"])
def test_litestar_refuses_a_submit_that_no_commit_follows(sqlite_url: str, way: str) -> None:
    pytest.importorskip("litestar")
    from litestar import Litestar, Response, post
    from litestar.background_tasks import BackgroundTask
    from litestar.di import Provide
    from litestar.response import Stream
    from litestar.testing import TestClient

    from fairlead.contrib.litestar import submitter

    app, paid, pay = shop(sqlite_url)
    engine = create_engine(sqlite_url, connect_args={"check_same_thread": False})
    errors: list[str] = []

    def get_session() -> Iterator[Session]:
        with Session(engine) as session:
            yield session
            session.commit()

    async def late(tasks: Submitter) -> str:
        try:
            await tasks.submit_async(pay, order=2)
        except InvalidTask as error:
            errors.append(str(error))
        return "done"

    @post("/background")
    async def background(tasks: Submitter) -> Response[str]:
        await tasks.submit_async(pay, order=1)
        return Response("", background=BackgroundTask(late, tasks))

    @post("/stream")
    async def stream(tasks: Submitter) -> Stream:
        await tasks.submit_async(pay, order=1)

        async def parts() -> AsyncIterator[str]:
            yield await late(tasks)

        return Stream(parts())

    site = Litestar(
        [background, stream],
        dependencies={
            "session": Provide(get_session),
            "tasks": submitter(),
        },
    )
    with TestClient(site) as client:
        assert client.post(f"/{way}").status_code == 201
    asyncio.run(drain(app))
    assert paid == [1] and "the session of this request has ended" in errors[0]
    engine.dispose()
    app.close()


def test_litestar_gives_the_submitter_the_session_of_another_name(sqlite_url: str) -> None:
    pytest.importorskip("litestar")
    from litestar import Litestar, post
    from litestar.di import Provide
    from litestar.testing import TestClient

    from fairlead.contrib.litestar import submitter

    app, paid, pay = shop(sqlite_url)
    engine = create_engine(sqlite_url)

    def get_session() -> Iterator[Session]:
        with Session(engine) as session, session.begin():
            yield session

    @post("/orders/{order:int}", sync_to_thread=False)
    def place(order: int, tasks: Submitter) -> None:
        tasks.submit(pay, order=order)
        if order == 2:
            raise OSError

    site = Litestar(
        [place],
        dependencies={
            "db_session": Provide(get_session),
            "tasks": submitter("db_session"),
        },
        lifespan=[lifespan(app)],
    )
    with TestClient(site, raise_server_exceptions=False) as client:
        assert client.post("/orders/1").status_code == 201
        assert client.post("/orders/2").status_code == 500
    asyncio.run(drain(app))
    assert paid == [1]
    engine.dispose()
    app.close()


# Flask --------------------------------------------------------------------------------------------


async def test_each_run_has_an_application_context_of_its_own(sqlite_url: str) -> None:
    flask = pytest.importorskip("flask")
    from fairlead.contrib.flask import FlaskTasks

    app = App(sqlite_url)
    app.migrate()
    extension = FlaskTasks(app)
    ended: list[str] = []
    ready = asyncio.Event()

    @app.task(keep_result=True)
    async def on_loop(n: int) -> int:
        flask.g.n = n
        if n == 2:
            ready.set()
        await ready.wait()
        return flask.g.n * flask.current_app.config["RATE"]

    @app.task(keep_result=True)
    def in_thread(n: int) -> int:
        flask.g.n = n
        return flask.g.n * flask.current_app.config["RATE"]

    @app.task(retry=NoRetry())
    def fails() -> None:
        raise KeyError("lost")

    for rate in (2, 3):  # as when each test creates its site
        site = flask.Flask("shop")
        site.config["RATE"] = rate
        extension.init_app(site)
        assert site.extensions["fairlead"].app is app

        @site.teardown_appcontext
        def end(error: BaseException | None) -> None:
            ended.append(repr(error))

        ready.clear()
        handles = [task.submit(n=n) for task in (on_loop, in_thread) for n in (1, 2)]
        failing = fails.submit()
        await drain(app)
        assert [handle.result() for handle in handles] == [rate, 2 * rate] * 2
        assert failing.state() == State.ERROR
        assert not flask.has_app_context()
    assert sorted(ended) == ["KeyError('lost')"] * 2 + ["None"] * 8
    app.close()


async def test_a_worker_without_a_site_says_what_is_missing(sqlite_url: str) -> None:
    pytest.importorskip("flask")
    from fairlead.contrib.flask import FlaskTasks

    app, paid, pay = shop(sqlite_url)
    FlaskTasks(app)
    app.handlers["pay"].retry = NoRetry()
    handle = pay.submit(order=1)
    await drain(app)
    (attempt,) = app.management.attempts(handle.id)
    assert attempt.error_type == ConfigurationError.__module__ + ".ConfigurationError"
    assert "call init_app(site)" in attempt.error_text
    assert paid == []
    app.close()


CHILD = """
import flask
import fairlead
from fairlead.contrib.flask import FlaskTasks

app = fairlead.App()
site = flask.Flask("shop")
site.config["RATE"] = 5
FlaskTasks(app, site)

@app.task(executor="process", keep_result=True)
def pay() -> int:
    return flask.current_app.config["RATE"]
"""


async def test_a_child_process_has_the_application_context_too(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flask")
    (tmp_path / "flask_child.py").write_text(CHILD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FAIRLEAD_URL", sqlite_url)
    module = importlib.import_module("flask_child")
    try:
        module.app.migrate()
        handle = module.pay.submit()
        await drain(module.app, application="flask_child:app", processes=1)
        assert handle.result() == 5
    finally:
        module.app.close()
        del sys.modules["flask_child"]
