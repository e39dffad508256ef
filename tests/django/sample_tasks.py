"""Django tasks that the tests enqueue."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group
from django.db import connection, transaction

from fairlead import Delays, NoRetry, Retry
from fairlead.contrib.django import get_app

try:
    from django.tasks import task
except ModuleNotFoundError:
    from django_tasks import task

app = get_app()
seen: list[Any] = []
"""Notes of tasks, in the order of their runs."""


@task
def echo(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"args": args, "kwargs": kwargs}


@task
async def echo_async(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"args": args, "kwargs": kwargs}


@task(takes_context=True)
def attempt_of(context: Any, more: int) -> list[Any]:
    return [context.attempt, context.task_result.id, more]


@task(takes_context=True)
async def attempt_of_async(context: Any) -> int:
    number: int = context.attempt
    return number


@task(retry=NoRetry())
def fail() -> None:
    raise ValueError("it fails")


@task(retry=NoRetry())
async def fail_async() -> None:
    raise ValueError("it fails")


@task
def return_a_set() -> Any:
    return {1, 2}


@task(retry=Delays([0.0]), takes_context=True)
def fail_once(context: Any) -> int:
    seen.append(context.attempt)
    if context.attempt == 1:
        raise ConnectionError("once")
    number: int = context.attempt
    return number


@task(retry=NoRetry())
def ask_for_retry() -> None:
    raise Retry(after=0)


@task
def make_group(name: str) -> None:
    Group.objects.create(name=name)


@task
async def make_group_async(name: str) -> None:
    await Group.objects.acreate(name=name)


@task(retry=NoRetry())
def fail_in_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM no_such_table")


@task(retry=NoRetry())
def leave_a_transaction_open() -> None:
    transaction.set_autocommit(False)
    Group.objects.create(name="left open")


@task(transactional=True, retry=NoRetry())
def write_and_enqueue(name: str, breaks: bool = False) -> str:
    assert connection.in_atomic_block
    Group.objects.create(name=name)
    make_group.enqueue(f"{name} too")
    transaction.on_commit(lambda: seen.append(f"committed {name}"))
    if breaks:
        raise ValueError("it breaks")
    return name


@task(ordering_key="one", fairness_key="acme", weight=2.0, unique_key="only", timeout=9.0)
def with_keys() -> None: ...


not_a_task = 3


@app.task(transactional=True)
def plain_transactional(name: str, connection: Any) -> None:
    Group.objects.create(name=name)


@app.task
def plain(name: str) -> None:
    Group.objects.create(name=name)
