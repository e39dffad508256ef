"""Inspect and change tasks through `App.management`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairlead import App, Fixed, NoRetry, State
from fairlead.errors import InvalidTask, NotAllowed, StaleVersion, UnknownTask
from fairlead.operate.changes import Cancel, Fail, NewValues, Resume
from fairlead.operate.store.actions import BulkAction
from fairlead.testing import drain, running, settled
from fairlead.testing.contract.tasks import FACTS, wanted
from tests.builders import changed_all

pytestmark = pytest.mark.virtual_time

LATER = timedelta(hours=1)


@pytest.fixture
def shop(app: App):
    ran: list[int] = []

    @app.task(name="pay")
    async def pay(n: int) -> None:
        ran.append(n)

    @app.task(name="bad", retry=NoRetry())
    async def bad(n: int) -> None:
        raise ValueError("no")

    return app, pay, bad, ran


async def test_any_unfinished_task_can_be_cancelled_at_its_version_only(shop) -> None:
    app, pay, bad, ran = shop
    waiting = pay.options(run_at=datetime.now(UTC) + LATER).submit(n=1)
    submitted, failing = pay.submit(n=2), bad.submit(n=3)
    with pytest.raises(StaleVersion, match="at version 1, not 7"):
        app.management.cancel(waiting.id, version=7)
    app.management.cancel(waiting.id, version=1)
    app.management.cancel(submitted.id)
    await drain(app)
    app.management.cancel(failing.id)
    for handle in (waiting, submitted, failing):
        assert handle.state() == State.CANCELLED
        assert app.management.attempts(handle.id)[-1].error_text == "by a person"
        with pytest.raises(NotAllowed, match="is CANCELLED: it is finished"):
            app.management.cancel(handle.id)
    assert ran == []


async def test_a_waiting_task_can_be_given_another_time(shop) -> None:
    app, pay, bad, ran = shop
    waiting = pay.options(run_at=datetime.now(UTC) + LATER).submit(n=1)
    with pytest.raises(InvalidTask, match="naive datetime"):
        app.management.reschedule(waiting.id, datetime(2026, 1, 1))
    when = datetime.now(UTC) + 2 * LATER
    app.management.reschedule(waiting.id, when, version=1)
    assert waiting.record().run_at == round(when.timestamp() * 1e6)
    with pytest.raises(StaleVersion):
        app.management.reschedule(waiting.id, when, version=1)
    app.management.reschedule(waiting.id, datetime.now(UTC) - LATER)
    assert waiting.state() == State.SUBMITTED
    with pytest.raises(NotAllowed, match="only WAITING can be rescheduled"):
        app.management.reschedule(waiting.id, when)
    with pytest.raises(UnknownTask):
        app.management.reschedule("no such id", when)
    await drain(app)
    assert ran == [1]


async def test_tasks_that_have_not_started_can_be_given_another_priority_or_key(shop) -> None:
    app, pay, bad, ran = shop
    change = app.management.change
    handles = [pay.options(fairness_key="acme").submit(n=n) for n in range(4)]
    failing = bad.submit(n=3)
    change(failing.id, priority=0)
    with pytest.raises(InvalidTask, match="nothing to change"):
        change(handles[0].id)
    with pytest.raises(InvalidTask, match="priority 10"):
        change(handles[0].id, priority=10)
    with pytest.raises(InvalidTask, match="fairness_key"):
        change(handles[0].id, fairness_key="x" * 2000)
    with pytest.raises(StaleVersion, match="at version 1, not 3"):
        change(handles[0].id, priority=1, version=3)
    with pytest.raises(UnknownTask):
        change("no such id", priority=1)
    change(handles[3].id, priority=1, version=1)
    change(handles[3].id, priority=1, version=2)  # changes nothing
    assert handles[3].record().version == 2
    result = changed_all(
        app.management,
        NewValues(priority=9, fairness_key="bulk"),
        fairness_key="acme",
        limit=2,
    )
    assert (result.changed, result.refused) == (2, 0)
    assert {t.id for t in app.management.find(fairness_key="bulk")} == {h.id for h in handles[:2]}
    await drain(app, concurrency=1)
    assert sorted(ran) == [0, 1, 2, 3]
    assert ran == [3, 2, 0, 1]
    with pytest.raises(NotAllowed, match="is ERROR: only SUBMITTED, WAITING can be changed"):
        change(failing.id, priority=1)
    with pytest.raises(NotAllowed, match="is DONE: it is finished and cannot be changed"):
        change(handles[0].id, priority=1)


@pytest.mark.ordered
async def test_tasks_changed_while_a_worker_holds_them_run_once_in_their_new_place(
    app: App,
) -> None:
    """Some are in memory and some in the backlog."""
    app.queue("q", partitions=1)
    ran: list[int] = []
    go_on = asyncio.Event()

    @app.task(queue="q")
    async def note(n: int) -> None:
        await go_on.wait()
        ran.append(n)
        await asyncio.sleep(0.05)  # meanwhile the lanes read on

    handles = note.submit_many([{"n": n} for n in range(200)])
    async with running(app, concurrency=1, look_ahead=25) as node, asyncio.timeout(60):
        while not node.in_flight:
            await asyncio.sleep(0.01)
        with pytest.raises(NotAllowed, match="is PROCESSING"):
            app.management.change(handles[0].id, priority=0)
        for n in (10, 150):
            app.management.change(handles[n].id, priority=0)
        for n in (20, 160):
            app.management.change(handles[n].id, priority=9)
        for n in (30, 170):
            app.management.change(handles[n].id, fairness_key="acme")
        await asyncio.sleep(5.0)  # of the virtual clock: the worker reads the new triggers
        go_on.set()
        await settled(app, node)
    assert sorted(ran) == list(range(200))
    assert {10, 150} == set(ran[1:3])
    assert {20, 160} == set(ran[-2:])
    assert max(ran.index(30), ran.index(170)) < 10


async def test_a_waiting_task_can_be_resumed_early_and_a_running_one_by_force_only(
    shop,
) -> None:
    app, pay, bad, ran = shop
    waiting = pay.options(run_at=datetime.now(UTC) + LATER).submit(n=1)
    held = pay.submit(n=2)
    now = app.clock.now()
    await app.store.register_node("ghost", [], [], now, FACTS)
    assert len(await app.store.claim("ghost", wanted([held]), now, {})) == 1
    with pytest.raises(NotAllowed, match="force"):
        app.management.resume(held.id)
    app.management.resume(held.id, force=True)
    app.management.resume(waiting.id)
    await drain(app)
    assert sorted(ran) == [1, 2]
    await app.store.database.close_async()


async def test_a_task_in_error_can_be_retried_with_new_tries_or_failed_by_a_person(
    app: App,
) -> None:
    tries: list[int] = []

    @app.task(retry=Fixed(0, max_attempts=2))
    async def pay() -> None:
        tries.append(1)
        raise ValueError("no")

    handle = pay.submit()
    await drain(app)
    app.management.retry(handle.id)
    await drain(app)
    assert len(tries) == 4
    app.management.fail(handle.id)
    assert handle.state() == State.FAILED
    assert app.management.find() == []


@pytest.mark.parametrize("size", [0, 1024, 1025, 50_000])
@pytest.mark.parametrize("text", ["x", "'; DROP TABLE fairlead_tasks; é\u2028--\"\\"])
async def test_payloads_are_compressed_when_that_pays_and_arrive_unchanged(
    app: App, size: int, text: str
) -> None:
    seen: list[str] = []

    @app.task
    async def note(text: str) -> None:
        seen.append(text)

    whole = text * (size // len(text))
    handle = note.options(context={"k": text}).submit(text=whole)
    stored, kind = app.store.database.read_now(app.store.payload(handle.id))
    encoded = app.management.payload(handle.id)
    assert encoded is not None
    assert kind == ("json+zlib" if len(encoded) > 1024 and len(stored) < len(encoded) else "json")
    assert len(stored) <= len(encoded)
    await drain(app)
    assert seen == [whole]


async def test_finished_tasks_are_looked_for_in_the_latest_attempts_only(
    shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, pay, bad, ran = shop
    for n in range(4):
        pay.options(fairness_key=f"k{n}").submit(n=n)
        await drain(app)
    monkeypatch.setattr("fairlead.operate.tasks.MOST_SEARCHED", 2)
    found = app.management.find(state=State.DONE)
    assert [task.fairness_key for task in found] == ["k3", "k2"]
    assert app.management.find(state=State.DONE, fairness_key="k1") == []


async def test_finished_tasks_are_found_in_the_history_the_latest_first(shop) -> None:
    app, pay, bad, ran = shop
    management = app.management
    first = pay.options(fairness_key="acme").submit(n=1)
    await drain(app)
    second = pay.options(fairness_key="other").submit(n=2)
    failed, cancelled = bad.submit(n=3), pay.options(run_at=datetime.now(UTC) + LATER).submit(n=4)
    management.cancel(cancelled.id)
    await drain(app)
    management.fail(failed.id)

    def found(state: State, **filters: Any) -> list[str]:
        tasks = management.find(state=state, **filters)
        assert all(task == management.show(task.id) and task.state == state for task in tasks)
        return [task.id for task in tasks]

    assert found(State.DONE) == [second.id, first.id]
    assert found(State.DONE, limit=1) == [second.id]
    assert found(State.DONE, fairness_key="acme") == [first.id]
    assert found(State.DONE, name="bad") == found(State.DONE, queue="other") == []
    assert found(State.DONE, older_than=timedelta(hours=1)) == []
    assert found(State.FAILED) == [failed.id] and found(State.CANCELLED) == [cancelled.id]
    assert found(State.CANCELLED, error="BY A person") == [cancelled.id]
    assert found(State.CANCELLED, error="by a program") == []


async def test_a_bulk_change_reaches_all_that_match_and_none_that_come_later(shop) -> None:
    app, pay, bad, ran = shop
    later = datetime.now(UTC) + LATER
    pay.options(run_at=later, fairness_key="acme").submit_many([{"n": n} for n in range(1203)])
    pay.options(run_at=later, fairness_key="other").submit(n=1)
    management, sums = app.management, []

    def on_batch(result: BulkAction) -> None:
        sums.append(result.changed)
        pay.options(run_at=later, fairness_key="acme").submit(n=-1)

    tried = management.actions.preview(
        Cancel(), management.where(fairness_key="acme"), counted=None
    )
    assert (tried.changed, tried.refused) == (1203, 0)
    assert len(management.find(fairness_key="acme", limit=2000)) == 1203
    await asyncio.sleep(1)
    result = changed_all(
        management, Cancel(), fairness_key="acme", older_than=timedelta(0), on_batch=on_batch
    )
    assert (result.changed, result.refused) == (1203, 0)
    assert sums == [500, 1000, 1203]
    assert len(management.find(fairness_key="acme", limit=2000)) == 3
    assert len(management.find(fairness_key="other")) == 1
    refused = changed_all(management, Fail())
    assert (refused.changed, refused.refused) == (0, 4)


async def test_resuming_many_counts_the_tries_of_those_in_error_from_zero(shop) -> None:
    app, pay, bad, ran = shop
    failing = bad.submit(n=1)
    await drain(app)
    waiting = pay.options(run_at=datetime.now(UTC) + LATER).submit(n=2)
    assert changed_all(app.management, Resume()).changed == 2
    assert {handle.state() for handle in (failing, waiting)} == {State.SUBMITTED}
    assert failing.record().tries == 0
    await drain(app)
    assert ran == [2]


async def test_a_task_is_found_by_the_beginning_of_its_id(shop) -> None:
    app, pay, bad, ran = shop
    first = pay.submit(n=1)
    await drain(app)
    assert first.state() == State.DONE
    second = pay.submit(n=2)
    await drain(app)
    failing = bad.submit(n=3)
    await drain(app)
    length = next(n for n in range(4, 37) if second.id[:n] != failing.id[:n])
    assert app.management.named(failing.id[:length]).state == State.ERROR  # and has an attempt
    [in_error] = app.management.find(error="ValueError")
    assert in_error.id == failing.id and not app.management.find(error="KeyError")
    for length in (20, 30, 35):
        beginning = first.id[:length]
        if second.id.startswith(beginning):
            with pytest.raises(InvalidTask, match="several tasks begin with"):
                app.management.named(beginning)
        elif not failing.id.startswith(beginning):
            assert app.management.named(beginning.upper()).id == first.id
    assert app.management.named(first.id).id == first.id
    for unknown in ("0000", "ffff-f", "no such id", "", "[/x]"):
        with pytest.raises(UnknownTask):
            app.management.named(unknown)
