"""Celery's names on Fairlead: what a project's code does after its imports were changed."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import uuid as uuid_module
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fairlead
from fairlead.contrib.celery import (
    Celery,
    Task,
    chord,
    current_app,
    current_task,
    group,
    shared_task,
    signature,
    uuid,
)
from fairlead.contrib.celery.exceptions import (
    Ignore,
    ImproperlyConfigured,
    MaxRetriesExceededError,
    NotRegistered,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    TaskRevokedError,
    TimeoutError,
)
from fairlead.contrib.celery.result import AsyncResult
from fairlead.contrib.celery.schedules import crontab, schedule
from fairlead.contrib.celery.signals import (
    task_failure,
    task_postrun,
    task_prerun,
    task_retry,
    task_success,
    worker_ready,
)
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


async def test_delay_runs_the_function_and_get_returns_its_result(celery: Celery) -> None:
    @celery.task
    def add(x: int, y: int) -> int:
        return x + y

    result = add.delay(2, y=3)
    assert (result.state, result.ready(), result.result) == ("PENDING", False, None)
    await run(celery)
    assert result.get(timeout=0) == 5
    assert (result.state, result.ready(), result.successful()) == ("SUCCESS", True, True)
    assert add(1, 1) == 2 and add.run(1, 1) == 2
    assert celery.AsyncResult(result.id).get() == 5
    assert AsyncResult(result.id).get() == 5, "by the current application"
    assert result.name == add.name == f"{__name__}.add"


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
        self.retry(countdown=0)

    result, blind = pay.delay(5), pay_blindly.delay()
    await run(celery)
    assert seen == [(n, result.id) for n in range(3)]
    with pytest.raises(ConnectionError, match="the partner is down"):
        result.get()
    assert result.failed() and isinstance(result.result, ConnectionError)
    assert "Traceback" in (result.traceback or "")
    with pytest.raises(MaxRetriesExceededError, match="Can't retry"):
        blind.get()


async def test_autoretry_uses_backoff_and_leaves_other_errors(celery: Celery) -> None:
    seen: list[str] = []

    @celery.task(
        bind=True,
        autoretry_for=(OSError,),
        dont_autoretry_for=(FileNotFoundError,),
        retry_backoff=True,
        retry_jitter=True,
        retry_backoff_max=0,
        retry_kwargs={"max_retries": 3},
    )
    def fetch(self: Task, kind: str) -> str:
        seen.append(kind)
        if kind == "other":
            raise FileNotFoundError(kind)
        if self.request.retries < 2:
            raise OSError(kind)
        return "done"

    good, bad = fetch.delay("good"), fetch.delay("other")
    await run(celery)
    assert good.get() == "done"
    assert seen.count("good") == 3 and seen.count("other") == 1
    assert isinstance(bad.result, FileNotFoundError)


async def test_hooks_of_a_base_class_run_in_order(celery: Celery) -> None:
    seen: list[str] = []

    class Logged(Task):
        abstract = True

        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            seen.append("before")

        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            seen.append(f"success {retval}")

        def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            seen.append(f"retry {exc!r}")

        def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            seen.append(f"failure {exc!r} {'Traceback' in str(einfo)}")

        def after_return(
            self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
        ) -> None:
            seen.append(f"after {status}")

    @celery.task(base=Logged, bind=True, max_retries=1)
    def work(self: Task, fails: bool) -> int:
        if fails:
            raise self.retry(exc=ValueError("no"), countdown=0)
        return 7

    work.delay(False)
    await run(celery)
    assert seen == ["before", "success 7", "after SUCCESS"]
    seen.clear()
    work.delay(True)
    await run(celery)
    assert seen == [
        "before",
        "retry ValueError('no')",
        "before",
        "failure ValueError('no') True",
        "after FAILURE",
    ]


async def test_signals_are_sent_at_celerys_points(celery: Celery) -> None:
    seen: list[str] = []
    signals = {
        "prerun": task_prerun,
        "postrun": task_postrun,
        "success": task_success,
        "failure": task_failure,
        "retry": task_retry,
        "ready": worker_ready,
    }
    receivers = []
    for name, signal in signals.items():

        def receive(name: str = name, **given: Any) -> None:
            seen.append(name)

        receivers.append((signal, signal.connect(receive)))

    @celery.task(bind=True)
    def work(self: Task) -> None:
        if not self.request.retries:
            raise self.retry(countdown=0)
        raise ValueError

    try:
        work.delay()
        await run(celery)
    finally:
        for signal, receiver in receivers:
            signal.disconnect(receiver)
    assert seen == ["ready", "prerun", "retry", "postrun", "prerun", "failure", "postrun"]


async def test_a_receiver_hears_only_the_sender_that_it_names(celery: Celery) -> None:
    @celery.task
    def one() -> None: ...

    @celery.task
    def two() -> None: ...

    seen: list[Any] = []

    @task_success.connect(sender=one)
    def receive(sender: Any, **given: Any) -> None:
        seen.append(sender)

    try:
        one.delay()
        two.delay()
        await run(celery)
    finally:
        task_success.disconnect(receive, sender=one)
    assert seen == [one]


async def test_options_of_apply_async_reach_the_task_row(celery: Celery) -> None:
    celery.conf.task_queues = ["mail", "celery"]

    @celery.task(priority=8)
    def work() -> None: ...

    at = datetime(2030, 1, 1, tzinfo=UTC)
    rows = {
        name: work.apply_async(**options).record()
        for name, options in {
            "plain": {},
            "eta": {"eta": at},
            "countdown": {"countdown": 3600},
            "priority": {"priority": 0},
            "queue": {"queue": "mail"},
            "tenant": {"fairness_key": "acme", "weight": 2.0},
        }.items()
    }
    assert rows["plain"].priority == 1, "9 is first, as with RabbitMQ"
    assert rows["priority"].priority == 9
    assert rows["eta"].run_at == int(at.timestamp() * 1e6)
    assert rows["countdown"].state is State.WAITING
    assert (rows["plain"].queue, rows["queue"].queue) == ("celery", "mail")
    assert (rows["tenant"].fairness_key, rows["tenant"].weight) == ("acme", 2.0)
    with pytest.raises(ImproperlyConfigured, match="no worker serves the queue 'typo'"):
        work.apply_async(queue="typo")
    with pytest.raises(ImproperlyConfigured, match="there are no exchanges: use queue="):
        work.apply_async(routing_key="mail.high")
    with pytest.raises(ImproperlyConfigured, match="option land"):
        work.apply_async(land=1)
    with pytest.raises(ImproperlyConfigured, match="whole number from 0 to 9"):
        work.apply_async(priority=10)


def test_with_redis_as_the_broker_priority_0_stays_first(celery: Celery) -> None:
    celery.conf.broker_url = "redis://broker/0"

    @celery.task
    def work() -> None: ...

    assert work.apply_async(priority=0).record().priority == 0  # type: ignore[union-attr]
    assert work.apply_async().record().priority == 5  # type: ignore[union-attr]


async def test_a_task_runs_in_the_queue_of_its_call_and_of_its_route(celery: Celery) -> None:
    celery.conf.task_routes = {"*.mail_*": {"queue": "mail"}, "other": "rest"}
    seen: list[Any] = []

    @celery.task(bind=True)
    def mail_all(self: Task) -> None:
        seen.append(self.request.delivery_info["routing_key"])

    mail_all.delay()
    mail_all.apply_async(queue="rest")
    await run(celery)
    assert sorted(seen) == ["mail", "rest"]


async def test_an_expired_task_is_revoked_and_never_runs(celery: Celery) -> None:
    @celery.task
    def work() -> None:
        raise AssertionError

    late = work.apply_async(expires=datetime(2020, 1, 1, tzinfo=UTC))
    await run(celery)
    assert late.state == "REVOKED"
    with pytest.raises(TaskRevokedError, match="its expiry at 2020"):
        late.get()


def test_revoke_cancels_a_task_that_waits(celery: Celery) -> None:
    @celery.task
    def work() -> None: ...

    result = work.apply_async(countdown=3600)
    result.revoke()
    assert result.state == "REVOKED"
    result.revoke()
    others = [work.apply_async(countdown=3600) for _ in range(3)]
    celery.control.revoke(others[0].id, terminate=True)
    celery.control.revoke([each.id for each in others[1:]])
    assert [each.state for each in others] == ["REVOKED"] * 3


async def test_task_id_is_kept_whatever_it_is(celery: Celery) -> None:
    @celery.task(bind=True)
    def work(self: Task) -> Any:
        return self.request.id

    ids = [uuid(), str(uuid_module.uuid4()), "order-17"]
    results = [work.apply_async(task_id=each) for each in ids]
    assert [each.id for each in results] == ids
    assert [each.state for each in results] == ["PENDING"] * 3
    await run(celery)
    assert [AsyncResult(each).get() for each in ids] == ids


async def test_tasks_before_and_after_one_with_a_chosen_id_find_it(celery: Celery) -> None:
    @celery.task
    def add(x: int, y: int = 1) -> int:
        return x + y

    for chosen in (uuid(), str(uuid_module.uuid4())):
        last = (add.s(1) | add.s()).apply_async(task_id=chosen, link=add.s(10))
        assert last.id == chosen
        await run(celery)
        assert last.get() == 3
        kept = celery.fairlead.management.find(state="DONE", limit=10)
        assert sum(celery.fairlead.handle(each.id).result() == 13 for each in kept) >= 1


def test_an_id_of_ones_own_submits_once_and_a_taken_id_is_refused(celery: Celery) -> None:
    @celery.task
    def work() -> None: ...

    results = [work.apply_async(task_id="order-17") for _ in range(2)]
    assert [each.id for each in results] == ["order-17"] * 2
    assert celery.fairlead.management.count().number == 1
    chosen = work.apply_async(task_id=uuid()).id
    with pytest.raises(InvalidTask, match="which is SUBMITTED; make an id for each submit"):
        work.apply_async(task_id=chosen)


def test_the_state_of_an_unknown_id_is_pending(celery: Celery) -> None:
    assert AsyncResult(uuid()).state == "PENDING"
    assert AsyncResult("nothing").state == "PENDING"


async def test_a_soft_time_limit_raises_in_the_task(celery: Celery) -> None:
    caught: list[bool] = []

    @celery.task(soft_time_limit=0.05, time_limit=60)
    def work(catches: bool) -> str:
        try:
            while True:
                pass
        except SoftTimeLimitExceeded:
            caught.append(True)
            if not catches:
                raise
        return "cleaned up"

    good, bad = work.delay(True), work.delay(False)
    await run(celery)
    assert good.get() == "cleaned up" and caught == [True, True]
    with pytest.raises(SoftTimeLimitExceeded):
        bad.get()


async def test_ignore_and_reject_end_a_run(celery: Celery) -> None:
    runs: list[str] = []

    @celery.task
    def ignored() -> None:
        raise Ignore

    @celery.task
    def rejected() -> None:
        raise Reject("bad message", requeue=False)

    @celery.task(bind=True)
    def requeued(self: Task) -> None:
        runs.append("run")
        if len(runs) == 1:
            raise Reject("again", requeue=True)

    first, second, third = ignored.delay(), rejected.delay(), requeued.delay()
    await run(celery)
    assert first.get() is None
    with pytest.raises(Reject):
        second.get()
    assert third.get() is None and runs == ["run", "run"]


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

    result, chained = work.delay(), (first.s() | second.s())()
    await run(celery)
    assert result.get() is None
    assert chained.get() == 4, "a task of a chain passes its result on all the same"


async def test_get_has_a_timeout_and_is_refused_inside_a_task(celery: Celery) -> None:
    @celery.task
    def inner() -> None: ...

    @celery.task
    def outer() -> None:
        inner.delay().get()

    waiting = inner.apply_async(countdown=3600)
    with pytest.raises(TimeoutError):
        waiting.get(timeout=0.01)
    waiting.revoke()
    result = outer.delay()
    await run(celery)
    with pytest.raises(RuntimeError, match="Never call result.get"):
        result.get()
    assert isinstance(result.get(propagate=False), RuntimeError)


async def test_shared_tasks_belong_to_every_application(celery: Celery, tmp_path: Path) -> None:
    @shared_task(bind=True, name="shared.work")
    def work(self: Task, x: int) -> Any:
        assert current_task.name == "shared.work"
        return [x, self.app.main, current_app.main]

    result = work.delay(1)
    assert result.app is celery
    await run(celery)
    assert result.get() == [1, "shop", "shop"]
    other = Celery("other", url=f"sqlite:///{tmp_path}/other.db", set_as_current=False)
    assert "shared.work" in other.tasks
    assert "shared.work" in other.fairlead.handlers


async def test_classes_of_tasks_and_tasks_by_name(celery: Celery) -> None:
    class Import(Task):
        name = "shop.import"

        def run(self, x: int) -> int:
            return x + 1

    celery.register_task(Import())
    result = celery.send_task("shop.import", args=[1])
    await run(celery)
    assert result.get() == 2
    with pytest.raises(NotRegistered, match="no task 'shop.typo' is registered"):
        celery.send_task("shop.typo")
    foreign = celery.send_task("billing.charge", kwargs={"x": 1}, queue="billing")
    assert foreign.record().name == "billing.charge"


async def test_headers_and_parents_are_in_the_request(celery: Celery) -> None:
    seen: dict[str, Any] = {}

    @celery.task(bind=True)
    def child(self: Task) -> None:
        seen["child"] = (self.request.parent_id, self.request.root_id)

    @celery.task(bind=True)
    def parent(self: Task) -> None:
        seen["headers"] = (self.request.headers, self.request.tenant, self.request.get("no"))
        child.delay()

    result = parent.apply_async(headers={"tenant": "acme"})
    await run(celery)
    assert seen == {
        "headers": ({"tenant": "acme"}, "acme", None),
        "child": (result.id, result.id),
    }


def test_eager_mode_runs_here_with_retries_and_canvas(celery: Celery) -> None:
    celery.conf.task_always_eager = True

    @celery.task(bind=True, max_retries=2)
    def add(self: Task, x: int, y: int) -> int:
        if self.request.retries < 1:
            raise self.retry(countdown=60)
        assert self.request.is_eager
        return x + y

    @celery.task
    def fail() -> None:
        raise ValueError("no")

    assert add.delay(1, 2).get() == 3
    assert (add.s(1, 2) | add.s(3)).delay().get() == 6
    assert chord([add.s(1, 1), add.s(2, 2)])(signature(total(celery).s())).get() == 6
    assert group(add.s(1, 1), add.s(1, 2))().get() == [2, 3]
    failed = fail.delay()
    assert failed.state == "FAILURE"
    with pytest.raises(ValueError, match="no"):
        failed.get()
    celery.conf.task_eager_propagates = True
    with pytest.raises(ValueError, match="no"):
        fail.delay()
    assert fail.apply(throw=False).failed()


def total(celery: Celery) -> Any:
    @celery.task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    return total


def test_a_direct_call_of_a_bound_task_cannot_retry(celery: Celery) -> None:
    @celery.task(bind=True)
    def work(self: Task) -> None:
        assert self.request.called_directly and self.request.id is None
        raise self.retry(exc=KeyError("x"))

    with pytest.raises(KeyError):
        work()

    @celery.task(bind=True)
    def other(self: Task) -> None:
        self.retry()

    with pytest.raises(Retry):
        other()


async def test_a_retry_with_other_arguments_is_a_new_task_that_counts_on(celery: Celery) -> None:
    seen: list[tuple[int, int]] = []

    @celery.task(bind=True, max_retries=3)
    def work(self: Task, x: int) -> None:
        seen.append((x, self.request.retries))
        self.retry(args=[x + 1], countdown=0)

    @celery.task(bind=True)
    def parts(self: Task, numbers: list[int]) -> int:
        if len(numbers) > 1:
            for number in numbers:
                self.retry([[number]], countdown=0, throw=False)
            return 0
        seen.append((numbers[0], self.request.retries))
        return numbers[0]

    work.delay(1)
    await run(celery)
    assert seen == [(1, 0), (2, 1), (3, 2), (4, 3)]
    seen.clear()
    parts.delay([7, 8])
    await run(celery)
    assert sorted(seen) == [(7, 1), (8, 1)]
    seen.clear()
    celery.conf.task_always_eager = True
    parts.delay([5, 6])
    assert seen == [(5, 1), (6, 1)]


async def test_a_retry_of_a_task_that_others_wait_for_keeps_its_arguments(celery: Celery) -> None:
    @celery.task(bind=True)
    def work(self: Task, x: int) -> None:
        self.retry(args=[x + 1], countdown=0)

    @celery.task(bind=True)
    def same(self: Task, x: int) -> int:
        if not self.request.retries:
            self.retry(args=[x], kwargs={}, countdown=0)
        return x

    @celery.task
    def after(x: int) -> int:
        return x

    result, good = (work.s(1) | after.s())(), (same.s(2) | after.s())()
    await run(celery)
    with pytest.raises(ImproperlyConfigured, match="other tasks wait for the result of this run"):
        result.parent.get()
    assert good.get() == 2


def test_settings_are_taken_by_namespace_and_in_the_old_style(celery: Celery) -> None:
    class Django:
        CELERY_TASK_ALWAYS_EAGER = "true"
        CELERY_TASK_DEFAULT_QUEUE = "shop"
        CELERY_WORKER_PREFETCH_MULTIPLIER = 4
        CELERY_COLOUR = "blue"
        SECRET_KEY = "x"

    celery.config_from_object(Django, namespace="CELERY")
    assert celery.conf.task_always_eager is True
    assert celery.conf["task_default_queue"] == "shop"
    assert celery.conf.unknown == {"colour": None}
    assert "a worker claims only" in celery.conf.replaced["worker_prefetch_multiplier"]
    old = Celery("old", set_as_current=False)
    old.config_from_object({"CELERY_DEFAULT_QUEUE": "old", "CELERYD_CONCURRENCY": 4, "PORT": 1})
    assert old.conf.task_default_queue == "old" and not old.conf.unknown
    with pytest.raises(AttributeError):
        _ = old.conf.no_such_setting


async def test_unknown_settings_are_logged_once_the_application_is_used(
    celery: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    celery.conf.colour = "blue"
    with caplog.at_level(logging.WARNING, "fairlead.celery"):
        _ = celery.fairlead
    assert [record.setting for record in caplog.records] == ["colour"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "expression"),
    [
        (crontab(), "* * * * *"),
        (crontab(minute=0, hour="*/3"), "0 */3 * * *"),
        (crontab(minute="*/15", day_of_week="mon-fri"), "*/15 * * * mon-fri"),
        (crontab(minute=[0, 30], hour={8, 20}), "0,30 8,20 * * *"),
        (crontab(0, 0, day_of_month="1", month_of_year="*/3"), "0 0 1 */3 *"),
        (timedelta(minutes=15), "*/15 * * * *"),
        (schedule(7200), "0 */2 * * *"),
        (86_400.0, "0 0 * * *"),
    ],
)
def test_a_schedule_becomes_a_cron_expression(celery: Celery, given: Any, expression: str) -> None:
    celery.conf.beat_schedule = {"clean": {"task": "shop.clean", "schedule": given}}
    (periodic,) = celery.fairlead.periodics
    assert (periodic.cron, periodic.name) == (expression, "beat: clean")


def test_schedules_that_cron_cannot_express_are_refused(celery: Celery) -> None:
    with pytest.raises(ImproperlyConfigured, match="day_of_month and day_of_week"):
        crontab(day_of_month=1, day_of_week="mon")
    with pytest.raises(ImproperlyConfigured, match="shortest interval is one second"):
        schedule(0.5)
    celery.conf.beat_schedule = {"x": {"task": "a", "schedule": "often"}}
    with pytest.raises(ImproperlyConfigured, match="use crontab"):
        _ = celery.fairlead
    celery.conf.beat_schedule = {"x": {"task": "a", "schedule": 60, "cron": 1}}
    with pytest.raises(ImproperlyConfigured, match="beat_schedule"):
        _ = celery.fairlead


async def test_a_due_time_of_beat_submits_its_task_once(celery: Celery) -> None:
    seen: list[Any] = []

    @celery.task(bind=True)
    def clean(self: Task, what: str, *, deep: bool) -> None:
        seen.append((what, deep, self.request.delivery_info["priority"]))

    @celery.on_after_configure.connect
    def declare(sender: Celery, **given: Any) -> None:
        sender.add_periodic_task(
            crontab(minute=0), clean.s("cache", deep=True).set(priority=3), name="hourly"
        )

    celery.conf.beat_schedule = {
        "often": {"task": clean.name, "schedule": 25, "args": ["logs"], "kwargs": {"deep": False}}
    }
    slot = datetime(2026, 1, 1, tzinfo=UTC)
    for periodic in celery.fairlead.periodics:
        for _ in range(2):
            await asyncio.to_thread(periodic.handler.function, slot)
    await run(celery)
    assert sorted(seen) == [
        ("cache", True, 3),
        ("logs", False, 4),
        ("logs", False, 4),
        ("logs", False, 4),
    ]


async def test_a_rate_limit_and_annotations_reach_the_handler(celery: Celery) -> None:
    celery.conf.task_annotations = {"*": {"rate_limit": "10/m"}}

    @celery.task(time_limit=30)
    def work() -> None: ...

    handler = celery.fairlead.handlers[work.name]
    assert repr(handler.concurrency).startswith("RateLimit(10, per=60,")
    assert handler.processing.timeout == 30
    with pytest.raises(ImproperlyConfigured, match="use '10/s'"):
        celery.conf.task_annotations = {"*": {"rate_limit": "often"}}
        other = Celery("other", changes=dict(celery.conf), set_as_current=False)
        other.task(lambda: None)
        _ = other.fairlead


async def test_tasks_join_the_callers_transaction(celery: Celery, tmp_path: Path) -> None:
    app = Celery("own", url=f"sqlite:///{tmp_path}/own.db")
    app.declaring.migrate()

    @app.task
    def work(x: int) -> int:
        return x

    _ = app.fairlead
    connection = sqlite3.connect(tmp_path / "own.db", isolation_level=None)
    for ends in ("ROLLBACK", "COMMIT"):
        connection.execute("BEGIN")
        work.apply_async((1,), connection=connection)
        (work.s(1) | work.s()).apply_async(connection=connection)
        connection.execute(ends)
        expected = 0 if ends == "ROLLBACK" else 3
        assert app.fairlead.management.count().number == expected
    connection.close()
    app.close()


async def test_coroutine_functions_are_sent_to_fairleads_own_decorator(celery: Celery) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"`async def`.*app.fairlead.task"):

        @celery.task
        async def work() -> None: ...


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
        await asyncio.to_thread(result.revoke, terminate=True)
    assert ended == [True] and result.state == "REVOKED"
