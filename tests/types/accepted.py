"""Code that type checkers accept, with the types that they find. Never imported: a test gives it to
mypy and pyright."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar, assert_type

from fairlead import App, Draft, Exponential, Limit, State, Task, TaskHandle
from fairlead.contrib.celery import Celery, chain
from fairlead.contrib.celery.result import AsyncResult
from fairlead.testing import Kit, SubmittedTask, open_kit

P = ParamSpec("P")
R = TypeVar("R")

app = App("sqlite:///types.db")


@app.task
async def pay(partner: str, amount: int = 1) -> float:
    return amount / 2


@app.task(queue="mail", retry=Exponential(max_attempts=3), concurrency=Limit(4), keep_result=True)
def count(text: str) -> int:
    return len(text)


@app.task(transactional=True, keep_log=True)
def book(connection: sqlite3.Connection, order: int) -> str:
    return str(order)


@app.periodic("0 2 * * *")
@app.task(queue="reports")
def report(slot: datetime) -> None: ...


@app.periodic("0 * * * *", queue="reports", keep_log=True)
def clean() -> None: ...


def timed(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Decorate a function as users do."""
    return function


@app.task(keep_result=True)
@timed
async def convert(amount: int) -> float:
    return amount / 2


assert_type(convert.submit(3).result(), float)
assert_type(convert.submit_many([{"amount": 3}]), list[TaskHandle[float]])
assert_type(pay.submit("acme", amount=3), TaskHandle[float])
assert_type(pay.submit(partner="acme").result(), float)
assert_type(count.submit("x").result(timeout=1.0), int)
assert_type(count.options(priority=0, run_at=datetime.now(UTC)).submit("x"), TaskHandle[int])
assert_type(count.submit_many([{"text": "a"}, {"text": "b"}]), list[TaskHandle[int]])
assert_type(count("x"), int)
assert_type(count.draft("x"), Draft)
assert_type(app.submit_many([count.draft("x"), pay.draft(partner="acme")]), list[TaskHandle[Any]])
assert_type(book.submit(order=7).result(), str)
assert_type(book(sqlite3.connect(":memory:"), 7), str)
assert_type(report.submit(slot=datetime.now(UTC)).result(), None)
assert_type(clean.submit(), TaskHandle[None])
assert_type(count.submit("x").state(), State)


def bare(handle: TaskHandle, task: Task[[str], int]) -> TaskHandle:
    """A handle without a type in brackets is one of any result."""
    task.submit("x")
    return handle


async def submit() -> None:
    """Submit from asynchronous code."""
    assert_type(await pay.submit_async("acme"), TaskHandle[float])
    assert_type(await (await count.submit_async("x")).result_async(), int)
    assert_type(await (await count.submit_async("x")).state_async(), State)
    assert_type(await pay.submit_many_async([{"partner": "a"}]), list[TaskHandle[float]])
    assert_type(await pay("acme"), float)


celery = Celery("shop")


@celery.task(bind=True, max_retries=3)
def add(self: Any, x: int, y: int) -> int:
    raise self.retry(countdown=5)


assert_type(AsyncResult("x").get(timeout=1), Any)
chain(add.s(1, 2), add.s(3)).delay()


def test(fairlead_kit: Kit) -> None:
    """Use the testing kit, as the page about tests shows."""
    at = fairlead_kit.now + timedelta(days=1)
    fairlead_kit.drain(timeout=5.0, raises=False, concurrency=4)
    with fairlead_kit.inline():
        pay.submit("acme")
    found = fairlead_kit.assert_submitted(pay.options(run_at=at, priority=3), 1, partner="acme")
    assert_type(found, list[SubmittedTask])
    fairlead_kit.assert_not_submitted(book, order=7)
    fairlead_kit.assert_submitted(add, args=[1, 2])
    assert_type(fairlead_kit.submitted(clean), list[SubmittedTask])
    fairlead_kit.travel(timedelta(hours=1))
    fairlead_kit.travel(at)


async def test_async() -> None:
    """Open the kit without pytest."""
    with open_kit(app, "sqlite:///test.db") as kit, open_kit(celery) as other:
        assert_type(kit, Kit)
        await other.drain_async(30.0)
