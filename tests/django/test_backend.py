"""The backend of Django's tasks keeps the contract of `django.tasks` and `django-tasks`, on each
database. The cases are those that both packages, and django-tasks-db, test."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Group
from django.core.exceptions import SuspiciousOperation
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from fairlead import InvalidTask as FairleadInvalidTask
from fairlead.contrib.django import get_app
from fairlead.contrib.django.backend import FairleadBackend, FairleadTask, fairlead_priority
from fairlead.contrib.django.compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from fairlead.contrib.django.models import Attempt, Task
from fairlead.contrib.django.testing import adrain, drain, run_tasks
from tests.django import sample_tasks as tasks
from tests.django.conftest import ON_BOTH

pytestmark = [pytest.mark.usefixtures("database"), ON_BOTH]


def backend() -> FairleadBackend:
    found: FairleadBackend = task_backends["default"]
    return found


# declared tasks -----------------------------------------------------------------------------------


def test_a_task_of_this_backend_is_a_fairlead_task() -> None:
    assert type(tasks.echo) is FairleadTask
    assert tasks.echo.get_backend() is backend()
    assert tasks.echo.name == "echo"
    assert tasks.echo.module_path == "tests.django.sample_tasks.echo"


def test_using_changes_a_copy() -> None:
    at = timezone.now() + timedelta(hours=1)
    changed = tasks.echo.using(priority=7, queue_name="mail", run_after=at, fairness_key="acme")
    assert (changed.priority, changed.queue_name, changed.run_after) == (7, "mail", at)
    assert changed.fairness_key == "acme"
    assert (tasks.echo.priority, tasks.echo.queue_name, tasks.echo.run_after) == (
        0,
        "default",
        None,
    )
    assert tasks.echo.fairness_key == ""


@pytest.mark.parametrize("priority", [-101, 101, 1.5])
def test_a_priority_out_of_range_is_refused(priority: Any) -> None:
    with pytest.raises(InvalidTask):
        tasks.echo.using(priority=priority)


@pytest.mark.parametrize(
    "options",
    [{"fairness_key": 3}, {"weight": 0}, {"ordering_key": ""}, {"timeout": -1}, {"retry": 3}],
    ids=str,
)
def test_an_option_that_fairlead_refuses_is_an_invalid_task(options: Any) -> None:
    with pytest.raises(InvalidTask):
        tasks.task(**options)(_undeclared)


def _undeclared() -> None: ...


@pytest.mark.parametrize("option", ["retry", "timeout", "transactional"])
def test_options_of_the_function_are_not_for_using(option: str) -> None:
    with pytest.raises(InvalidTask, match=f"{option} belongs to the function"):
        tasks.echo.using(**{option: 3})


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(InvalidTask, match="nonsense"):
        tasks.echo.using(nonsense=1)


# enqueue ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["echo", "echo_async"])
def test_a_new_result_is_ready(name: str) -> None:
    task = getattr(tasks, name)
    result = task.enqueue(1, two=2)
    assert result.status == TaskResultStatus.READY
    assert not result.is_finished
    assert (result.args, result.kwargs) == ([1], {"two": 2})
    assert (result.task, result.backend, len(result.id)) == (task, "default", 36)
    assert result.started_at is None and result.finished_at is None
    assert result.last_attempted_at is None and result.attempts == 0
    assert abs(timezone.now() - result.enqueued_at) < timedelta(minutes=1)
    with pytest.raises(ValueError, match="has not finished"):
        _ = result.return_value


async def test_asynchronous_code_enqueues() -> None:
    result = await tasks.echo.aenqueue(1)
    found = await tasks.echo.aget_result(result.id)
    assert found.args == [1] and found.status == TaskResultStatus.READY
    await result.arefresh()
    assert result.status == TaskResultStatus.READY


def test_arguments_become_json() -> None:
    result = tasks.echo.enqueue((1, 2), more={"a": (3,)})
    assert result.args == [[1, 2]] and result.kwargs == {"more": {"a": [3]}}
    assert tasks.echo.get_result(result.id).args == [[1, 2]]


def test_an_empty_list_of_queues_allows_any_queue() -> None:
    with override_settings(TASKS={"default": {"BACKEND": _path(FairleadBackend), "QUEUES": []}}):
        result = tasks.echo.using(queue_name="elsewhere").enqueue()
        assert Task.objects.get(pk=result.id).queue == "elsewhere"


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def test_options_reach_the_row() -> None:
    row = Task.objects.get(pk=tasks.with_keys.enqueue().id)
    assert (row.ordering_key, row.fairness_key, row.weight) == ("one", "acme", 2.0)
    assert (row.unique_key, row.name) == ("only", "tests.django.sample_tasks.with_keys")
    assert get_app().handlers[row.name].processing.timeout == 9.0


def test_a_unique_key_that_is_taken_returns_the_earlier_result() -> None:
    first, second = tasks.with_keys.enqueue(), tasks.with_keys.enqueue()
    assert first.id == second.id
    assert Task.objects.count() == 1


def test_priorities_are_in_bands_of_twenty() -> None:
    assert [fairlead_priority(each) for each in (100, 81, 80, 1, 0, -19, -20, -79, -80, -100)] == [
        0, 0, 1, 4, 5, 5, 6, 8, 9, 9,
    ]  # fmt: skip


def test_a_higher_priority_runs_first() -> None:
    ids = [tasks.echo.using(priority=each).enqueue().id for each in (-50, 0, 50)]
    drain(concurrency=1, threads=1)
    assert list(Attempt.objects.order_by("seq").values_list("task_id", flat=True)) == ids[::-1]
    assert [tasks.echo.get_result(each).task.priority for each in ids] == [-50, 0, 50]


def test_a_task_waits_for_its_time() -> None:
    later = tasks.echo.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
    now = tasks.echo.using(run_after=timezone.now() - timedelta(hours=1)).enqueue()
    assert run_tasks() == 1
    later.refresh()
    now.refresh()
    assert (later.status, now.status) == (TaskResultStatus.READY, TaskResultStatus.SUCCESSFUL)
    assert run_tasks(at=timezone.now() + timedelta(hours=2)) == 1


def test_without_use_tz_a_naive_run_after_is_local_time() -> None:
    with override_settings(USE_TZ=False, TIME_ZONE="UTC"):
        at = datetime(2030, 1, 1)
        result = tasks.echo.using(run_after=at).enqueue()
        assert result.enqueued_at.tzinfo is None
        assert tasks.echo.get_result(result.id).enqueued_at.tzinfo is None
    assert Task.objects.get(pk=result.id).run_at == datetime(2030, 1, 1, tzinfo=UTC)


# the caller's transaction -------------------------------------------------------------------------


def test_a_rolled_back_transaction_takes_its_task_with_it() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Group.objects.create(name="gone")
        result = tasks.echo.enqueue()
        assert Task.objects.filter(pk=result.id).exists()
        _ = 1 / 0
    assert not Group.objects.exists() and not Task.objects.exists()
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_no_worker_sees_a_task_before_its_commit() -> None:
    app = get_app()
    with transaction.atomic():
        tasks.echo.enqueue()
        assert not app.management.find()
    assert len(app.management.find()) == 1


def test_workers_are_notified_after_the_commit_only(announced: list[Any]) -> None:
    count = 0 if connection.vendor == "postgresql" else 1  # the transaction carries its own there
    with transaction.atomic():
        tasks.echo.enqueue()
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            tasks.echo.enqueue()
            _ = 1 / 0
        assert not announced
    assert len(announced) == count
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.echo.enqueue()
        _ = 1 / 0
    assert len(announced) == count
    tasks.echo.enqueue()
    assert len(announced) == 2 * count


def test_an_enqueue_that_fails_leaves_the_transaction_usable() -> None:
    with transaction.atomic():
        Group.objects.create(name="kept")
        with pytest.raises(InvalidTask):
            tasks.echo.enqueue("x" * 2_000_000)
    assert Group.objects.exists()


def test_plain_tasks_take_djangos_connection() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.plain.options(connection=connection).submit("gone")
        _ = 1 / 0
    with transaction.atomic():
        tasks.plain.options(connection=connection).submit_many([{"name": "a"}, {"name": "b"}])
    tasks.plain.options(connection=connection).submit("c")
    assert Task.objects.count() == 3
    drain()
    assert Group.objects.count() == 3


async def test_asynchronous_code_submits_plain_tasks_through_djangos_connection() -> None:
    handle = await tasks.plain.options(connection=connection).submit_async("a")
    assert await Task.objects.filter(pk=handle.id).acount() == 1
    with pytest.raises(FairleadInvalidTask):
        await tasks.plain.options(connection=connection).submit_async(3)  # type: ignore[arg-type]


# results ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["echo", "echo_async"])
def test_a_worker_runs_a_task(name: str) -> None:
    result = getattr(tasks, name).enqueue(1, (2, 3), more={"a": "ü"})
    drain()
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL and result.is_finished
    assert result.return_value == {"args": [1, [2, 3]], "kwargs": {"more": {"a": "ü"}}}
    assert result.attempts == 1 and len(result.worker_ids[0]) <= 64 and not result.errors
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    found = backend().get_result(result.id)
    assert (found.args, found.kwargs) == ([1, [2, 3]], {"more": {"a": "ü"}})


@pytest.mark.parametrize("name", ["fail", "fail_async"])
def test_a_failed_task_shows_its_error(name: str) -> None:
    result = getattr(tasks, name).enqueue()
    drain()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED and result.is_finished
    error = result.errors[0]
    assert error.exception_class is ValueError
    assert "it fails" in error.traceback and "sample_tasks.py" in error.traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_each_attempt_has_its_error() -> None:
    tasks.seen.clear()
    result = tasks.fail_once.enqueue()
    drain()
    result.refresh()
    assert tasks.seen == [1, 2] and result.return_value == 2
    assert result.attempts == 2 and len(result.worker_ids) == 2
    assert [error.exception_class for error in result.errors] == [ConnectionError]
    assert result.started_at < result.last_attempted_at


def test_a_task_between_two_tries_is_ready() -> None:
    result = tasks.fail_once.enqueue()
    assert run_tasks(raises=False, at=timezone.now() - timedelta(hours=1)) == 0
    with pytest.raises(ConnectionError):
        run_tasks()
    result.refresh()
    assert result.status == TaskResultStatus.READY and result.attempts == 1
    assert run_tasks() == 1


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_run_tasks_gives_handlers_the_state_of_the_test(is_async: bool) -> None:
    app, seen = get_app(), []

    async def on_loop(n: int) -> None:
        seen.append(f"{app.state} {n}")

    def in_thread(n: int) -> None:
        seen.append(f"{app.state} {n}")

    task = app.task(name="with_state")(on_loop if is_async else in_thread)
    try:
        task.options(connection=connection).submit(n=3)
        with app.override_state("fake"):
            assert run_tasks() == 1
    finally:
        del app.handlers["with_state"]
    assert seen == ["fake 3"]


def test_an_id_of_no_task_has_no_result() -> None:
    for wrong in (str(uuid4()), "no id", "", 3):
        with pytest.raises(TaskResultDoesNotExist):
            backend().get_result(wrong)  # type: ignore[arg-type]


def test_a_function_that_is_gone_is_an_import_error() -> None:
    result = tasks.echo.enqueue()
    _rename(result.id, "tests.django.sample_tasks.gone")
    with pytest.raises(ImportError):
        backend().get_result(result.id)


def test_a_name_of_something_else_is_suspicious() -> None:
    result = tasks.echo.enqueue()
    _rename(result.id, "tests.django.sample_tasks.not_a_task")
    with pytest.raises(SuspiciousOperation):
        backend().get_result(result.id)


def _rename(task_id: str, name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE fairlead_tasks SET name = %s WHERE id = %s", [name, task_id])


def test_a_cancelled_task_failed_without_arguments() -> None:
    result = tasks.echo.enqueue(1)
    get_app().management.cancel(result.id)
    result.refresh()
    assert result.status == TaskResultStatus.FAILED and result.attempts == 0
    assert backend().get_result(result.id).args == []


# context ------------------------------------------------------------------------------------------


def test_a_task_takes_its_context() -> None:
    result = tasks.attempt_of.enqueue(7)
    other = tasks.attempt_of_async.enqueue()
    drain()
    result.refresh()
    other.refresh()
    assert result.return_value == [1, result.id, 7]
    assert other.return_value == 1


# signals ------------------------------------------------------------------------------------------


@pytest.fixture
def signals() -> Iterator[list[tuple[str, str, int]]]:
    """Return (signal, status, attempts) of each signal that was sent."""
    seen: list[tuple[str, str, int]] = []
    kinds = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}

    def receive(sender: Any, signal: Any, task_result: Any, **given: Any) -> None:
        [kind] = [kind for kind, each in kinds.items() if each is signal]
        seen.append((kind, task_result.status.value, task_result.attempts))
        assert sender is FairleadBackend

    for signal in kinds.values():
        signal.connect(receive)
    yield seen
    for signal in kinds.values():
        signal.disconnect(receive)


@pytest.mark.parametrize("name", ["echo", "echo_async", "make_group", "make_group_async"])
def test_signals_of_a_success(name: str, signals: Any) -> None:
    getattr(tasks, name).enqueue("x")
    assert signals == [("enqueued", "READY", 0)]
    drain()
    assert signals[1:] == [("started", "RUNNING", 1), ("finished", "SUCCESSFUL", 1)]


@pytest.mark.parametrize("name", ["fail", "fail_async", "return_a_set", "ask_for_retry"])
def test_signals_of_a_failure(name: str, signals: Any) -> None:
    getattr(tasks, name).enqueue()
    drain()
    assert signals[1:] == [("started", "RUNNING", 1), ("finished", "FAILED", 1)]


def test_signals_of_a_retry_finish_once(signals: Any) -> None:
    tasks.fail_once.enqueue()
    drain()
    assert [each[0] for each in signals] == ["enqueued", "started", "started", "finished"]
    assert signals[-1] == ("finished", "SUCCESSFUL", 2)


def test_a_failure_is_logged_with_its_error(caplog: pytest.LogCaptureFixture) -> None:
    tasks.fail.enqueue()
    drain()
    logged = [each for each in caplog.records if each.name in ("django.tasks", "django_tasks")]
    failed = [each for each in logged if each.levelname == "ERROR"]
    assert len(failed) == 1 and failed[0].exc_info and failed[0].exc_info[0] is ValueError


# transactional tasks ------------------------------------------------------------------------------


def test_a_transactional_task_commits_its_writes_with_its_end() -> None:
    tasks.seen.clear()
    result = tasks.write_and_enqueue.enqueue("a")
    drain()
    result.refresh()
    assert result.return_value == "a"
    assert set(Group.objects.values_list("name", flat=True)) == {"a", "a too"}
    assert tasks.seen == ["committed a"]


def test_a_transactional_task_that_fails_leaves_nothing() -> None:
    tasks.seen.clear()
    result = tasks.write_and_enqueue.enqueue("a", breaks=True)
    drain()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert not Group.objects.exists() and not tasks.seen
    assert Task.objects.count() == 1


def test_a_transactional_task_that_lost_its_task_commits_nothing() -> None:
    """Another node takes the task while its handler runs: the writes are rolled back."""
    result = tasks.write_and_enqueue.enqueue("a")

    def lose(sender: Any, task_result: Any, **given: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE fairlead_tasks SET version = version + 1 WHERE id = %s", [task_result.id]
            )

    task_started.connect(lose)
    try:
        with pytest.raises(Exception):
            drain(timeout=3)
    finally:
        task_started.disconnect(lose)
    assert not Group.objects.exists()
    assert Task.objects.filter(pk=result.id).exists()


def test_a_plain_transactional_task_writes_in_djangos_transaction() -> None:
    handle = tasks.plain_transactional.submit("a")
    drain()
    assert Group.objects.filter(name="a").exists()
    assert handle.state() == "DONE"


def test_an_asynchronous_transactional_task_is_refused() -> None:
    with pytest.raises(InvalidTask, match="asynchronous"):
        tasks.task(transactional=True)(_undeclared_async)


async def _undeclared_async() -> None: ...


# connections --------------------------------------------------------------------------------------


def test_a_broken_statement_does_not_break_the_next_task() -> None:
    failing = [tasks.fail_in_database.enqueue() for _ in range(5)]
    fine = [tasks.make_group.enqueue(f"group {n}") for n in range(5)]
    drain(concurrency=1, threads=1)
    for result in failing + fine:
        result.refresh()
    assert {each.status for each in failing} == {TaskResultStatus.FAILED}
    assert {each.status for each in fine} == {TaskResultStatus.SUCCESSFUL}


def test_a_transaction_that_a_task_leaves_open_is_rolled_back() -> None:
    tasks.leave_a_transaction_open.enqueue()
    tasks.make_group.enqueue("after")
    drain(concurrency=1, threads=1)
    assert list(Group.objects.values_list("name", flat=True)) == ["after"]


async def test_many_asynchronous_tasks_use_the_orm() -> None:
    for n in range(20):
        await tasks.make_group_async.aenqueue(f"group {n}")
    await adrain()
    assert await Group.objects.acount() == 20
