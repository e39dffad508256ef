"""Helpers for the tests of a Django project.

`run_tasks` runs tasks in the transaction of a TestCase. `drain` runs a worker, for tests that
commit: in a TransactionTestCase with a database in a file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.utils import timezone

from fairlead.backends.sql.columns import with_lists
from fairlead.contrib.django.models import Task
from fairlead.contrib.django.project import DjangoApp, get_app
from fairlead.declare.current import current_run, set_run
from fairlead.declare.handler import Handler
from fairlead.engine.outcome import failed, succeeded
from fairlead.engine.run import Run
from fairlead.errors import ConfigurationError
from fairlead.model import ClaimedTask, Finish, State, Trigger
from fairlead.testing import drain as drain_app

NODE = "run_tasks"
"""Name of the node in the attempts of tasks that `run_tasks` has run."""

_EMPTIED = (
    "fairlead_tasks",
    "fairlead_attempts",
    "fairlead_events",
    "fairlead_results",
    "fairlead_unique_keys",
    "fairlead_incidents",
)


def run_tasks(*, at: Any = None, raises: bool = True) -> int:
    """Run the tasks that are due, and those that they submit, in this thread and on Django's
    connection, so that a TestCase sees and rolls back all that they do. Return the number of runs.

    Tasks run one after another, by priority and then in the order of their submits. `at`: an
    instant up to which tasks are due, such as that of a retry; now by default. With `raises=False`,
    the error of a task is kept with it, as by a worker; else the first one is raised. No lifespan
    is opened: give its state by `app.override_state`.
    """
    app, runs = get_app(), 0
    while (task := _next_task(app, at)) is not None:
        error = _run(app, task)
        runs += 1
        if raises and error is not None:
            raise error
    return runs


def drain(timeout: float = 30.0, **settings: Any) -> None:
    """Run a worker in this process until no task is left to run or retry. `settings`: see
    `App.node`. Raise TimeoutError after `timeout` seconds, ConfigurationError for a database in
    memory or inside a TestCase, whose tasks no worker can see."""
    app = get_app()
    if app.is_in_memory:
        raise ConfigurationError(
            "a worker cannot reach a database in memory: set DATABASES[...]['TEST']['NAME'] to the"
            " path of a file, or use run_tasks()"
        )
    if connections[app.alias].in_atomic_block:
        raise ConfigurationError(
            "the test is inside a transaction, whose tasks a worker cannot see: use run_tasks(), or"
            " a TransactionTestCase"
        )

    def run() -> None:
        try:
            asyncio.run(drain_app(app, timeout, **settings))
        finally:
            connections.close_all()

    # In a thread of its own, because a test may have an event loop.
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        # A connection that a thread of the worker keeps holds up the end of the test database.
        for settings_of_one in connections.settings.values():
            stack.enter_context(patch.dict(settings_of_one, CONN_MAX_AGE=0))
        pool.submit(run).result()
    app.close()


async def adrain(timeout: float = 30.0, **settings: Any) -> None:
    """Do what `drain` does, from asynchronous code. `timeout`: seconds."""
    await asyncio.to_thread(drain, timeout, **settings)


def clear() -> None:
    """Delete all tasks and their history, which a TransactionTestCase does not flush because their
    tables belong to no managed model."""
    connection = connections[get_app().alias]
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        for table in _EMPTIED:
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")  # noqa: S608


class ClearsTasks:
    """A mix-in of a TransactionTestCase, first in its list of base classes: begins each test
    without tasks."""

    def setUp(self) -> None:
        """Delete the tasks of earlier tests."""
        super().setUp()  # type: ignore[misc]
        clear()


def _next_task(app: DjangoApp, at: Any) -> Any:
    until = timezone.now() if at is None else at
    ready = Task.objects.filter(state__in=[State.SUBMITTED, State.WAITING], run_at__lte=until)
    tasks: Iterator[Any] = ready.filter(name__in=list(app.handlers)).order_by("priority", "id")
    return next(iter(tasks), None)


def _run(app: DjangoApp, task: Any) -> BaseException | None:
    """Run one task, and record the end of its run; return its error."""
    run = _claim(app, task)
    handler, error, result = app.handlers[task.name], None, None
    before = current_run()
    run.start(app.clock.now())
    set_run(run)
    try:
        with _savepoints(app):
            args, kwargs = run.arguments()
            if handler.transactional:
                kwargs["connection"] = connections[app.alias].connection
            result = _call(handler, args, kwargs)
    except Exception as raised:
        error = raised
    finally:
        set_run(before)
    now = app.clock.now()
    finish: Finish = succeeded(run, result, now) if error is None else failed(run, error, now)
    store = app.connections.sql_store
    store.database.join(connections[app.alias], store.completion(NODE, [finish]))
    return error


@contextmanager
def _savepoints(app: DjangoApp) -> Iterator[None]:
    """Keep the transactions of a test usable after an error of the task, in all its databases."""
    opened = {each.alias for each in connections.all(initialized_only=True) if each.in_atomic_block}
    with ExitStack() as stack:
        for alias in sorted({app.alias, *opened}):
            stack.enter_context(transaction.atomic(using=alias))
        yield


def _call(handler: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if handler.is_async:
        return async_to_sync(handler.function)(*args, **kwargs)
    return handler.function(*args, **kwargs)


def _claim(app: DjangoApp, task: Any) -> Run:
    connection = connections[app.alias]
    now = app.clock.now()
    statement = with_lists(
        "UPDATE fairlead_tasks SET state = 'PROCESSING', version = version + 1,"
        " attempt = attempt + 1, tries = tries + 1, node = %s, claimed_at = %s, stuck_at = %s,"
        " ready_at = coalesce(ready_at, run_at) WHERE id = %s RETURNING {claimed}",
        "sqlite" if connection.vendor == "sqlite" else "postgres",
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, [NODE, now, now + 3_600_000_000, task.id])
        claimed = ClaimedTask(*cursor.fetchone())
    trigger = Trigger(
        id=task.id,
        version=task.version,
        queue=task.queue,
        partition=0,
        priority=task.priority,
        seq=0,
        name=task.name,
        fairness_key=task.fairness_key,
        weight=task.weight,
        ordering_key=task.ordering_key,
    )
    return Run(trigger, claimed, app.handlers[task.name])


__all__ = ["NODE", "ClearsTasks", "adrain", "clear", "drain", "run_tasks"]
