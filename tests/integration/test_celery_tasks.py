"""Celery's names on Fairlead: tasks, their calls, retries, results and settings, as a project's code
uses them after its imports were changed."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid as uuid_module
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fairlead
from fairlead.contrib.celery import Celery, Task, current_app, shared_task, uuid
from fairlead.contrib.celery.exceptions import (
    ImproperlyConfigured,
    MaxRetriesExceededError,
    NotRegistered,
    Retry,
    TaskRevokedError,
    TimeoutError,
)
from fairlead.contrib.celery.result import AsyncResult
from fairlead.contrib.celery.utils.log import get_task_logger
from fairlead.errors import InvalidTask
from fairlead.model import State
from fairlead.testing import running
from tests.integration.celery_kit import run

log = get_task_logger(__name__)


class Point(NamedTuple):
    """A tuple whose class takes other arguments than `tuple`."""

    x: int
    y: int


# calls and results --------------------------------------------------------------------------------


async def test_delay_runs_the_function_and_get_returns_its_result(celery: Celery) -> None:
    @celery.task
    def add(x: int, y: int) -> int:
        return x + y

    result = add.delay(2, y=3)
    assert (result.state, result.ready(), result.result) == ("PENDING", False, None)
    await run(celery)
    assert result.get(timeout=0) == 5
    assert (result.status, result.ready(), result.successful()) == ("SUCCESS", True, True)
    assert add(1, 1) == 2 and add.run(1, 1) == 2
    assert celery.AsyncResult(result.id).get() == 5
    assert AsyncResult(result.id).get() == 5, "by the current application"
    assert AsyncResult(uuid()).state == "PENDING"
    assert add.name == f"{__name__}.add"


async def test_values_survive_as_with_celerys_json_serializer(celery: Celery) -> None:
    seen: list[Any] = []

    @celery.task
    def echo(value: Any) -> Any:
        seen.append(value)
        return value

    values = {
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        "day": date(2026, 1, 2),
        "price": Decimal("1.10"),
        "id": uuid_module.UUID(int=7),
        "text": b"abc",
        "bytes": b"\xff\x00",
        "list": [1, (2, 3)],
        "named": Point(4, 5),
    }
    result = echo.delay(values)
    await run(celery)
    expected = {**values, "list": [1, [2, 3]], "named": [4, 5]}
    assert seen == [expected]
    assert result.get() == expected


def test_what_is_not_json_is_refused_with_the_cure(celery: Celery) -> None:
    @celery.task
    def echo(value: Any) -> Any: ...

    for value in (object(), {1, 2}, float("nan"), lambda: None):
        with pytest.raises(InvalidTask, match=r"not JSON; Fairlead never pickles: pass an id"):
            echo.delay(value)
    for name in ("task_serializer", "result_serializer"):
        with pytest.raises(ImproperlyConfigured, match="pickle.*JSON; Fairlead never unpickles"):
            celery.conf[name] = "pickle"
    with pytest.raises(ImproperlyConfigured, match="pickle"):
        celery.task(serializer="pickle")(lambda: None)
    with pytest.raises(ImproperlyConfigured, match="pickle"):
        echo.apply_async((1,), serializer="pickle")


def test_arguments_that_do_not_fit_raise_type_error_at_the_call(celery: Celery) -> None:
    @celery.task(bind=True)
    def add(self: Task, x: int, y: int) -> None: ...

    with pytest.raises(TypeError, match="missing a required argument: 'y'"):
        add.delay(1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        add.delay(1, 2, z=3)


async def test_options_of_apply_async_reach_the_task_row(celery: Celery) -> None:
    @celery.task(priority=8)
    def work() -> None: ...

    at = datetime(2030, 1, 1, tzinfo=UTC)
    rows = {
        name: work.apply_async(**options).handle.record()
        for name, options in {
            "plain": {},
            "eta": {"eta": at},
            "text": {"eta": "2030-01-01T00:00:00"},
            "countdown": {"countdown": 3600},
            "priority": {"priority": 0},
            "queue": {"queue": "mail", "retry": False},
            "tenant": {"fairness_key": "acme", "weight": 2.0},
        }.items()
    }
    assert rows["plain"].priority == 1, "9 is first, as with RabbitMQ"
    assert rows["priority"].priority == 9
    assert rows["eta"].run_at == rows["text"].run_at == int(at.timestamp() * 1e6)
    assert rows["countdown"].state is State.WAITING
    assert (rows["plain"].queue, rows["queue"].queue) == ("celery", "mail")
    assert (rows["tenant"].fairness_key, rows["tenant"].weight) == ("acme", 2.0)
    with pytest.raises(ImproperlyConfigured, match="no worker serves the queue 'typo'"):
        work.apply_async(queue="typo")
    with pytest.raises(InvalidTask, match="whole number from 0"):
        work.apply_async(priority=10)


def test_with_redis_as_the_broker_priority_0_stays_first(celery: Celery) -> None:
    celery.conf.broker_url = "redis://broker/0"

    @celery.task
    def work() -> None: ...

    assert work.apply_async(priority=0).handle.record().priority == 0
    assert work.apply_async().handle.record().priority == 5


async def test_task_id_is_kept_and_a_taken_or_foreign_one_is_refused(celery: Celery) -> None:
    @celery.task(bind=True)
    def work(self: Task) -> Any:
        return self.request.id

    chosen = uuid()
    result = work.apply_async(task_id=chosen)
    with pytest.raises(InvalidTask):
        work.apply_async(task_id="order-17")
    await run(celery)
    assert AsyncResult(chosen).get() == result.id == chosen


def test_tasks_are_sent_by_name(celery: Celery) -> None:
    @celery.task(name="shop.work")
    def work(x: int) -> None: ...

    assert celery.send_task("shop.work", args=[1]).handle.record().name == "shop.work"
    with pytest.raises(NotRegistered, match="no task 'shop.typo' is registered"):
        celery.send_task("shop.typo")


async def test_tasks_join_the_callers_transaction(celery: Celery, tmp_path: Path) -> None:
    app = Celery("own", url=f"sqlite:///{tmp_path}/own.db")

    @app.task
    def work(x: int) -> int:
        return x

    app.fairlead.migrate()
    connection = sqlite3.connect(tmp_path / "own.db", isolation_level=None)
    for ends in ("ROLLBACK", "COMMIT"):
        connection.execute("BEGIN")
        work.apply_async((1,), connection=connection, link=work.s())
        (work.s(1) | work.s()).apply_async(connection=connection)
        connection.execute(ends)
        expected = 0 if ends == "ROLLBACK" else 4
        assert app.fairlead.management.count().number == expected
    connection.close()
    app.close()


def test_revoke_cancels_a_task_that_waits(celery: Celery) -> None:
    @celery.task
    def work() -> None: ...

    result = work.apply_async(countdown=3600)
    result.revoke(terminate=True)
    assert result.state == "REVOKED"
    with pytest.raises(TaskRevokedError):
        result.get()
    result.revoke()


async def test_a_running_task_is_started_and_sees_its_revoke(celery: Celery) -> None:
    begun, ended = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    @celery.task
    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        task = fairlead.current_task()
        assert task is not None
        while not task.cancelled:
            pass
        ended.append(True)

    result = work.delay()
    async with running(celery.fairlead):
        await begun.wait()
        assert result.state == "STARTED"
        await asyncio.to_thread(result.revoke)
    assert ended == [True] and result.state == "REVOKED"


async def test_the_result_of_a_task_that_ignores_it_is_not_kept(celery: Celery) -> None:
    @celery.task(ignore_result=True)
    def work() -> Any:
        return {"a": object()}

    @celery.task(ignore_result=True)
    def first() -> int:
        return 4

    @celery.task
    def second(x: int) -> int:
        return x

    results = work.delay(), (first.s() | second.s())(), first.apply_async(ignore_result=False)
    await run(celery)
    assert [each.get() for each in results] == [None, 4, 4], (
        "a chain passes results on all the same"
    )


async def test_get_has_a_timeout_and_is_refused_inside_a_task(celery: Celery) -> None:
    @celery.task
    def inner() -> None: ...

    @celery.task
    def outer() -> None:
        inner.delay().get()

    waiting = inner.apply_async(countdown=3600)
    with pytest.raises(TimeoutError):
        waiting.get(timeout=0.01)
    result = outer.delay()
    await run(celery)
    with pytest.raises(RuntimeError, match="Never call result.get"):
        result.get()
    assert isinstance(result.get(propagate=False), RuntimeError)


class Odd(Exception):
    """An exception whose class takes other arguments than its text."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code

    def __str__(self) -> str:
        return f"odd {self.code}"


async def test_an_error_comes_back_as_its_class_with_its_traceback(celery: Celery) -> None:
    @celery.task
    def work(is_odd: bool) -> None:
        raise Odd(7, "x") if is_odd else LookupError("card")

    plain, odd = work.delay(False), work.delay(True)
    await run(celery)
    assert repr(plain.result) == "LookupError('card')" and plain.failed()
    assert plain.traceback.startswith("Traceback (most recent call last)")
    with pytest.raises(Odd) as caught:
        odd.get()
    assert caught.value.args == ("odd 7",)


async def test_a_time_limit_is_the_timeout_of_the_task(celery: Celery) -> None:
    celery.conf.task_time_limit = 60

    @celery.task(time_limit=30, rate_limit="10/m")
    def limited() -> None: ...

    @celery.task
    def plain() -> None: ...

    handlers = celery.fairlead.handlers
    assert handlers[limited.name].processing.timeout == 30
    assert handlers[plain.name].processing.timeout == 60
    assert repr(handlers[limited.name].concurrency).startswith("RateLimit(10, per=60,")
    with pytest.raises(ImproperlyConfigured, match="use '10/s'"):
        celery.task(rate_limit="often")(lambda: None)


# retries ------------------------------------------------------------------------------------------


async def test_self_retry_runs_again_until_max_retries_and_raises_the_cause(
    celery: Celery,
) -> None:
    seen: list[tuple[int, Any]] = []

    @celery.task(bind=True, max_retries=2)
    def pay(self: Task, amount: int) -> None:
        seen.append((self.request.retries, self.request.id))
        try:
            raise ConnectionError("the partner is down")
        except ConnectionError as error:
            raise self.retry(exc=error, countdown=0)

    @celery.task(bind=True, max_retries=1)
    def pay_blindly(self: Task) -> None:
        self.retry(eta=datetime(2020, 1, 1))

    @celery.task(bind=True, max_retries=1)
    def stop_trying(self: Task) -> str:
        try:
            raise self.retry(countdown=0)
        except self.MaxRetriesExceededError:
            return "given up"

    result, blind, last = pay.delay(5), pay_blindly.delay(), stop_trying.delay()
    await run(celery)
    assert seen == [(n, result.id) for n in range(3)]
    with pytest.raises(ConnectionError, match="the partner is down"):
        result.get()
    with pytest.raises(MaxRetriesExceededError, match="Can't retry"):
        blind.get()
    assert last.get() == "given up"


async def test_a_task_that_waits_for_its_retry_is_in_retry(celery: Celery) -> None:
    @celery.task(bind=True)
    def work(self: Task) -> None:
        self.retry(countdown=3600, exc=ValueError("no"))

    result = work.delay()
    async with running(celery.fairlead):
        while await asyncio.to_thread(lambda: result.state) in ("PENDING", "STARTED"):
            await asyncio.sleep(0.01)
    assert (result.state, result.ready()) == ("RETRY", False)


@pytest.mark.parametrize("other", [{"args": [2]}, {"throw": False}, {"queue": "x"}])
async def test_a_retry_with_other_arguments_or_options_is_refused(
    celery: Celery, other: dict[str, Any]
) -> None:
    @celery.task(bind=True)
    def work(self: Task, x: int) -> None:
        if not self.request.retries:
            self.retry((x,), {}, throw=True, countdown=0)  # the same
        self.retry(countdown=0, **other)

    result = work.apply_async((1,), link=None, link_error=[])
    await run(celery)
    with pytest.raises(ImproperlyConfigured, match="for others, submit a task and return"):
        result.get()


def test_an_eager_retry_without_a_limit_ends(celery: Celery) -> None:
    celery.conf.task_always_eager = True

    @celery.task(bind=True, max_retries=None)
    def always(self: Task) -> None:
        self.retry()

    assert isinstance(always.delay().result, Retry)


# base classes and applications --------------------------------------------------------------------


async def test_a_base_class_sees_retries_and_failures(
    celery: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    class Logged(Task):
        abstract = True

        def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            seen.append(f"retry {exc!r}")
            raise RuntimeError("of a hook")

        def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            seen.append(f"failure {exc!r} {'Traceback' in str(einfo)} {einfo.traceback[:9]}")

    @celery.task(base=Logged, bind=True, max_retries=1)
    def work(self: Task) -> int:
        raise self.retry(exc=ValueError("no"), countdown=0)

    @celery.task(base=Logged)
    def odd() -> Any:
        return object()

    work.delay()
    result = odd.delay()
    await run(celery)
    assert sorted(seen)[:2] == [
        "failure InvalidTask" + sorted(seen)[0].removeprefix("failure InvalidTask"),
        "failure ValueError('no') True Traceback",
    ]
    assert seen.count("retry ValueError('no')") == 1 and isinstance(result.result, InvalidTask)
    lines = [each for each in caplog.records if each.name == "fairlead.celery"]
    assert [each.__dict__["hook"] for each in lines] == ["on_retry"]


class InContext(Task):
    """A base class as in the guide of Flask."""

    abstract = True
    seen: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(("enter", self.request.called_directly))
        return super().__call__(*args, **kwargs)


async def test_the_base_class_of_an_application_wraps_each_call_of_its_tasks(
    celery: Celery,
) -> None:
    InContext.seen.clear()
    celery.Task = InContext

    @shared_task(name="shared", bind=True)
    def shared(self: Task, x: int) -> Any:
        return [x, self.request.called_directly, self.request.retries]

    @celery.task(name="own")
    def own(x: int) -> int:
        return x

    results = [shared.delay(1), own.delay(2)]
    await run(celery)
    assert [each.get() for each in results] == [[1, False, 0], 2]
    assert InContext.seen == [("enter", False)] * 2
    assert shared(3)[:2] == [3, True] and InContext.seen[2:] == [("enter", True)]


async def test_shared_tasks_belong_to_every_application(celery: Celery, tmp_path: Path) -> None:
    @shared_task(bind=True, name="shared.work")
    def work(self: Task, x: int) -> Any:
        return [x, self.app.main, current_app.main]

    result = work.delay(1)
    await run(celery)
    assert result.get() == [1, "shop", "shop"]
    other = Celery("other", url=f"sqlite:///{tmp_path}/other.db", set_as_current=False)
    assert "shared.work" in other.fairlead.handlers


async def test_coroutine_functions_are_sent_to_fairleads_own_decorator(celery: Celery) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"`async def`.*app.fairlead.task"):

        @celery.task
        async def work() -> None: ...


# settings -----------------------------------------------------------------------------------------


async def test_settings_are_taken_by_namespace(celery: Celery) -> None:
    class Django:
        CELERY_TASK_ALWAYS_EAGER = "true"
        CELERY_TASK_DEFAULT_QUEUE = "shop"
        CELERY_WORKER_PREFETCH_MULTIPLIER = 4
        CELERY_COLOUR = "blue"
        SECRET_KEY = "x"
        TIME_ZONE = "Europe/Berlin"

    celery.config_from_object(Django, namespace="CELERY")
    assert celery.conf.task_always_eager is True
    assert celery.conf["task_default_queue"] == "shop"
    assert (celery.conf.timezone, celery.conf.colour) == ("Europe/Berlin", "blue")
    with pytest.raises(AttributeError):
        _ = celery.conf.secret_key
    assert "shop" in celery.fairlead.queues


def test_settings_in_the_style_of_celery_3_are_refused(celery: Celery) -> None:
    with pytest.raises(ImproperlyConfigured, match="names such as task_default_queue"):
        celery.config_from_object({"CELERY_DEFAULT_QUEUE": "old"})
    celery.config_from_object({"task_default_queue": "new", "PORT": 1})
    assert celery.conf.task_default_queue == "new" and "port" not in celery.conf


def test_modules_of_tasks_are_imported_at_the_first_use(
    celery: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one_shop").mkdir()
    (tmp_path / "one_shop" / "__init__.py").touch()
    source = "from fairlead.contrib.celery import shared_task\n\n@shared_task\ndef {}(): ...\n"
    (tmp_path / "one_shop" / "tasks.py").write_text(source.format("discovered"))
    (tmp_path / "one_more.py").write_text(source.format("included"))
    monkeypatch.syspath_prepend(tmp_path)
    celery.autodiscover_tasks(["one_shop"])
    celery.conf.include = ["one_more"]
    assert {"one_shop.tasks.discovered", "one_more.included"} <= celery.fairlead.handlers.keys()
