"""Run tasks: payloads, results, priorities, names, and broken arguments."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import fairlead
from fairlead import (
    App,
    NoRetry,
    State,
)
from fairlead.errors import (
    ConfigurationError,
    InvalidTask,
    ResultNotKept,
    TaskFailed,
    UnknownTask,
)
from fairlead.operate.changes import Cancel, Fail
from fairlead.testing import drain, running, settled
from fairlead.testing.clock import TravelClock
from tests.attempts import SOON, reaches
from tests.builders import changed_all, idle
from tests.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.mark.smoke
@pytest.mark.parametrize(("end", "number"), [("done", 1), ("failed", 60), ("cancelled", 1100)])
async def test_a_unique_key_is_taken_until_its_task_ends_and_its_window_passes(
    app: App, end: str, number: int
) -> None:
    @app.task(retry=NoRetry())
    async def sync(n: int) -> None:
        if end == "failed":
            raise ValueError(n)

    def submitted(**options: Any) -> list[fairlead.TaskHandle]:
        keyed = [sync.options(unique_key=f"key-{n}", **options) for n in range(number)]
        return app.submit_many([task.draft(n) for n, task in enumerate(keyed)])

    async def end_all() -> None:
        if end != "cancelled":
            await drain(app)
        if end == "failed":  # a person may retry a task in ERROR, so it keeps its key
            assert not any(handle.is_new for handle in submitted())
        if end != "done":
            changed_all(app.management, Cancel() if end == "cancelled" else Fail(), name="sync")

    app.clock = clock = TravelClock()
    for options in ({}, {}, {"unique_for": timedelta(days=1)}, {"unique_for": timedelta(days=1)}):
        handles, again = submitted(**options), submitted()
        assert all(handle.is_new for handle in handles)
        assert [(each.id, each.is_new) for each in again] == [(each.id, False) for each in handles]
        await end_all()
        if options:
            clock.travel(timedelta(hours=23))
            assert not any(handle.is_new for handle in submitted())
            clock.travel(timedelta(hours=1))


async def test_a_payload_of_12_mb_and_its_result_arrive_whole(store_url: str) -> None:
    app = App(store_url, payload_limit=16 << 20)
    app.migrate()

    @app.task(keep_result=True)
    async def length(text: str) -> int:
        return len(text)

    text = "".join(chr(97 + n * 7 % 26) for n in range(1 << 16)) * 180
    handle = length.submit(text=text)
    async with running(app):
        assert await handle.result_async(SOON) == len(text) == 11_796_480
    app.close()


async def test_a_task_waits_for_a_worker_that_knows_its_name(app: App) -> None:
    other = App(app.url)
    other.queue("default")

    @other.task(queue="default", keep_result=True)
    async def strange() -> int:
        return 2

    @app.task(keep_result=True)
    async def works() -> int:
        return 1

    stranger = strange.submit()
    async with running(app):
        assert await works.submit().result_async(SOON) == 1
        record = stranger.record()
        assert (record.state, record.tries) == (State.SUBMITTED, 0)
        async with running(other):
            await reaches(app, stranger, State.DONE)
    other.close()


async def test_a_handler_knows_its_task_and_its_log_lines_carry_the_context(
    app: App, caplog
) -> None:
    seen: list[fairlead.CurrentTask] = []
    caplog.handler.addFilter(fairlead.ContextFilter())

    @app.task(timeout=60)
    async def look() -> None:
        task = fairlead.current_task()
        assert task is not None
        seen.append(task)
        logging.getLogger("shop").warning("looking")

    handle = look.options(fairness_key="acme", context={"trace": "abc"}).submit()
    await drain(app)
    (task,) = seen
    assert (task.id, task.name, task.attempt, task.tries, task.fairness_key) == (
        handle.id,
        "look",
        1,
        1,
        "acme",
    )
    assert task.deadline is not None
    assert task.deadline > datetime.now(UTC)
    assert task.context == {"trace": "abc"}
    (record,) = [record for record in caplog.records if record.name == "shop"]
    assert (record.task_id, record.context) == (handle.id, {"trace": "abc"})  # type: ignore[attr-defined]


async def test_a_handle_by_id_finds_state_and_result_in_another_application(app: App) -> None:
    @app.task(keep_result=True)
    def double(n: int) -> int:
        return 2 * n

    nothing = idle(app, "nothing", keep_result=True)
    forgotten = idle(app, "forgotten")
    other = App(app.url)
    found, empty, lost = (
        other.handle(task.submit(**arguments).id)
        for task, arguments in ((double, {"n": 4}), (nothing, {}), (forgotten, {}))
    )
    assert found.state() == State.SUBMITTED and not found.is_new
    async with running(app):
        assert await found.result_async(timeout=SOON) == 8
        assert await empty.result_async(timeout=SOON) is None
        with pytest.raises(ResultNotKept, match="keep_result=True"):
            await app.handle(lost.id).result_async(timeout=SOON)
    with pytest.raises(UnknownTask, match="no task"):
        other.handle("not an id").state()
    for wrong in (7, "", "a\0b", None):
        with pytest.raises(InvalidTask, match="id"):
            other.handle(wrong)  # type: ignore[arg-type]
    other.close()


@pytest.mark.parametrize("executor", [None, pytest.param("process", marks=pytest.mark.system_time)])
async def test_a_result_above_the_limit_ends_the_attempt_with_its_size(
    store_url: str, executor: str | None, tmp_path, monkeypatch
) -> None:
    (tmp_path / "long_app.py").write_text(
        f"import fairlead\napp = fairlead.App({store_url!r}, result_limit=100)\n"
        f"@app.task(executor={executor!r}, keep_result=True)\n"
        "def repeat(n: int) -> str:\n    return n * 'x'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "long_app", raising=False)
    module = importlib.import_module("long_app")
    module.app.migrate()
    fits, is_long = module.repeat.submit(98), module.repeat.submit(99)
    async with running(module.app, application="long_app:app"):
        assert await fits.result_async(SOON) == 98 * "x"
        await reaches(module.app, is_long, State.ERROR)
    assert "its result has 101 bytes, more than 100" in is_long.record().error_text
    with pytest.raises(TaskFailed, match="raise result_limit on the App"):
        is_long.result()
    module.app.close()
    with pytest.raises(ConfigurationError, match="result_limit"):
        App(store_url, result_limit=0)


async def test_a_task_whose_arguments_no_longer_fit_its_handler_goes_to_error(app: App) -> None:
    old = App(app.url)

    @old.task(name="pay", queue="default")
    async def pay_old(amount: str) -> None: ...

    @app.task
    async def pay(amount: int) -> None: ...

    handle = pay_old.submit(amount="many")
    await drain(app)
    assert handle.state() == State.ERROR
    assert "payload does not fit task 'pay'" in (handle.record().error_text or "")
    old.close()


async def test_tasks_with_broken_payloads_go_to_error_and_the_worker_continues(app: App) -> None:
    @app.task
    async def pay(amount: int) -> None: ...

    broken = {
        "not utf-8": b'{"amount": "\xff"}',
        "not json": b"{",
        "not zlib": b"zzz",
        "empty": b"",
    }
    handles = {why: pay.submit(amount=1) for why in broken}
    good = pay.submit(amount=1)
    mark = "%s" if app.store.database.dialect == "postgres" else "?"
    with app.store.database.transaction() as connection:
        for why, payload in broken.items():
            kind = "json+zlib" if why == "not zlib" else "json"
            connection.execute(
                f"UPDATE fairlead_tasks SET payload = {mark}, payload_format = {mark} WHERE id = {mark}",
                (payload, kind, handles[why].id),
            )
    await drain(app)
    assert {handle.state() for handle in handles.values()} == {State.ERROR}
    assert good.state() == State.DONE


async def test_a_queue_can_be_paused_and_resumed_while_workers_run(app: App) -> None:
    ran = asyncio.Event()

    @app.task(queue="mail")
    async def send() -> None:
        ran.set()

    async with running(app) as node:
        app.management.pause("mail")
        await until(lambda: "mail" in node.parts.controls.paused)
        handle = send.submit()
        await asyncio.sleep(0.2)
        assert handle.state() == State.SUBMITTED
        app.management.unpause("mail")
        await asyncio.wait_for(ran.wait(), SOON)
        await settled(app, node)


def test_nothing_is_written_when_one_task_of_a_bulk_submit_is_invalid(app: App) -> None:
    @app.task
    async def pay(amount: int) -> None: ...

    for count in (10, 2500):
        with pytest.raises(InvalidTask, match="Expected `int`"):
            pay.submit_many([{"amount": n} for n in range(count)] + [{"amount": "many"}])
    assert app.management.find() == []
