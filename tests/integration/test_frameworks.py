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
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

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
    async_engine = create_async_engine(
        url.replace("postgresql:", "postgresql+psycopg:").replace("sqlite:", "sqlite+aiosqlite:")
    )
    async with AsyncSession(async_engine) as found, found.begin():
        await Submitter(found).submit_async(pay, order=5)
    await async_engine.dispose()
    engine.dispose()
    await drain(app)
    assert sorted(paid) == [1, 3, 5]
    app.close()


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
