"""Tasks that use the ORM after an outage of PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.db import connections

from fairlead.contrib.django import get_app
from fairlead.contrib.django.models import Attempt, Task
from fairlead.testing import running, settled
from services.postgres import PostgresServer
from tests.conftest import own_server
from tests.django import sample_tasks as tasks
from tests.django.conftest import settings_of, use_database

TASKS = 15


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    yield from own_server(PostgresServer)


def tear_down() -> None:
    connections.close_all()
    get_app().close()


@pytest.fixture
def server(request: pytest.FixtureRequest, own_postgres: PostgresServer) -> Iterator[Any]:
    settings = settings_of(own_postgres.create_database())
    use_database({**settings, "CONN_MAX_AGE": request.param})
    call_command("migrate", verbosity=0)
    yield own_postgres
    tear_down()


@pytest.mark.parametrize(
    ("server", "name"),
    [(0, "make_group"), (None, "make_group_async")],
    ids=["closed after each task", "kept open"],
    indirect=["server"],
)
async def test_after_a_restart_of_the_server_no_task_fails(server: Any, name: str) -> None:
    app, task = get_app(), getattr(tasks, name)
    async with running(app, threads=4) as node:
        await asyncio.to_thread(enqueue, task, "before")
        await settled(app, node)
        server.restart()  # not in a thread: the server would end with it
        await asyncio.to_thread(enqueue, task, "after")
        await settled(app, node)
    assert await asyncio.to_thread(counts) == (2 * TASKS, 0, ["done"] * (2 * TASKS))


def enqueue(task: Any, name: str) -> None:
    """Enqueue tasks on a new connection, as a web server does."""
    for n in range(TASKS):
        task.enqueue(f"{name} {n}")
    connections.close_all()


def counts() -> tuple[int, int, list[str]]:
    """Return the number of groups and of unfinished tasks, and the outcomes of all attempts."""
    outcomes = list(Attempt.objects.values_list("outcome", flat=True))
    found = Group.objects.count(), Task.objects.count(), outcomes
    connections.close_all()
    return found
