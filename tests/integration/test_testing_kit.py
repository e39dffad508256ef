"""The testing kit, on a file of SQLite and on PostgreSQL: `fairlead.testing.open_kit`."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from unittest.mock import ANY

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import fairlead
from fairlead import App
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.errors import (
    ConfigurationError,
    InvalidTask,
    StoreUnavailable,
    TaskFailed,
    UnknownTask,
)
from fairlead.model import State
from fairlead.testing import Kit, open_kit

HOUR = timedelta(hours=1)


class Shop:
    """A module of tasks, whose application leads to a file that does not exist."""

    def __init__(self) -> None:
        self.ran: list[object] = []
        self.app = app = App("sqlite:////nowhere/shop.db", lake="")

        @app.task
        async def confirm(order: int, note: str = "-") -> None:
            self.ran.append(order)

        @app.task(retry=fairlead.Fixed(60, max_attempts=2))
        def charge(order: int, amount: float = 1.0) -> None:
            self.ran.append(order)
            raise ZeroDivisionError(f"order {order}")

        self.confirm, self.charge = confirm, charge


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/kit.db?synchronous=OFF"


@pytest.fixture
def kit(shop: Shop, url: str):
    with open_kit(shop.app, url) as kit:
        yield kit


def with_a_task(file: Path) -> App:
    """Return an application on this file, with one submitted task."""
    own = App(f"sqlite:///{file}")
    own.migrate()

    @own.task
    def clean() -> None: ...

    clean.submit()
    return own


# the application -------------------------------------------------------------------------------------


def test_the_application_of_a_module_uses_the_database_of_the_test_and_then_its_own(
    shop: Shop, url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAIRLEAD_CHANNEL", "kafka://production:9092")
    before = shop.app.clock, shop.app.observer, shop.app.interceptors, shop.app.lake
    with open_kit(shop.app, url) as kit:
        shop.confirm.submit(order=1)
        kit.drain()
        assert shop.app.url == url
    assert shop.ran == [1]
    assert shop.app.url == "sqlite:////nowhere/shop.db"
    assert before == (shop.app.clock, shop.app.observer, shop.app.interceptors, shop.app.lake)


def test_each_kit_begins_with_an_empty_database_also_after_a_test_that_failed(shop: Shop, url: str):
    with pytest.raises(KeyError), open_kit(shop.app, url) as kit:
        shop.confirm.submit(order=1)
        shop.charge.submit(order=2)
        kit.drain(raises=False)
        kit.travel(400 * 24 * HOUR)
        shop.confirm.submit(order=3)
        raise KeyError
    with open_kit(shop.app, url) as kit:
        kit.assert_not_submitted(shop.confirm)
        kit.drain()
        assert shop.app.management.find() == shop.app.management.find(state=State.DONE) == []
        shop.confirm.submit(order=4)
        kit.drain()
    assert sorted(map(str, shop.ran)) == ["1", "2", "4"]


def test_a_kit_deletes_no_tasks_of_others(shop: Shop, tmp_path: Path):
    own = with_a_task(tmp_path / "shop.db")
    with pytest.raises(ConfigurationError, match=r"has tasks.*the word `test`"), open_kit(own):
        pass
    assert len(own.management.find()) == 1
    own.close()
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("DELETE FROM fairlead_schema")
    with pytest.raises(ConfigurationError), open_kit(own):
        pass
    assert connection.execute("SELECT count(*) FROM fairlead_schema").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize("name", ["latest.db", "contest.db", "shop.db"])
def test_a_kit_deletes_no_records_of_others_while_no_task_is_left(tmp_path: Path, name: str):
    own = App(f"sqlite:///{tmp_path}/{name}")
    own.migrate()
    with sqlite3.connect(tmp_path / name) as connection:
        connection.execute("INSERT INTO fairlead_weights VALUES ('default', 'acme', 2.0, NULL)")
    with pytest.raises(ConfigurationError, match="has tasks or a history"), open_kit(own):
        pass
    assert connection.execute("SELECT count(*) FROM fairlead_weights").fetchone() == (1,)
    connection.close()


@pytest.mark.parametrize("name", ["test.db", "shop_test_gw0.db", "pytest-1.db", "Tests.db"])
def test_a_kit_empties_a_database_whose_name_is_of_tests(tmp_path: Path, name: str):
    own = with_a_task(tmp_path / name)
    with open_kit(own):
        assert own.management.find() == []


def test_a_kit_that_cannot_read_deletes_nothing_once_it_can(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own = with_a_task(tmp_path / "shop.db")
    read_now, refused = SqliteDatabase.read_now, 0

    def reading(database: SqliteDatabase, steps):
        nonlocal refused
        if refused < 15:
            refused += 1
            raise StoreUnavailable("an outage")
        return read_now(database, steps)

    monkeypatch.setattr(SqliteDatabase, "read_now", reading)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="has tasks"), open_kit(own):
            pass
    assert len(own.management.find()) == 1


HOLDER = """
import os
import sys
from fairlead import App
from fairlead.testing import open_kit

os.chdir(sys.argv[2])
app = App(sys.argv[1])
with open_kit(app):
    print("open", flush=True)
    sys.stdin.read()
"""


@contextmanager
def kit_elsewhere(url: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run another process in this folder, with an open kit."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, url, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        yield process
        process.communicate("")


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_a_kit_never_empties_the_database_of_a_test_in_another_process(
    shop: Shop, url: str, end: str, tmp_path: Path
):
    with kit_elsewhere(url, tmp_path) as process:
        with pytest.raises(ConfigurationError, match="another process"), open_kit(shop.app, url):
            pass
        if end == "kill":
            process.kill()
    with open_kit(shop.app, url), open_kit(Shop().app, url):  # two services with one database
        shop.confirm.submit(order=1)


def test_an_asynchronous_drain_without_a_loop_of_asyncio_says_what_works(kit: Kit):
    with pytest.raises(ConfigurationError, match=r"asyncio.*use drain\(\)"):
        kit.drain_async().send(None)  # as Trio does


def test_code_that_outlives_its_test_reaches_no_database(shop: Shop, url: str):
    go, ended, errors = threading.Event(), threading.Event(), []

    @shop.app.task
    def late() -> None:
        go.wait()
        try:
            shop.confirm.submit(order=1)
        except BaseException as error:
            errors.append(error)
        ended.set()

    for opened in (False, True):
        go.clear()
        ended.clear()
        with open_kit(shop.app, url) as kit, pytest.raises(TimeoutError):
            late.submit()
            kit.drain(timeout=0.5)
        with open_kit(shop.app, url) if opened else nullcontext() as kit:
            go.set()
            ended.wait()
            if kit is not None:
                kit.assert_not_submitted(shop.confirm)
    assert [str(error) for error in errors] == ["the test that this task belongs to has ended"] * 2


def test_an_interrupted_drain_ends_before_its_test(shop: Shop, url: str):
    """As Ctrl-C and the time limits of pytest-timeout do, in the thread that waits."""

    @shop.app.task
    async def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        await asyncio.Event().wait()

    with open_kit(shop.app, url) as kit:
        interrupt.submit()
        with pytest.raises(KeyboardInterrupt):
            kit.drain()
        assert "fairlead-kit" not in [thread.name for thread in threading.enumerate()]
        shop.app.handlers.pop("interrupt")


def test_tasks_of_child_processes_run_in_the_process_of_the_test(shop: Shop, kit: Kit):
    @shop.app.task(executor="process")
    def parent(order: int) -> None:
        shop.confirm.submit(order=order)

    parent.submit(order=1)
    kit.drain(application="shop:app")
    kit.assert_submitted(shop.confirm, 1, order=1)
    assert shop.ran == [1]


# drain -----------------------------------------------------------------------------------------------


def test_a_drain_runs_tasks_that_tasks_submit(shop: Shop, kit: Kit):
    @shop.app.task
    async def parent(order: int) -> None:
        await shop.confirm.submit_async(order=order)
        shop.confirm.submit(order=order + 1)

    @shop.app.task(transactional=True)
    def book(connection: sqlite3.Connection, order: int) -> None:
        shop.confirm.submit(order=order)

    parent.submit(order=1)
    book.submit(order=3)
    kit.drain()
    assert sorted(shop.ran) == [1, 2, 3]
    assert kit.assert_submitted(shop.confirm, 3)


@pytest.mark.parametrize("handler", ["sync", "async", "transactional"])
def test_a_drain_raises_the_error_of_a_task_with_the_traceback_of_its_function(
    shop: Shop, kit: Kit, handler: str
):
    if handler == "sync":

        @shop.app.task(retry=fairlead.NoRetry())
        def broken() -> None:
            {}["key"]
    elif handler == "async":

        @shop.app.task(retry=fairlead.NoRetry())
        async def broken() -> None:
            await asyncio.sleep(0)
            {}["key"]
    else:

        @shop.app.task(transactional=True, retry=fairlead.NoRetry())
        def broken(connection: sqlite3.Connection) -> None:
            {}["key"]

    handle = broken.submit()
    with pytest.raises(KeyError) as raised:
        kit.drain()
    assert [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)][
        -1
    ] == "broken"
    assert "engine" not in "".join(traceback.format_tb(raised.value.__traceback__))
    assert handle.id in raised.value.__notes__[0]
    kit.drain()  # raises each failure once
    assert handle.record().error_type == "KeyError"


def test_several_failures_are_raised_as_a_group(shop: Shop, kit: Kit):
    shop.charge.submit(order=1)
    shop.charge.submit(order=2)
    with pytest.raises(ExceptionGroup, match="2 tasks failed") as raised:
        kit.drain()
    assert sorted(map(str, raised.value.exceptions)) == ["order 1", "order 2"]


def test_expected_failures_stay_with_their_tasks(shop: Shop, kit: Kit):
    handle = shop.charge.submit(order=1)
    kit.drain(raises=False)
    assert (handle.state(), handle.record().error_type) == (State.WAITING, "ZeroDivisionError")
    kit.drain()
    kit.travel(HOUR)
    with pytest.raises(ZeroDivisionError):
        kit.drain()
    assert handle.state() == State.ERROR
    assert shop.ran == [1, 1]


def test_a_failure_that_a_later_run_of_the_drain_mends_is_not_raised(shop: Shop, kit: Kit):
    @shop.app.task(retry=fairlead.Fixed(0, max_attempts=3))
    def flaky() -> None:
        shop.ran.append(1)
        if len(shop.ran) < 3:
            raise OSError

    flaky.submit()
    kit.drain()
    assert len(shop.ran) == 3


def test_a_result_that_cannot_be_kept_and_a_timeout_are_raised(shop: Shop, kit: Kit):
    @shop.app.task(keep_result=True)
    def odd() -> object:
        return object()

    @shop.app.task(timeout=0.01)
    async def slow() -> None:
        await asyncio.Event().wait()

    odd.submit()
    with pytest.raises(TaskFailed, match="cannot be kept as JSON"):
        kit.drain()
    slow.submit()
    with pytest.raises(TaskFailed, match=r"TaskTimeout: ran longer than its timeout of 0\.01 s"):
        kit.drain()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_task_cannot_end_the_test_run(shop: Shop, kit: Kit, error: type[BaseException]):
    @shop.app.task
    async def leave() -> None:
        raise error

    leave.submit()
    with pytest.raises(TaskFailed) as raised:
        kit.drain()
    assert type(raised.value.__cause__) is error


def test_a_task_without_a_handler_is_named(shop: Shop, kit: Kit):
    shop.confirm.submit(order=1)
    handler = shop.app.handlers.pop("confirm")
    try:
        with pytest.raises(TimeoutError, match="confirm, id .* the application has no such task"):
            kit.drain(timeout=1.0)
    finally:
        shop.app.handlers["confirm"] = handler


def test_a_task_that_never_ends_is_named(shop: Shop, kit: Kit):
    go = threading.Event()

    @shop.app.task
    def endless() -> None:
        go.wait()

    @shop.app.task
    async def endless_too() -> None:
        await asyncio.Event().wait()

    endless.submit()
    endless_too.submit()
    try:
        with pytest.raises(TimeoutError, match=r"(?s)endless, id .* runs since .*endless_too, id"):
            kit.drain(timeout=1.0)
    finally:
        go.set()


@pytest.mark.parametrize("tries", [1, 2])
def test_tasks_behind_a_failed_one_of_their_key_are_not_waited_for(
    shop: Shop, kit: Kit, tries: int
):
    shop.charge.handler.retry = fairlead.Fixed(60, max_attempts=tries)
    shop.charge.options(ordering_key="k").submit(order=1)
    behind = shop.confirm.options(ordering_key="k").submit(order=2)
    shop.confirm.options(ordering_key="other").submit(order=3)
    with pytest.raises(ZeroDivisionError):
        kit.drain()
    assert behind.state() == State.SUBMITTED
    assert sorted(map(str, shop.ran)) == ["1", "3"]


def test_a_paused_queue_is_named(shop: Shop, kit: Kit):
    kit.drain()
    shop.app.management.pause("default")
    shop.confirm.submit(order=1)
    with pytest.raises(TimeoutError, match="confirm, id .*: waits in queue 'default'"):
        kit.drain(timeout=0.5)


def test_the_state_of_the_lifespan_is_replaced_in_a_test(url: str):
    async def lifespan(app: App) -> AsyncIterator[str]:
        opened.append("lifespan")
        yield "pool"

    opened: list[str] = []
    app = App(url, lifespan=lifespan)

    @app.task
    def fetch() -> None:
        opened.append(app.state)

    with open_kit(app, url) as kit:
        with app.override_state("fake"):
            fetch.submit()
            kit.drain()
            fetch()
        fetch.submit()
        kit.drain()
    assert opened == ["fake", "fake", "lifespan", "pool"]


# asserting -------------------------------------------------------------------------------------------


def test_submitted_tasks_are_found_by_arguments_and_options(shop: Shop, kit: Kit):
    at = kit.now + HOUR
    shop.confirm.options(fairness_key="acme", priority=2, run_at=at).submit(7, note="x")
    shop.confirm.submit_many([{"order": 8}, {"order": 8}])
    (found,) = kit.assert_submitted(shop.confirm, order=7)
    assert (found.queue, found.run_at, found.arguments) == (
        "default",
        at,
        {"order": 7, "note": "x"},
    )
    kit.assert_submitted(shop.confirm.options(run_at=at), order=7, note=ANY)
    kit.assert_submitted(shop.confirm.options(fairness_key="acme", priority=2), 1)
    kit.assert_submitted(shop.confirm, 2, order=8, note="-")
    kit.assert_submitted(shop.confirm, 0, order=9)
    kit.assert_not_submitted(shop.confirm.options(priority=3))
    kit.assert_not_submitted(shop.charge)
    kit.drain()
    kit.assert_submitted(shop.confirm, 3)  # also those that have run


def test_a_failed_assertion_lists_what_was_submitted(shop: Shop, kit: Kit):
    with pytest.raises(AssertionError, match=r"(?s)no task confirm\(order=1\) sub.*nothing"):
        kit.assert_submitted(shop.confirm, order=1)
    shop.confirm.options(unique_key="u").submit(order=7)
    shop.confirm.options(unique_key="u").submit(order=7)
    with pytest.raises(AssertionError) as raised:
        kit.assert_submitted(shop.confirm.options(fairness_key="acme"), order=8)
    assert str(raised.value).splitlines() == [
        "no task confirm(order=8) fairness_key='acme' submitted; submitted were:",
        "  confirm(order=7, note='-') unique_key='u'",
        "  confirm(order=7, note='-') unique_key='u' - not in the store: not committed, or not new",
    ]
    with pytest.raises(AssertionError, match=r"1 tasks? confirm\(order=7\), not 2 submitted"):
        kit.assert_submitted(shop.confirm, 2, order=7)
    with pytest.raises(AssertionError, match=r"1 of confirm\(\) submitted"):
        kit.assert_not_submitted(shop.confirm)


def test_tasks_that_a_travel_has_deleted_stay_submitted(shop: Shop, kit: Kit):
    handle = shop.confirm.submit(order=1)
    kit.drain()
    kit.travel(800 * 24 * HOUR)
    kit.drain()
    with pytest.raises(UnknownTask):
        handle.record()
    kit.assert_submitted(shop.confirm, 1, order=1)


@pytest.mark.parametrize("what", ["confirm", Shop, lambda: None])
def test_what_is_no_task_is_refused(shop: Shop, kit: Kit, what: object):
    with pytest.raises(TypeError, match="is no task: give what @app.task has returned"):
        kit.assert_submitted(what)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give a timedelta or an aware datetime"):
        kit.travel(5)  # type: ignore[arg-type]


def test_a_misspelt_argument_and_a_foreign_task_are_refused(shop: Shop, kit: Kit):
    with pytest.raises(TypeError, match="no argument ordre; it has order, note"):
        kit.assert_not_submitted(shop.confirm, ordre=1)
    other = App("sqlite:///other.db")

    @other.task
    def foreign() -> None: ...

    with pytest.raises(UnknownTask, match="foreign"):
        kit.assert_not_submitted(foreign)
    with pytest.raises(InvalidTask):
        shop.confirm.submit(order={1})  # type: ignore[call-overload]
    kit.assert_not_submitted(shop.confirm)


def test_a_submit_is_seen_after_its_commit(shop: Shop, kit: Kit, tmp_path: Path):
    connection = sqlite3.connect(tmp_path / "kit.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    shop.confirm.options(connection=connection).submit(order=1)
    kit.assert_not_submitted(shop.confirm)
    connection.execute("COMMIT")
    kit.assert_submitted(shop.confirm, order=1)
    connection.execute("BEGIN IMMEDIATE")
    shop.confirm.options(connection=connection).submit(order=2)
    connection.execute("ROLLBACK")
    kit.drain()
    kit.assert_not_submitted(shop.confirm, order=2)
    connection.close()
    assert shop.ran == [1]


# time ------------------------------------------------------------------------------------------------


def test_scheduled_tasks_run_when_the_clock_has_travelled(shop: Shop, kit: Kit):
    shop.confirm.options(run_at=kit.now + HOUR).submit(order=1)
    shop.confirm.options(run_at=kit.now + 3 * HOUR).submit(order=2)
    kit.drain()
    assert shop.ran == []
    kit.travel(HOUR)
    kit.drain()
    assert shop.ran == [1]
    kit.travel(kit.now + 2 * HOUR)
    kit.drain()
    assert shop.ran == [1, 2]
    with pytest.raises(ValueError, match="never goes back"):
        kit.travel(-HOUR)
    with pytest.raises(ValueError, match="naive"):
        kit.travel(datetime(2100, 1, 1))
    with pytest.raises(OverflowError):
        kit.travel(timedelta(days=3_000_000))
    kit.drain()


def test_periodic_tasks_run_by_their_catch_up_and_end(shop: Shop, url: str):
    @shop.app.periodic("30 * * * *", catch_up="all")
    def clean(slot: datetime) -> None:
        shop.ran.append(slot)

    with open_kit(shop.app, url) as kit:
        start = (kit.now + HOUR).replace(minute=0, second=0, microsecond=0)
        kit.travel(start)
        kit.drain()
        shop.ran.clear()
        kit.travel(48 * HOUR)
        kit.drain()
        kit.drain()
        assert len(shop.ran) == 48
        kit.travel(start + 48 * HOUR + HOUR / 2)
        kit.drain()
        assert len(shop.ran) == 49
        assert shop.ran[-1] == start + 48 * HOUR + HOUR / 2


def test_work_of_a_dead_worker_is_resumed_after_a_travel(shop: Shop, kit: Kit):
    """Heartbeats and leases follow the clock of the test."""
    handle = shop.confirm.submit(order=1)
    go = threading.Event()

    @shop.app.task
    def endless() -> None:
        go.wait()

    endless.submit()
    with pytest.raises(TimeoutError):
        kit.drain(timeout=1.0)
    go.set()
    kit.travel(24 * HOUR)
    kit.drain()
    assert handle.state() == State.DONE
    assert shop.ran == [1]


# inline ----------------------------------------------------------------------------------------------


def test_inline_runs_each_task_before_its_submit_returns(shop: Shop, kit: Kit):
    @shop.app.task
    def parent() -> None:
        shop.confirm.submit(order=2)

    with kit.inline():
        shop.confirm.submit(order=1)
        assert shop.ran == [1]
        parent.submit()
        assert shop.ran == [1, 2]
    shop.confirm.submit(order=3)
    assert shop.ran == [1, 2]


def test_inline_waits_for_the_commit_of_the_caller(shop: Shop, kit: Kit, tmp_path: Path):
    engine = create_engine(f"sqlite:///{tmp_path}/kit.db?timeout=30")
    connection = sqlite3.connect(tmp_path / "kit.db", isolation_level=None)
    with kit.inline():
        with Session(engine) as session:
            shop.confirm.options(connection=session).submit(order=1)
            assert shop.ran == []
            session.commit()
            assert shop.ran == [1]
            shop.confirm.options(connection=session).submit(order=2)
            session.rollback()
        with shop.app.transaction(connection):
            shop.confirm.options(connection=connection).submit(order=3)
            assert shop.ran == [1]
        assert shop.ran == [1, 3]
        connection.execute("BEGIN IMMEDIATE")
        handle = shop.confirm.options(connection=connection).submit(order=4)
        connection.execute("COMMIT")
        handle.trigger()
    assert shop.ran == [1, 3, 4]
    connection.close()
    engine.dispose()


def test_inline_raises_failures_at_the_end_of_the_block_not_in_the_submit(shop: Shop, kit: Kit):
    done = False
    with pytest.raises(ZeroDivisionError, match="order 1"), kit.inline():
        shop.charge.submit(order=1)
        done = True
    assert done
    with kit.inline(raises=False):
        shop.charge.submit(order=2)
    with pytest.raises(KeyError) as raised, kit.inline():
        shop.charge.submit(order=3)
        raise KeyError
    assert "ZeroDivisionError: order 3" in raised.value.__notes__[0]
    kit.drain()


# PostgreSQL ------------------------------------------------------------------------------------------


def test_the_kit_works_on_postgresql(shop: Shop, migrated_postgres_url: str):
    @shop.app.periodic("30 * * * *", catch_up="all")
    def clean() -> None:
        shop.ran.append("clean")

    for _ in range(2):
        shop.ran.clear()
        with open_kit(shop.app, migrated_postgres_url) as kit:
            shop.confirm.options(run_at=kit.now + 2 * HOUR).submit(order=1)
            shop.charge.submit(order=2)
            with pytest.raises(ZeroDivisionError):
                kit.drain()
            kit.travel(3 * HOUR)
            kit.drain(raises=False)
            assert sorted(map(str, shop.ran)) == ["1", "2", "2", "clean", "clean", "clean"]
            with kit.inline():
                shop.confirm.submit(order=3)
                assert 3 in shop.ran
            kit.assert_submitted(shop.confirm, 2)
            asyncio.run(_drain_on_loop(shop, kit))
            assert 4 in shop.ran


async def _drain_on_loop(shop: Shop, kit: Kit) -> None:
    await shop.confirm.submit_async(order=4)
    await kit.drain_async()
