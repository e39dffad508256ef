"""Celery's names on Fairlead: habits of projects, each as Celery 5.7 behaves."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest

from fairlead.contrib.celery import (
    Celery,
    Task,
    chain,
    chord,
    group,
    maybe_signature,
    shared_task,
    signals,
)
from fairlead.contrib.celery.exceptions import ImproperlyConfigured, NotRegistered
from fairlead.contrib.celery.schedules import crontab
from tests.integration.celery_kit import run


@pytest.fixture
def add(celery: Celery) -> Any:
    @celery.task(name="add")
    def add(x: int, y: int = 0) -> int:
        return x + y

    return add


@pytest.fixture
def fail(celery: Celery) -> Any:
    @celery.task(name="fail")
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ValueError("no")

    return fail


class Noted(Task):
    """A base class as in the guide of Flask."""

    abstract = True
    seen: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(("enter", self.request.called_directly))
        return super().__call__(*args, **kwargs)


# base classes -------------------------------------------------------------------------------------


async def test_a_base_class_may_wrap_each_call(celery: Celery) -> None:
    Noted.seen.clear()

    @celery.task(base=Noted, bind=True, name="work")
    def work(self: Task, x: int) -> Any:
        return [x, self.request.called_directly, self.request.retries]

    result = work.delay(1)
    await run(celery)
    assert result.get() == [1, False, 0] and Noted.seen == [("enter", False)]
    assert work(2)[:2] == [2, True], "a direct call goes through it too"
    assert Noted.seen[1:] == [("enter", True)]


@pytest.mark.parametrize("is_late", [False, True])
async def test_the_base_class_of_an_application_is_that_of_its_tasks(
    celery: Celery, is_late: bool
) -> None:
    Noted.seen.clear()
    if not is_late:
        celery.Task = Noted

    @shared_task(name="shared")
    def shared(x: int) -> int:
        return x

    @celery.task(name="own")
    def own(x: int) -> int:
        return x

    celery.Task = Noted
    results = [shared.delay(1), own.delay(2)]
    await run(celery)
    assert [each.get() for each in results] == [1, 2] and len(Noted.seen) == 2
    assert isinstance(shared, Noted) and shared(3) == 3 and len(Noted.seen) == 3


def test_a_shared_task_is_that_of_the_current_application(celery: Celery) -> None:
    class Named(Celery):
        def gen_task_name(self, name: str, module: str) -> str:
            return f"short.{name}"

    @shared_task
    def work() -> int:
        """Work."""
        return 1

    assert (work.__name__, work.__doc__, work.__module__) == ("work", "Work.", __name__)
    assert work.name == f"{__name__}.work" and work == celery.tasks[work.name]
    other = Named("other", url="sqlite:///:memory:")
    assert (work.name, work.app) == ("short.work", other)
    with mock.patch.object(work, "delay", return_value=7):
        assert work.delay() == 7
    assert "delay" not in vars(other.tasks["short.work"])
    work.rate_limit = "5/m"
    assert other.tasks["short.work"].rate_limit == "5/m"


def test_the_registry_of_tasks_registers_and_names_what_it_lacks(celery: Celery, add: Any) -> None:
    class Import(Task):
        name = "import"

        @classmethod
        def on_bound(cls, app: Celery) -> None:
            cls.bound_to = app  # type: ignore[attr-defined]

    celery.tasks.register(Import())
    assert celery.tasks["import"].bound_to is celery
    celery.tasks.unregister(add)
    with pytest.raises(NotRegistered, match="add"):
        celery.tasks["add"]


async def test_a_task_knows_the_exception_of_its_last_retry(celery: Celery) -> None:
    @celery.task(bind=True, max_retries=1, name="work")
    def work(self: Task) -> str:
        try:
            raise self.retry(countdown=0)
        except self.MaxRetriesExceededError:
            return "given up"

    result = work.delay()
    await run(celery)
    assert result.get() == "given up"


@pytest.mark.parametrize("option", ["pydantic", "filter"])
def test_an_option_that_would_change_the_function_is_refused(celery: Celery, option: str) -> None:
    for declare in (celery.task, shared_task):
        with pytest.raises(ImproperlyConfigured, match=f"{option}=: .*: "):
            declare(**{option: True})(lambda: None)


async def test_a_request_takes_attributes_and_a_submit_says_whether_its_result_is_kept(
    celery: Celery,
) -> None:
    @celery.task(bind=True, ignore_result=True, name="work")
    def work(self: Task) -> int:
        self.request.mark = 5  # type: ignore[attr-defined]
        self.request.update(more=2)
        return int(self.request.get("mark") + self.request.more)

    kept, dropped = work.apply_async(ignore_result=False), work.delay()
    await run(celery)
    assert (kept.get(), dropped.get()) == (7, None)


# errbacks -----------------------------------------------------------------------------------------


async def test_an_errback_gets_what_its_parameters_have_room_for(celery: Celery, fail: Any) -> None:
    seen: list[Any] = []

    @celery.task(name="whole")
    def whole(request: Any, exc: Any, traceback: str, note: str, more: int = 0) -> None:
        seen.append([request.id, request.args, request.kwargs, str(exc), note, more])

    @celery.task(name="one")
    def one(value: Any) -> None:
        seen.append(["one", value])

    @celery.task(name="two")
    def two(task_id: str, note: str) -> None:
        seen.append(["two", task_id, note])

    @celery.task(name="rest")
    def rest(*args: Any) -> None:
        seen.append(["rest", len(args)])

    @celery.task(name="bound", bind=True)
    def bound(self: Task, *args: Any) -> None:
        seen.append(["bound", *args])

    errbacks = [whole.s("x", more=1), one.s(), one.si("own"), two.s("x"), rest.s(), bound.s()]
    for options in ({}, {"task_id": "order-17"}):
        seen.clear()
        failed = fail.apply_async((1,), {"b": 2}, link_error=errbacks, **options)
        await run(celery)
        id = failed.id
        assert sorted(seen, key=str) == sorted(
            [
                [id, [1], {"b": 2}, "no", "x", 1],
                ["one", id],
                ["one", "own"],
                ["two", id, "x"],
                ["rest", 3],
                ["bound", id],
            ],
            key=str,
        )


async def test_the_errback_of_a_chain_runs_once(celery: Celery, add: Any, fail: Any) -> None:
    seen: list[str] = []

    @celery.task(name="errback")
    def errback(task_id: str) -> None:
        seen.append(task_id)

    result = chain(add.si(1), fail.si(), add.s(), add.s().on_error(errback.s()))
    result = result.on_error(errback.s()).delay()
    await run(celery)
    assert seen == [result.parent.parent.id]
    seen.clear()
    result = (group(fail.s(), fail.s()) | add.si(1) | add.s()).on_error(errback.s()).delay()
    await run(celery)
    assert seen == [result.parent.id], "that of the body, not of the header"


async def test_an_errback_may_be_a_chain(celery: Celery, add: Any, fail: Any) -> None:
    seen: list[Any] = []

    @celery.task(name="first")
    def first(task_id: str) -> str:
        return task_id

    @celery.task(name="second")
    def second(task_id: str, note: str) -> None:
        seen.append([task_id, note])

    failed = fail.apply_async(link_error=first.s() | second.s("after"))
    await run(celery)
    assert seen == [[failed.id, "after"]]


async def test_an_errback_that_an_earlier_development_version_stored_runs(
    celery: Celery, fail: Any
) -> None:
    seen: list[Any] = []

    @celery.task(name="whole")
    def whole(request: Any, error: BaseException, traceback: str) -> None:
        seen.append([request.id, request.task, str(error)])

    failed = fail.apply_async()
    await run(celery)
    celery.submit(whole.s(), errback_of=failed.id, unique_key=None)  # the message had the id alone
    await run(celery)
    assert seen == [[failed.id, fail.name, "no"]]


def test_an_errback_at_the_call_gets_the_id_alone_too(celery: Celery, fail: Any) -> None:
    celery.conf.task_always_eager = True
    seen: list[str] = []

    @celery.task(name="errback")
    def errback(task_id: str) -> None:
        seen.append(task_id)

    failed = fail.apply_async(link_error=errback.s())
    assert seen == [failed.id]


class Refusal(Exception):
    """An exception with two parameters."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code


class Odd(Exception):
    """An exception whose text is not that of its arguments."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code

    def __str__(self) -> str:
        return f"odd {self.code}"


async def test_an_exception_of_several_arguments_comes_back_as_its_class(celery: Celery) -> None:
    @celery.task(name="refuse")
    def refuse(is_odd: bool) -> None:
        raise Odd(7, "x") if is_odd else Refusal(7, "x")

    results = [refuse.delay(False), refuse.delay(True)]
    await run(celery)
    with pytest.raises(Refusal) as caught:
        results[0].get()
    assert (caught.value.code, caught.value.args) == (7, (7, "x"))
    with pytest.raises(Odd) as odd:
        results[1].get()
    assert odd.value.args == ("odd 7",)


# signatures ---------------------------------------------------------------------------------------


async def test_the_parts_of_a_signature_may_be_changed(celery: Celery, add: Any) -> None:
    one, side, line = add.s(1), group(add.s(1)), chain(add.s(1), add.s(2))
    one.kwargs["y"] = 5
    one.args = (2,)
    side.tasks.append(add.s(9))
    line.tasks[0].kwargs["y"] = 100
    both = chord([add.s(1), add.s(2)], add.si(3))
    both.tasks[0].set(priority=2)
    both.body = add.si(4)
    assert (len(side), bool(group()), len(both.tasks)) == (2, False, 2)
    assert both.tasks[0].options == {"priority": 2}
    results = [each.delay() for each in (one, side, line, both)]
    await run(celery)
    assert [each.get() for each in results] == [7, [1, 9], 103, 4]


def test_signatures_are_copied_and_piped(celery: Celery, add: Any) -> None:
    celery.conf.task_always_eager = True
    for same in (copy.deepcopy(add.s(1)), copy.copy(add.s(1))):
        assert same == add.s(1) and same.delay().get() == 1
    assert ~add.s(1, 2) == 3
    piped = add.s(1)
    piped |= add.s(2)
    assert isinstance(piped, chain) and piped.delay().get() == 3
    assert maybe_signature(None) is None
    assert maybe_signature(piped, app=celery) is piped
    assert maybe_signature(piped, clone=True) == piped


def test_a_group_links_its_first_task_and_its_skew_stays_at_the_stop(
    celery: Celery, add: Any
) -> None:
    side = group(add.s(n) for n in range(4))
    side.link(add.s(1))
    side.link_error(add.s(2))
    assert [len(each.options.get("link", ())) for each in side.tasks] == [1, 0, 0, 0]
    assert [len(each.options["link_error"]) for each in side.tasks] == [1] * 4
    assert side.tasks[0].options["link"][0].immutable
    for option in ("link", "link_error"):
        with pytest.raises(TypeError, match="Cannot add link to group: use a chord"):
            side.apply_async(**{option: add.s(1)})
    assert [each.options["countdown"] for each in side.skew(1, 2).tasks] == [1, 2, 2, 2]


# signals ------------------------------------------------------------------------------------------


async def test_a_header_that_a_signal_adds_reaches_the_request(celery: Celery) -> None:
    seen: list[Any] = []

    def before(sender: Any = None, headers: Any = None, **given: Any) -> None:
        seen.append((sender, headers["id"], headers["tenant"]))
        headers["request_id"] = "abc"

    @celery.task(bind=True, name="work")
    def work(self: Task) -> list[Any]:
        return [self.request.request_id, self.request.get("tenant"), self.request.headers]

    signals.before_task_publish.connect(before, sender="".join(["wo", "rk"]))
    signals.before_task_publish.connect(seen.append, sender="other")
    try:
        result = work.apply_async(headers={"tenant": "acme"})
    finally:
        assert signals.before_task_publish.disconnect(before, sender="work")
        assert signals.before_task_publish.disconnect(seen.append, sender="other")
    await run(celery)
    assert seen == [("work", result.id, "acme")]
    assert result.get() == ["abc", "acme", {"tenant": "acme", "request_id": "abc"}]


def test_receivers_are_known_by_their_uid_and_sender(celery: Celery, add: Any) -> None:
    seen: list[str] = []

    @celery.task(name="other")
    def other() -> None: ...

    def first(**given: Any) -> None:
        seen.append("first")

    def second(**given: Any) -> None:
        seen.append("second")

    signal = signals.task_success
    signal.connect(first, dispatch_uid="once")
    signal.connect(second, dispatch_uid="once")
    signal.connect(second, add)
    try:
        add.apply((1,))
        other.apply()
    finally:
        assert signal.disconnect(dispatch_uid="once") and signal.disconnect(second, add)
    assert seen == ["first", "second", "first"]


def test_instants_may_be_text(celery: Celery, add: Any) -> None:
    record = add.apply_async((1,), eta="2030-01-01T00:00:00+00:00", expires="2031-01-01").record()
    assert record.run_at == int(datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1e6)


async def test_an_expired_and_a_revoked_task_send_the_signal_with_their_request(
    celery: Celery, add: Any
) -> None:
    seen: list[Any] = []

    def receive(sender: Any = None, request: Any = None, expired: Any = None, **_: Any) -> None:
        seen.append((sender.name, request.id, expired))

    signals.task_revoked.connect(receive)
    try:
        old = add.apply_async((1,), expires=datetime.now(UTC) - timedelta(hours=1))
        await run(celery)
        gone = add.apply_async((1,), countdown=60)
        gone.revoke()
    finally:
        signals.task_revoked.disconnect(receive)
    assert seen == [("add", old.id, True), ("add", gone.id, False)]


# settings -----------------------------------------------------------------------------------------


def test_settings_in_the_style_of_celery_3_are_known(celery: Celery) -> None:
    with pytest.raises(ImproperlyConfigured, match="Fairlead never unpickles"):
        celery.config_from_object({"CELERY_TASK_SERIALIZER": "pickle"})
    with pytest.raises(ImproperlyConfigured, match="beat_schedule"):
        celery.config_from_object({"CELERYBEAT_SCHEDULER": "django_celery_beat.schedulers:X"})
    celery.config_from_object(
        {"CELERY_DEFAULT_RATE_LIMIT": "5/m", "CELERYD_PREFETCH_MULTIPLIER": 1}
    )
    assert celery.conf.task_default_rate_limit == "5/m"
    assert list(celery.conf.replaced) == ["worker_prefetch_multiplier"]


def test_the_time_zone_of_django_is_that_of_beat(celery: Celery) -> None:
    class Django:
        CELERY_TASK_DEFAULT_QUEUE = "shop"
        TIME_ZONE = "Europe/Berlin"

    assert str(celery.timezone) == "UTC"
    celery.config_from_object(Django, namespace="CELERY")
    assert str(celery.now().tzinfo) == "Europe/Berlin"
    celery.conf.beat_schedule = {"clean": {"task": "clean", "schedule": crontab(hour=3)}}
    (periodic,) = celery.fairlead.periodics
    assert periodic.timezone == "Europe/Berlin"


def test_local_time_without_a_time_zone_is_refused(celery: Celery) -> None:
    celery.conf.update(
        enable_utc=False, beat_schedule={"clean": {"task": "clean", "schedule": crontab(hour=3)}}
    )
    with pytest.raises(ImproperlyConfigured, match="timezone="):
        _ = celery.fairlead
    celery.conf.timezone = "Europe/Berlin"
    assert celery.fairlead.periodics


def test_redis_named_in_the_environment_turns_priorities(
    celery: Celery, add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://broker/0")
    assert add.apply_async((1,), priority=0).record().priority == 0


def test_an_interval_of_a_week_is_a_weekly_cron(celery: Celery) -> None:
    celery.conf.beat_schedule = {"x": {"task": "a", "schedule": timedelta(days=7)}}
    (periodic,) = celery.fairlead.periodics
    assert periodic.cron == "0 0 * * thu"
