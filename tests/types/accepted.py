"""Code that type checkers accept, with the types that they find. Never imported: a test gives it to
mypy and pyright."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from typing import Any, assert_type

from fairlead import App, Draft, Exponential, Limit, State, Task, TaskHandle
from fairlead.contrib.celery import Celery, chain
from fairlead.contrib.celery.result import AsyncResult

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


@app.periodic("0 * * * *", queue="reports")
def clean() -> None: ...


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
    assert_type(await pay.submit_many_async([{"partner": "a"}]), list[TaskHandle[float]])
    assert_type(await pay("acme"), float)


celery = Celery("shop")


@celery.task(bind=True, max_retries=3)
def add(self: Any, x: int, y: int) -> int:
    raise self.retry(countdown=5)


assert_type(AsyncResult("x").get(timeout=1), Any)
chain(add.s(1, 2), add.s(3)).delay()
