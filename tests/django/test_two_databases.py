"""Projects with two databases: the tasks in one that is not the default, and a database router."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import TestResult, TestSuite

import pytest
from django.contrib.auth.models import Group
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import IntegrityError, connections, transaction
from django.test import Client, TestCase, override_settings

from fairlead import SchemaMismatch
from fairlead.contrib.django import get_app
from fairlead.contrib.django.models import Task
from fairlead.contrib.django.testing import drain, run_tasks
from services.postgres import PostgresServer
from tests.django import sample_tasks as tasks
from tests.django.conftest import settings_of, use_databases


class TasksRouter:
    """A router that keeps everything but the tasks out of their database."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "tasks" if model._meta.app_label == "fairlead" else "default"

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return (db == "tasks") == (app_label == "fairlead")


@pytest.fixture
def two(database_url: str, postgres_server: PostgresServer) -> Iterator[None]:
    """The tasks in the database `tasks`, and all else in `default`."""
    other = postgres_server.create_database()
    use_databases({"default": settings_of(database_url), "tasks": settings_of(other)})
    router = f"{__name__}.TasksRouter"
    with override_settings(FAIRLEAD={"DATABASE": "tasks"}, DATABASE_ROUTERS=[router]):
        call_command("migrate", database="tasks", verbosity=0)
        yield
        get_app().close()
        connections.close_all()


@pytest.mark.usefixtures("two")
def test_tasks_live_in_their_own_database() -> None:
    result = tasks.make_group.enqueue("a")
    assert Task.objects.get().id == result.id
    assert "fairlead_tasks" in connections["tasks"].introspection.table_names()
    assert "auth_group" not in connections["tasks"].introspection.table_names()
    drain()
    result.refresh()
    assert result.is_finished and Group.objects.get().name == "a"


@pytest.mark.usefixtures("two")
def test_only_a_transaction_of_their_database_takes_tasks_back() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.echo.enqueue("kept")
        _ = 1 / 0
    with pytest.raises(ZeroDivisionError), transaction.atomic(using="tasks"):
        tasks.echo.enqueue("gone")
        _ = 1 / 0
    assert Task.objects.count() == 1


@pytest.mark.usefixtures("two")
def test_a_view_with_atomic_requests_takes_its_task_back() -> None:
    connections["tasks"].settings_dict["ATOMIC_REQUESTS"] = True
    data = {"customer": "acme", "amount": "3", "breaks": "1"}
    assert Client(raise_request_exception=False).post("/orders/", data).status_code == 500
    assert not Task.objects.exists()


def test_the_cure_names_the_database_to_migrate(database: str, tmp_path: Path) -> None:
    other = settings_of(f"sqlite:///{tmp_path / 'tasks.sqlite3'}")
    use_databases({"default": settings_of(database), "tasks": other})
    with override_settings(FAIRLEAD={"DATABASE": "tasks"}):
        found = [each for each in run_checks(databases=["tasks"]) if each.id == "fairlead.W002"]
        assert "manage.py migrate --database tasks" in str(found[0].hint)
        with pytest.raises(SchemaMismatch, match="manage.py migrate --database tasks"):
            get_app().node()


def run_in_suite(test: TestCase) -> TestResult:
    """Run a test with the set-up of its class."""
    result = TestResult()
    TestSuite([test]).run(result)
    return result


@pytest.mark.usefixtures("two")
def test_a_test_case_without_the_database_of_the_tasks_cannot_enqueue() -> None:
    class OfDefault(TestCase):
        databases = {"default"}

        def runTest(self) -> None:
            tasks.echo.enqueue(1)

    Task.objects.count()  # the connection is open, as after a TransactionTestCase
    found = run_in_suite(OfDefault())
    assert len(found.failures) == 1 and "databases" in found.failures[0][1]
    assert not Task.objects.exists()


@pytest.mark.usefixtures("two")
def test_run_tasks_in_a_test_case_of_two_databases() -> None:
    class OfBoth(TestCase):
        databases = {"default", "tasks"}

        def runTest(self) -> None:
            Group.objects.create(name="a")
            tasks.make_group.enqueue("a")  # breaks the transaction of the other database
            with self.assertRaises(IntegrityError):
                run_tasks()
            assert Group.objects.count() == 1
            tasks.make_group.enqueue("b")
            assert run_tasks() == 1
            assert Group.objects.count() == 2

    found = run_in_suite(OfBoth())
    assert found.wasSuccessful(), found.errors + found.failures
    assert not Task.objects.exists() and not Group.objects.exists()
