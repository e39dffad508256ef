"""Celery's names on Fairlead: what larger projects use beside tasks and results."""

from __future__ import annotations

import asyncio
import importlib
import json
import threading
from typing import Any

import pytest

import fairlead
from fairlead.contrib.celery import Celery, Task, chain, group, signature
from fairlead.contrib.celery.exceptions import Ignore, ImproperlyConfigured, Retry
from fairlead.contrib.celery.result import GroupResult, ResultSet
from fairlead.contrib.celery.schedules import solar
from fairlead.contrib.celery.signals import after_task_publish, task_received
from fairlead.model import State
from fairlead.testing import running
from tests.integration.celery_kit import run


@pytest.fixture
def add(celery: Celery) -> Any:
    @celery.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    return add


# custom states ------------------------------------------------------------------------------------


async def test_a_custom_state_is_seen_while_the_task_runs(celery: Celery) -> None:
    go, begun = threading.Event(), threading.Event()

    @celery.task(bind=True)
    def work(self: Task) -> str:
        self.update_state(state="PROGRESS", meta={"current": 3, "total": 4, "note": "\u00fc"})
        begun.set()
        go.wait(30)
        return "done"

    result = work.delay()
    async with running(celery.fairlead):
        await asyncio.to_thread(begun.wait, 30)
        while await asyncio.to_thread(lambda: result.state) != "PROGRESS":
            await asyncio.sleep(0.01)
        assert await asyncio.to_thread(lambda: result.info) == {
            "current": 3,
            "total": 4,
            "note": "\u00fc",
        }
        assert not await asyncio.to_thread(result.ready)
        progress = await celery.fairlead.handle(result.id).progress_async()
        assert progress is not None and (progress.done, progress.total) == (3, 4)
        go.set()
        assert await asyncio.to_thread(result.get, timeout=30) == "done"
    assert (result.state, result.info) == ("SUCCESS", "done")


async def test_a_custom_state_that_cannot_be_shown_is_refused_with_the_cure(
    celery: Celery,
) -> None:
    texts: list[str] = []

    @celery.task(bind=True)
    def work(self: Task) -> None:
        for given in (
            {"task_id": "another", "state": "PROGRESS"},
            {"state": "IN WORK"},
            {"state": None},
            {"state": "PROGRESS", "meta": {"rows": "x" * 1000}},
        ):
            with pytest.raises(ImproperlyConfigured) as caught:
                self.update_state(**given)  # type: ignore[arg-type]
            texts.append(str(caught.value))

    work.delay()
    await run(celery)
    assert len(texts) == 4 and "only the run itself reports its state" in texts[0]
    assert "one word" in texts[1] and "1,000" in texts[3]
    with pytest.raises(ImproperlyConfigured, match="only the run itself"):
        work.update_state(state="PROGRESS")


async def test_the_state_of_a_run_that_ignores_its_end_stays(celery: Celery, add: Any) -> None:
    @celery.task(bind=True)
    def work(self: Task) -> None:
        self.update_state(state="FAILURE", meta={"exc": "no card"})
        raise Ignore

    @celery.task
    def silent() -> None:
        raise Ignore

    result, plain, after = work.delay(), silent.delay(), chain(silent.si(), add.s(1))()
    await run(celery)
    assert (result.state, result.info, result.failed()) == ("FAILURE", {"exc": "no card"}, True)
    assert (plain.state, plain.get()) == ("SUCCESS", None)
    assert after.state == "FAILURE" and after.record().state is State.CANCELLED
    assert "raised Ignore" in str(after.result), "the rest of the chain does not run"


async def test_an_error_comes_back_with_its_argument_and_its_traceback(celery: Celery) -> None:
    @celery.task(name="work")
    def work() -> None:
        raise KeyError("card")

    result = work.delay()
    await run(celery)
    assert repr(result.result) == "KeyError('card')"
    assert result.traceback.startswith("Traceback (most recent call last)")


# hooks --------------------------------------------------------------------------------------------


async def test_an_exception_of_a_hook_does_not_change_the_end_of_the_run(
    celery: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Task):
        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            raise RuntimeError("hook")

        on_failure = on_retry = on_success  # type: ignore[assignment]

        def after_return(self, *args: Any) -> None:
            raise RuntimeError("hook")

    @celery.task(base=Broken, bind=True, name="work")
    def work(self: Task, kind: str) -> str:
        if kind == "retry" and not self.request.retries:
            self.retry(countdown=0)
        if kind == "fail":
            raise ValueError("no")
        return kind

    good, bad, again = work.delay("good"), work.delay("fail"), work.delay("retry")
    await run(celery)
    assert (good.get(), again.get()) == ("good", "retry")
    assert isinstance(bad.result, ValueError)
    lines = [each for each in caplog.records if each.message == "a hook raised an exception"]
    assert len(lines) == 7 and {each.__dict__["hook"] for each in lines} == {
        "on_success",
        "on_failure",
        "on_retry",
        "after_return",
    }


async def test_a_result_that_is_not_json_fails_the_run_with_its_hooks(celery: Celery) -> None:
    seen: list[str] = []

    class Noted(Task):
        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            seen.append("success")

        def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            seen.append(type(exc).__name__)

    @celery.task(base=Noted, name="work")
    def work() -> Any:
        return object()

    result = work.delay()
    await run(celery)
    assert result.failed() and seen == ["InvalidTask"]


# canvas -------------------------------------------------------------------------------------------


async def test_map_starmap_and_chunks_call_the_task_with_each_item(
    celery: Celery, add: Any
) -> None:
    @celery.task(name="total", queue="sums")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    pairs = [(n, n) for n in range(5)]
    mapped, starred = total.map(iter([[1, 2], [3]])).apply_async(), add.starmap(pairs).delay()
    parts = add.chunks(iter(pairs), 2)
    stored = signature(json.loads(json.dumps(parts)), app=celery)
    chunked, again = parts(), stored.apply_async()
    await run(celery)
    assert mapped.get() == [3, 3] and mapped.queue == "sums"
    assert starred.get() == [0, 2, 4, 6, 8]
    assert chunked.get() == again.get() == [[0, 2], [4, 6], [8]]


def test_signatures_are_read_replaced_and_made_of_maps(celery: Celery, add: Any) -> None:
    one = add.s(1, 2)
    assert (one.name, one.type) == ("add", add)
    assert one.replace(args=(3,)).args == (3,) and one.args == (1, 2)
    assert type(signature(dict(group(one)), app=celery)) is group
    stored = one.from_dict(json.loads(json.dumps(one)), app=celery)
    assert (repr(stored), stored.args) == ("add(1, 2)", (1, 2))
    assert chain().apply_async() is None
    waits = [
        each.options["countdown"]
        for each in group(add.s(n, 1) for n in range(3)).skew(1, 9, 2).tasks
    ]
    assert waits == [1, 3, 5]


# results ------------------------------------------------------------------------------------------


async def test_a_set_of_results_waits_for_all_and_calls_back(celery: Celery, add: Any) -> None:
    first, second = add.delay(1, 1), add.delay(2, 2)
    results = ResultSet([first])
    results.add(second)
    results.update([first, second])
    assert len(results) == 2 and results.waiting()
    await run(celery)
    assert results.get() == [2, 4]
    seen: list[tuple[str, Any]] = []
    assert results.join(callback=lambda id, value: seen.append((id, value))) == []
    assert seen == [(first.id, 2), (second.id, 4)]
    results.remove(first.id)
    assert results.results == [second]
    with pytest.raises(KeyError):
        results.remove(first)
    seen.clear()
    first.get(callback=lambda id, value: seen.append((id, value)))
    assert seen == [(first.id, 2)]
    assert first.date_done is not None and (first.retries, first.queue) == (0, "celery")
    grouped = GroupResult("g", [first, second])
    assert grouped == GroupResult("g", [first, second]) and grouped.as_list() == [
        first.id,
        second.id,
    ]


def test_what_is_not_carried_over_says_why_and_what_to_use(celery: Celery, add: Any) -> None:
    result = celery.AsyncResult("x")
    for call, text in (
        (lambda: add.replace, "a running task cannot become another; instead: submit"),
        (lambda: result.children, "instead: return their ids"),
        (lambda: result.then, "link="),
        (lambda: GroupResult("g").save, r"result.as_tuple\(\)"),
        (lambda: add.s(1).freeze, "set\\(task_id="),
        (lambda: celery.connection, "there is no broker; instead: app.fairlead"),
        (lambda: celery.worker_main, "fairlead worker MODULE:APP"),
        (lambda: celery.control.inspect, "fairlead nodes"),
        (lambda: celery.conf.worker_prefetch_multiplier, "a worker claims only"),
    ):
        with pytest.raises(AttributeError, match=text):
            call()
    assert not hasattr(add, "nothing") and not hasattr(celery, "nothing")
    with pytest.raises(ImproperlyConfigured, match="on_message"):
        result.get(on_message=print)
    with pytest.raises(ImproperlyConfigured, match="no schedules by the sun"):
        solar("sunset", 1, 2)
    with pytest.raises(ImproperlyConfigured, match="beat_schedule"):
        celery.conf.beat_scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
    celery.conf.beat_scheduler = "celery.beat:PersistentScheduler"


# the application ----------------------------------------------------------------------------------


async def test_a_route_by_arguments_chooses_queue_and_options_of_each_submit(
    celery: Celery,
) -> None:
    def by_tenant(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **kw: Any):  # type: ignore[no-untyped-def]
        return {"queue": "large", "priority": 9} if args[:1] == ("acme",) else None

    celery.conf.task_routes = (by_tenant, {"shop.*": {"queue": "any"}, "shop.mail": "mail"})
    celery.conf.task_queues = ["large"]

    @celery.task(name="shop.mail")
    def mail(tenant: str) -> None: ...

    @celery.task(name="shop.other", priority=1)
    def other(tenant: str) -> None: ...

    results = [mail.delay("acme"), mail.delay("b"), other.delay("b"), other.delay("acme")]
    rows = [celery.fairlead.management.show(each.id) for each in results]
    assert [row.queue for row in rows] == ["large", "mail", "any", "large"]
    assert [row.priority for row in rows] == [0, 5, 8, 8], "that of the task comes before routes"
    celery.conf.task_routes = (object(),)
    with pytest.raises(ImproperlyConfigured, match="is no route; use a map"):
        mail.delay("b")


async def test_annotations_may_replace_hooks(celery: Celery) -> None:
    seen: list[str] = []

    def on_failure(self: Task, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        seen.append(f"{self.name}: {exc}")

    celery.conf.task_annotations = {"*": {"on_failure": on_failure}}

    @celery.task(name="bad")
    def bad() -> None:
        raise ValueError("no")

    bad.delay()
    await run(celery)
    assert seen == ["bad: no"]


@pytest.mark.parametrize("given", [{"*": {"@__call__": print}}, [print]])
def test_annotations_that_cannot_be_applied_are_refused(celery: Celery, given: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="methods are not wrapped|no map of annotations"):
        celery.conf.task_annotations = given


async def test_a_submit_sends_its_signal_and_others_say_that_they_never_come(
    celery: Celery, add: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    def receive(sender: Any = None, body: Any = None, **given: Any) -> None:
        seen.append((sender, body[0]))

    after_task_publish.connect(receive)
    task_received.connect(receive)
    try:
        add.delay(1, 2)
    finally:
        after_task_publish.disconnect(receive)
        task_received.disconnect(receive)
    assert seen == [("add", [1, 2])]
    (line,) = [each for each in caplog.records if each.message == "a signal is never sent"]
    assert line.__dict__["instead"] == "use task_prerun"


@pytest.mark.parametrize("name", ["app", "app.task", "app.base", "app.control", "app.routes"])
def test_paths_of_celerys_modules_exist(name: str) -> None:
    assert importlib.import_module(f"fairlead.contrib.celery.{name}")


# at the call --------------------------------------------------------------------------------------


def test_a_run_at_the_call_ends_as_a_worker_would_end_it(celery: Celery, add: Any) -> None:
    celery.conf.task_always_eager = True
    seen: list[Any] = []

    @celery.task
    def note(value: Any) -> None:
        seen.append(value)

    @celery.task(bind=True)
    def grow(self: Task, x: int) -> int:
        if x < 3:
            raise self.retry(args=[x + 1], countdown=0)
        return x

    @celery.task
    def outer() -> int:
        return int(add.delay(1, 1).get())

    @celery.task
    def ignored() -> None:
        raise Ignore

    add.apply((1, 2), link=note.s())
    assert seen == [3]
    result = grow.delay(1)
    assert (result.state, result.get()) == ("SUCCESS", 3)
    with pytest.raises(RuntimeError, match="Never call result.get"):
        outer.delay().get()
    result = ignored.delay()
    assert (result.state, result.ready(), result.children) == ("IGNORED", True, None)
    assert Retry(when=5).humanize() == "in 5s"
    assert fairlead.current_task() is None
