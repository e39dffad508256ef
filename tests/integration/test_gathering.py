"""Results of many tasks are read together: no thread for a waiter, one statement for a wake-up."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest

import fairlead
from fairlead import (
    App,
    InvalidTask,
    NoRetry,
    ResultNotKept,
    ResultTimeout,
    TaskFailed,
    TaskHandle,
    UnknownTask,
)
from fairlead.contrib.celery import Celery
from fairlead.declare import waiting
from fairlead.declare.task import Task
from fairlead.errors import NotSupported
from fairlead.ports.statements import Statement
from fairlead.testing import drain, open_kit
from tests.tiers import matrix

STORES = matrix("sqlite_url", "migrated_postgres_url")
SOON = 30.0


class Shop:
    """An application with tasks that keep results, and the sizes of the reads of its waiters."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app, self.worker = App(url), App(url)
        self.app.migrate()
        self.double = declared(self.app)
        declared(self.worker)
        self.reads: list[int] = []
        records = self.app.sql_store
        statuses = records.statuses

        def counted(task_ids: Sequence[str]) -> Any:
            self.reads.append(len(task_ids))
            return statuses(task_ids)

        monkeypatch.setattr(records, "statuses", counted)

    def close(self) -> None:
        self.app.close()
        self.worker.close()


def declared(app: App) -> Task[[int], Any]:
    @app.task(name="double", keep_result=True, retry=NoRetry())
    async def double(n: int) -> int:
        if n < 0:
            raise ValueError(f"{n} is negative")
        return 2 * n

    return double


@pytest.fixture(params=STORES)
def shop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    shop = Shop(request.getfixturevalue(request.param), monkeypatch)
    yield shop
    shop.close()


async def test_a_thousand_coroutines_wait_without_a_thread_each_and_with_few_statements(
    shop: Shop,
) -> None:
    handles = shop.double.submit_many([{"n": n} for n in range(1000)])
    waiting = [asyncio.create_task(handle.result_async(SOON)) for handle in handles]
    await asyncio.sleep(0.1)
    assert sum("asyncio" in thread.name for thread in threading.enumerate()) < 20
    await drain(shop.worker)
    assert await asyncio.gather(*waiting) == [2 * n for n in range(1000)]
    assert shop.reads[0] == 1000
    assert len(shop.reads) < 60


async def test_gather_returns_results_in_the_order_of_the_handles(shop: Shop) -> None:
    handles = shop.double.submit_many([{"n": n} for n in range(50)])
    assert not (await handles[0].state_async()).is_final
    found = asyncio.create_task(fairlead.gather_async(*reversed(handles), timeout=SOON))
    in_thread = asyncio.create_task(asyncio.to_thread(fairlead.gather, *handles, timeout=SOON))
    await asyncio.sleep(0.1)
    await drain(shop.worker)
    assert await found == [2 * n for n in reversed(range(50))]
    assert await in_thread == [2 * n for n in range(50)]
    assert (await handles[0].state_async()).is_final
    shop.reads.clear()
    assert fairlead.gather(*handles) == [2 * n for n in range(50)]
    assert shop.reads == [50]
    assert fairlead.gather() == await fairlead.gather_async() == []


async def test_the_first_failure_is_raised_with_the_error_of_the_task(shop: Shop) -> None:
    good, bad = shop.double.submit_many([{"n": 1}, {"n": -1}])
    await drain(shop.worker)
    with pytest.raises(TaskFailed, match="-1 is negative") as caught:
        fairlead.gather(good, bad, timeout=SOON)
    assert caught.value.task_id == bad.id and caught.value.error_type == "ValueError"
    with pytest.raises(TaskFailed, match="-1 is negative"):
        await fairlead.gather_async(good, bad, timeout=SOON)
    value, error = await fairlead.gather_async(good, bad, return_exceptions=True)
    assert value == 2 and isinstance(error, TaskFailed)


async def test_as_completed_yields_handles_that_return_without_another_read(shop: Shop) -> None:
    first = shop.double.submit(1)
    await drain(shop.worker)
    second = shop.double.submit(2)
    steps = fairlead.as_completed_async([second, first], timeout=SOON)
    assert await anext(steps) is first
    await drain(shop.worker)
    assert [handle async for handle in steps] == [second]
    assert set(fairlead.as_completed([first, second])) == {first, second}
    shop.reads.clear()
    assert (first.result(), second.result(), shop.reads) == (2, 4, [])


async def test_a_wait_ends_at_its_timeout_and_names_a_task_that_has_not_finished(
    shop: Shop,
) -> None:
    late = shop.double.submit(1)
    for wait in (
        fairlead.gather,
        lambda *of, timeout: list(fairlead.as_completed(of, timeout=timeout)),
    ):
        with pytest.raises(ResultTimeout, match=late.id):
            wait(late, timeout=0.01)
    with pytest.raises(ResultTimeout, match=late.id):
        await fairlead.gather_async(late, timeout=0.01)
    with pytest.raises(ResultTimeout, match=late.id):
        await late.result_async(0.01)
    await drain(shop.worker)
    assert await late.result_async(SOON) == 2


async def test_without_time_a_wait_looks_once(shop: Shop) -> None:
    done = await shop.double.submit_async(1)
    await drain(shop.worker)
    late = await shop.double.submit_async(2)
    assert await done.result_async(timeout=0) == 2
    with pytest.raises(ResultTimeout):
        await late.result_async(timeout=0)
    assert await fairlead.gather_async(done, timeout=0) == [2]
    ended = []
    with pytest.raises(ResultTimeout, match=late.id):
        async for handle in fairlead.as_completed_async([late, done], timeout=0):
            ended.append(handle.id)
    assert ended == [done.id]


async def test_an_id_that_no_task_has_is_a_clear_error(shop: Shop) -> None:
    known, unknown = shop.double.submit(1), shop.app.handle(uuid.uuid4())
    await drain(shop.worker)
    with pytest.raises(UnknownTask, match=unknown.id):
        fairlead.gather(known, unknown)
    with pytest.raises(UnknownTask, match=unknown.id):
        await fairlead.gather_async(known, unknown)
    assert shop.app.handle(uuid.UUID(known.id)).result() == 2


# Types --------------------------------------------------------------------------------------------


class Color(Enum):
    RED = "red"


@dataclass
class Line:
    article: str
    price: Decimal


def returning(app: App, kind: Any, value: object) -> Task[[], Any]:
    """Declare a task that returns the value, whose annotation is `kind`."""

    def returned() -> Any:
        return value

    returned.__annotations__["return"] = kind
    return app.task(keep_result=True)(returned)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (date, date(2026, 11, 29)),
        (timedelta, timedelta(hours=1)),
        (Decimal, Decimal("1.10")),
        (uuid.UUID, uuid.UUID(int=7)),
        (Color, Color.RED),
        (list[Line], [Line("tea", Decimal("2.5"))]),
        (dict[int, int], {1: 2}),
        (tuple[int, str], (1, "a")),
        (bytes | None, b"\xff"),
        (float, 1),
        (Any, {"a": [1, None]}),
        (None, None),
    ],
    ids=str,
)
async def test_a_result_has_the_declared_type_however_one_waits_for_it(
    sqlite_url: str, kind: Any, value: object
) -> None:
    app = App(sqlite_url)
    handle = returning(app, kind, value).submit()
    await drain(app)
    found = app.handle(handle.id)
    steps = [each.result() for each in fairlead.as_completed([handle])]
    others = [each.result() async for each in fairlead.as_completed_async([found])]
    results = [handle.result(), await handle.result_async(), found.result(), *steps, *others]
    results += [*fairlead.gather(handle), *await fairlead.gather_async(found)]
    assert results == [value] * 7
    assert {type(each) for each in results} == {float if kind is float else type(value)}


async def test_a_result_is_plain_where_nobody_declares_its_task(sqlite_url: str) -> None:
    app, other = App(sqlite_url), App(sqlite_url)
    handle = returning(app, date, date(2026, 11, 29)).submit()
    await drain(app)
    assert other.handle(handle.id).result() == "2026-11-29"
    returning(other, int, 1)
    with pytest.raises(InvalidTask, match=f"task {handle.id}: its result does not fit"):
        other.handle(handle.id).result()


# History that was cleaned --------------------------------------------------------------------------


async def cleaned(app: App) -> None:
    """Delete all history, as after the time for which it is kept."""
    while await app.store.clean(app.clock.now() + 1_000_000, 1000):
        pass


def deleted(app: App, statement: str) -> None:
    """Run a statement that deletes rows."""

    def steps() -> Any:
        yield Statement(statement)

    app.store.database.run(steps())


async def outcomes(*handles: TaskHandle) -> list[BaseException]:
    """Wait for handles in each way, and return the errors."""

    async def completed() -> None:
        async for handle in fairlead.as_completed_async(handles, timeout=SOON):
            handle.result()

    def completed_in_thread() -> None:
        for handle in fairlead.as_completed(handles, timeout=SOON):
            handle.result()

    return await asyncio.gather(
        completed(),
        asyncio.to_thread(completed_in_thread),
        fairlead.gather_async(*handles, timeout=SOON),
        asyncio.to_thread(fairlead.gather, *handles, timeout=SOON),
        handles[0].result_async(SOON),
        asyncio.to_thread(handles[0].result, SOON),
        handles[0].result_async(0),
        return_exceptions=True,
    )


async def test_a_task_whose_history_was_cleaned_before_the_wait_is_unknown(shop: Shop) -> None:
    handle = shop.double.submit(1)
    await drain(shop.worker)
    await cleaned(shop.worker)
    for error in await outcomes(handle):
        assert isinstance(error, UnknownTask) and handle.id in str(error)


async def test_a_task_that_is_deleted_during_the_wait_is_unknown(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.1)
    handle = shop.double.submit(1)
    reads = len(shop.reads)
    found = asyncio.create_task(outcomes(handle))
    while len(shop.reads) < reads + 6:  # all of them look
        await asyncio.sleep(0.01)
    deleted(shop.app, "DELETE FROM fairlead_tasks")
    *errors, looked = await found
    assert isinstance(looked, ResultTimeout | UnknownTask)  # it looks once: before or after
    for error in errors:
        assert isinstance(error, UnknownTask) and handle.id in str(error)


async def test_a_result_that_was_deleted_before_its_history_is_no_none(shop: Shop) -> None:
    handles = shop.double.submit_many([{"n": 1}, {"n": 2}])
    await drain(shop.worker)
    deleted(shop.app, "DELETE FROM fairlead_results")
    for error in await outcomes(*handles):
        assert isinstance(error, ResultNotKept) and "deleted" in str(error)
    with pytest.raises(ResultNotKept):
        shop.app.handle(handles[0].id).result()


def test_a_result_of_celerys_names_that_was_deleted_leaves_the_state(sqlite_url: str) -> None:
    app = Celery("shop", broker=sqlite_url)

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    with open_kit(app) as kit:
        result = add.delay(1, 2)
        kit.drain()
        deleted(app.fairlead, "DELETE FROM fairlead_results")
        assert (result.state, result.result, result.successful()) == ("SUCCESS", None, True)
        with pytest.raises(ResultNotKept):
            result.get(timeout=1)


async def test_ended_tasks_are_yielded_before_the_error_of_an_unknown_one(shop: Shop) -> None:
    gone = shop.double.submit(1)
    await drain(shop.worker)
    await cleaned(shop.worker)
    ended = shop.double.submit(2)
    await drain(shop.worker)
    steps = fairlead.as_completed([gone, ended], timeout=SOON)
    assert next(steps) is ended
    with pytest.raises(UnknownTask, match=gone.id):
        next(steps)


def test_other_objects_and_handles_of_other_applications_are_refused(shop: Shop) -> None:
    ours, theirs = shop.double.submit(1), shop.worker.handle(str(uuid.uuid4()))
    with pytest.raises(InvalidTask, match="several applications"):
        fairlead.gather(ours, theirs)
    with pytest.raises(InvalidTask, match="use handles"):
        fairlead.gather(ours.id)  # type: ignore[arg-type]
    with pytest.raises(InvalidTask, match="timeout"):
        fairlead.gather(ours, timeout=-1)


def test_tasks_without_results_cannot_be_gathered(sqlite_url: str) -> None:
    app = App(sqlite_url)
    app.queue("letters", kind="ordered", partitions=1)
    plain = app.task(name="plain")(lambda: None)
    letter = app.task(name="letter", queue="letters")(lambda: None)
    with pytest.raises(ResultNotKept):
        fairlead.gather(plain.submit())
    with pytest.raises(NotSupported, match="ordered queue"):
        fairlead.gather(letter.options(ordering_key="a").submit())
    app.close()
