"""Edges of Django's transactions, of several backends, and of wrong settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import Group, Permission
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection, connections, transaction
from django.test import override_settings

from fairlead.contrib.django.checks import check_project
from fairlead.contrib.django.compat import InvalidTask, TaskResultStatus, task_backends
from fairlead.contrib.django.models import Task
from fairlead.contrib.django.testing import drain
from tests.django import sample_tasks as tasks
from tests.django.conftest import settings_of, use_database

BACKEND = "fairlead.contrib.django.backend.FairleadBackend"

# transactions -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("database")
def test_tasks_are_enqueued_in_a_transaction_that_is_managed_by_hand() -> None:
    Group.objects.count()
    transaction.set_autocommit(False)
    try:
        tasks.echo.enqueue("gone")
        transaction.rollback()
        tasks.echo.enqueue("kept")
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert Task.objects.count() == 1


@pytest.mark.usefixtures("database")
def test_savepoints_keep_the_order_of_callbacks_and_tasks() -> None:
    seen: list[str] = []
    with transaction.atomic():
        transaction.on_commit(lambda: seen.append("first"))
        outer = tasks.echo.enqueue("outer")
        savepoint = transaction.savepoint()
        tasks.echo.enqueue("gone")
        transaction.savepoint_rollback(savepoint)
        inner = tasks.echo.enqueue("inner")
        transaction.on_commit(lambda: seen.append(str(Task.objects.count())))
        assert not seen
    assert seen == ["first", "2"]
    assert {each.id for each in Task.objects.all()} == {outer.id, inner.id}


@pytest.mark.usefixtures("database")
async def test_an_asynchronous_enqueue_joins_a_block_around_it(announced: list[Any]) -> None:
    def block(breaks: bool) -> None:
        with transaction.atomic():
            async_to_sync(tasks.echo.aenqueue)(1)
            async_to_sync(tasks.plain.options(connection=connection).submit_async)("a")
            assert not announced
            if breaks:
                raise KeyError

    with pytest.raises(KeyError):
        await sync_to_async(block)(True)
    assert await Task.objects.acount() == 0
    await sync_to_async(block)(False)
    assert await Task.objects.acount() == 2
    # A transaction of PostgreSQL carries its own notifications.
    assert len(announced) == (0 if connection.vendor == "postgresql" else 2)


# migrations ---------------------------------------------------------------------------------------


def test_an_enqueue_without_tables_names_the_cure(tmp_path: Path) -> None:
    use_database(settings_of(f"sqlite:///{tmp_path / 'new.sqlite3'}"))
    with pytest.raises(DatabaseError) as found:
        tasks.echo.enqueue()
    assert any("manage.py migrate" in each for each in getattr(found.value, "__notes__", []))
    connections.close_all()


# declared functions -------------------------------------------------------------------------------


def _yields() -> Any:
    yield 1


async def _yields_async() -> Any:
    yield 1


class _Callable:
    def __call__(self) -> None: ...

    def method(self) -> None: ...


@pytest.mark.parametrize("function", [_yields, _yields_async], ids=["generator", "asynchronous"])
def test_a_generator_is_refused(function: Any) -> None:
    with pytest.raises(InvalidTask, match="yield"):
        tasks.task(function)


@pytest.mark.parametrize(
    "function",
    [_Callable(), _Callable().method, (lambda: None), int, len],
    ids=["object", "method", "lambda", "class", "builtin"],
)
def test_a_function_that_no_worker_can_import_is_refused(function: Any) -> None:
    with pytest.raises(InvalidTask):
        tasks.task(function)


# several backends ---------------------------------------------------------------------------------


@pytest.fixture
def two_backends(database: str) -> Iterator[None]:
    second = {"BACKEND": BACKEND, "QUEUES": ["heavy"], "OPTIONS": {"timeout": 5.0}}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND}, "second": second}):
        yield


@pytest.mark.usefixtures("two_backends")
@pytest.mark.parametrize("name", ["echo", "echo_async"])
def test_a_task_runs_from_a_queue_of_another_backend(name: str) -> None:
    task = getattr(tasks, name).using(backend="second", queue_name="heavy")
    result = task.enqueue(1)
    drain()
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL, result.errors
    found = task_backends["second"].get_result(result.id)
    assert (found.task.queue_name, found.backend, found.args) == ("heavy", "second", [1])
    with pytest.raises(InvalidTask):
        tasks.echo.using(queue_name="heavy")


@pytest.mark.usefixtures("database")
def test_the_result_of_a_queue_that_is_gone_can_be_read() -> None:
    result = tasks.echo.using(queue_name="mail").enqueue(1)
    with override_settings(TASKS={"default": {"BACKEND": BACKEND}}):
        assert task_backends["default"].get_result(result.id).task.queue_name == "mail"
        drain()
        result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL, result.errors


# wrong settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"URL": 3},
        {"URL": "mysql://localhost/x"},
        {"URL": "no url"},
        {"APP": {"nonsense": 1}},
        {"APP": {"payload_limit": "x"}},
        {"APP": {"url": "sqlite:///x"}},
        {"APP": {"interceptors": [3]}},
        {"APP": {"interceptors": 3}},
        {"DATABASE": 3},
        {"MODULES": ["no such module.x"]},
        {"MODULES": "tasks"},
        {3: 3},
    ],
    ids=str,
)
def test_a_wrong_value_of_the_setting_is_named(
    wrong: Any, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairlead.contrib.django import project

    monkeypatch.setattr(project, "_app", None)
    with override_settings(FAIRLEAD=wrong):
        found = [each for each in check_project() if each.id.startswith("fairlead.E")]
    assert found, wrong
    assert str(next(iter(wrong))) in found[0].msg or "FAIRLEAD" in found[0].msg, found[0].msg


@pytest.mark.parametrize(
    "options",
    [{"retry": 3}, {"timeout": "x"}, {"timeout": -1}, ["retry"], None],
    ids=str,
)
def test_a_wrong_option_of_the_backend_is_named(options: Any, database: str) -> None:
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        with pytest.raises(ImproperlyConfigured, match=r"TASKS\['default'\]"):
            _ = task_backends["default"]


@pytest.mark.parametrize(
    "queues", [["a\0b"], [3], [""], ["x" * 10_000]], ids=["NUL", "number", "empty", "long"]
)
def test_a_wrong_queue_is_named(queues: Any, database: str) -> None:
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": queues}}):
        with pytest.raises(ImproperlyConfigured, match=r"TASKS\['default'\]"):
            _ = task_backends["default"]


# the console --------------------------------------------------------------------------------------


class AskingBackend(ModelBackend):
    """A backend that asks the database at each question, as some packages do."""

    def has_perm(self, user_obj: Any, perm: str, obj: Any = None) -> bool:
        label, codename = perm.split(".")
        found = Permission.objects.filter(user=user_obj, codename=codename)
        return found.filter(content_type__app_label=label).exists()


@pytest.mark.usefixtures("database")
@override_settings(AUTHENTICATION_BACKENDS=[f"{__name__}.AskingBackend"])
def test_the_console_asks_for_permissions_outside_of_its_loop() -> None:
    from tests.django.test_project import person

    drain()
    tasks.echo.enqueue()
    assert person("ann", "view_task", "change_task").get("/fairlead/queues").status_code == 200
