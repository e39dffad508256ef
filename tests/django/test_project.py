"""The project `examples/django_shop`: its own tests, a worker as a process, admin, console, checks
and migrations."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import Client, RequestFactory, override_settings
from django.utils import timezone
from shop.models import Order
from shop.tasks import charge, refuse, thank

from fairlead import App, ConfigurationError, NotAllowed
from fairlead.backends.sql.migrate import migrations_of
from fairlead.contrib.celery import Celery
from fairlead.contrib.django import get_app
from fairlead.contrib.django.checks import check_project
from fairlead.contrib.django.compat import TaskResultStatus
from fairlead.contrib.django.configuration import Configuration
from fairlead.contrib.django.database_url import url_of
from fairlead.contrib.django.management.commands.fairlead import APPLICATION, complete
from fairlead.contrib.django.models import Attempt, Task
from fairlead.contrib.django.schema import PACKAGES
from fairlead.contrib.django.testing import adrain, clear, drain, run_tasks
from tests.django.conftest import (
    ON_BOTH,
    ON_SQLITE,
    ROOT,
    SHOP,
    settings_of,
    use_database,
)


def manage(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of manage.py on this database."""
    database = url if url.startswith("postgresql") else url.removeprefix("sqlite:///")
    environment = {
        **os.environ,
        "SHOP_DATABASE": database,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(SHOP)]),
        "DJANGO_SETTINGS_MODULE": "shop_site.settings",
    }
    return subprocess.run(
        [sys.executable, str(SHOP / "manage.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


# the shop -----------------------------------------------------------------------------------------


@ON_BOTH
def test_the_tests_of_the_shop_pass(database_url: str) -> None:
    ended = manage(database_url, "test", "shop")  # drops its database at the end
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Ran 4 tests" in ended.stderr


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["one", "two under a supervisor"])
def test_a_worker_process_runs_what_a_view_enqueued(
    workers: tuple[str, ...], database: str
) -> None:
    placed = Client().post("/orders/", {"customer": "acme", "amount": "3"}).json()
    connections.close_all()
    ended = manage(database, "fairlead", "worker", "--until-empty", *workers)
    assert ended.returncode == 0, ended.stderr
    assert Client().get(f"/orders/{placed['order']}/").json() == {"state": "thanked"}
    result = charge.get_result(placed["task"])
    assert result.return_value == 3 and result.status == TaskResultStatus.SUCCESSFUL


async def test_an_asynchronous_view_enqueues(database: str) -> None:
    from django.test import AsyncClient

    placed = await AsyncClient().post("/orders-async/", {"customer": "acme"})
    result = await thank.aget_result(placed.json()["task"])
    await adrain()
    await result.arefresh()
    assert result.return_value == "attempt 1: thanks, acme"


def test_commands_know_the_database_of_the_project(database: str) -> None:
    order = Order.objects.create(customer="acme", amount=1)
    result = charge.enqueue(order.id)
    connections.close_all()
    listed = manage(database, "fairlead", "tasks")
    assert result.id[:8] in listed.stdout, listed.stdout + listed.stderr
    refused = manage(database, "fairlead", "migrate")
    assert refused.returncode == 1 and "manage.py migrate" in refused.stderr


def test_a_worker_starts_again_after_changes_only_in_debug() -> None:
    assert complete(["worker"], True) == ["worker", APPLICATION, "--reload"]
    assert complete(["worker"], False) == ["worker", APPLICATION]
    assert complete(["worker", "--noreload"], True) == ["worker", APPLICATION]
    assert complete(["worker", "--until-empty"], True)[-1] == "--until-empty"
    assert complete(["tasks", "show"], True) == ["tasks", "show"]
    assert complete(["periodic", "run"], True) == ["periodic", "run", "--app", APPLICATION]


@ON_SQLITE
def test_options_of_manage_py_may_stand_after_the_command(database: str) -> None:
    options = ("--settings", "shop_site.settings", f"--pythonpath={SHOP}")
    ended = manage(database, "fairlead", "worker", *options, "--until-empty")
    assert ended.returncode == 0, ended.stderr


# migrations ---------------------------------------------------------------------------------------


def test_each_migration_of_fairlead_is_a_migration_of_django() -> None:
    folder = ROOT / "src" / "fairlead" / "contrib" / "django" / "migrations"
    texts = [path.read_text() for path in sorted(folder.glob("0*.py"))]
    numbers = [int(each) for text in texts for each in re.findall(r"ApplySchema\((\d+)\)", text)]
    for package in PACKAGES.values():
        assert numbers == [each.version for each in migrations_of(package)]


def test_models_need_no_further_migration(database: str) -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_a_database_that_fairlead_migrated_is_taken_over(store_url: str) -> None:
    app = App(store_url)
    app.migrate()
    app.close()
    use_database(settings_of(store_url))
    try:
        call_command("migrate", "fairlead", verbosity=0)
        get_app().check_tables()
        call_command("migrate", "fairlead", "zero", verbosity=0)
        assert not _our_tables()
        call_command("migrate", "fairlead", verbosity=0)
        get_app().check_tables()
    finally:
        get_app().close()
        connections.close_all()


def test_a_database_of_django_keeps_no_levels(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_app().close()
    monkeypatch.setenv("FAIRLEAD_BACKLOG", "database")
    with pytest.raises(ConfigurationError, match="keeps no levels of fair queues; leave the"):
        get_app().check_tables()


def _our_tables() -> list[str]:
    found = connections["default"].introspection.table_names(include_views=True)
    return [name for name in found if name.startswith("fairlead_")]


# models and admin ---------------------------------------------------------------------------------


def test_models_are_read_only(database: str) -> None:
    charge.enqueue(1)
    task = Task.objects.get()
    for change in (
        task.save,
        task.delete,
        Task.objects.all().delete,
        lambda: Task.objects.update(state="DONE"),
        lambda: Task.objects.create(id="x"),
        lambda: Task.objects.bulk_create([task]),
    ):
        with pytest.raises(NotAllowed):
            change()


def person(name: str, *permissions: str, is_staff: bool = True) -> Client:
    user = User.objects.create_user(name, password="a password", is_staff=is_staff)
    user.user_permissions.set(
        Permission.objects.filter(codename__in=permissions, content_type__app_label="fairlead")
    )
    client = Client()
    client.force_login(user)
    return client


def test_the_admin_lists_filters_and_shows(database: str) -> None:
    failed = refuse.using(fairness_key="acme").enqueue(1)
    drain()
    waiting = charge.enqueue(2)
    client = person("ann", "view_task", "change_task", "view_attempt")
    page = client.get("/admin/fairlead/task/").content.decode()
    assert failed.id in page and waiting.id in page and "End selected tasks as CANCELLED" in page
    page = client.get("/admin/fairlead/task/?state__exact=ERROR").content.decode()
    assert failed.id in page and waiting.id not in page
    page = client.get("/admin/fairlead/task/?q=acme").content.decode()
    assert failed.id in page and waiting.id not in page
    page = client.get(f"/admin/fairlead/task/{failed.id}/change/").content.decode()
    assert "cannot be handled" in page and "&quot;args&quot;" in page and "1. " in page
    page = client.get("/admin/fairlead/attempt/").content.decode()
    assert failed.id in page and "refuse" in page
    seq = Attempt.objects.get().seq
    assert client.get(f"/admin/fairlead/attempt/{seq}/change/").status_code == 200
    for path in ("task/add/", f"task/{failed.id}/delete/"):
        assert client.get(f"/admin/fairlead/{path}").status_code == 403


def hide(name: str, arguments: Any) -> str:
    """Return the arguments of a task without anything in them."""
    return f"hidden of {name}"


def raise_secret(name: str, arguments: Any) -> str:
    """Raise an error whose text has the arguments."""
    raise KeyError(str(arguments))


def test_the_admin_shows_arguments_through_the_mask(database: str) -> None:
    waiting, client = charge.enqueue("a-secret"), person("ann", "view_task")
    with override_settings(FAIRLEAD={"MASK": f"{__name__}.hide"}):
        page = client.get(f"/admin/fairlead/task/{waiting.id}/change/")
        assert "hidden of" in page.content.decode() and "a-secret" not in page.content.decode()
    with override_settings(FAIRLEAD={"MASK": f"{__name__}.raise_secret"}):
        page = client.get(f"/admin/fairlead/task/{waiting.id}/change/")
        assert "KeyError" in page.content.decode() and "a-secret" not in page.content.decode()
    with override_settings(FAIRLEAD={"MASK": "shop.tasks.missing"}):
        with pytest.raises(ConfigurationError, match="MASK"):
            _ = Configuration.load().mask_function
        assert [each.id for each in check_project()] == ["fairlead.E001"]


@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "with ATOMIC_REQUESTS"])
def test_actions_of_the_admin(atomic: bool, database: str) -> None:
    connections["default"].settings_dict["ATOMIC_REQUESTS"] = atomic
    failed, other, gone = refuse.enqueue(1), refuse.enqueue(2), charge.enqueue(3)
    get_app().management.cancel(gone.id)
    gone = charge.using(run_after=_tomorrow()).enqueue(3)
    drain()
    client = person("ann", "view_task", "change_task")
    assert "1 retried" in act(client, "retry", failed.id)
    assert "1 resumed" in act(client, "resume", other.id)
    assert "1 cancelled" in act(client, "cancel", gone.id)
    for result, status in ((failed, "READY"), (other, "READY"), (gone, "FAILED")):
        result.refresh()
        assert result.status == status
    assert [each.actor for each in get_app().management.audit.list()] == ["ann"] * 3 + ["a person"]
    drain()
    assert Attempt.objects.filter(task_id=failed.id).count() == 2


def _tomorrow() -> Any:
    return timezone.now() + timedelta(days=1)


def act(client: Client, action: str, task_id: str) -> str:
    data = {"action": action, "_selected_action": [task_id]}
    response = client.post("/admin/fairlead/task/", data, follow=True)
    return response.content.decode()


def test_actions_need_the_permission(database: str) -> None:
    result = charge.using(run_after=_tomorrow()).enqueue(1)
    reader = person("ben", "view_task")
    assert (
        "End selected tasks as CANCELLED"
        not in reader.get("/admin/fairlead/task/").content.decode()
    )
    act(reader, "cancel", result.id)
    assert Client().get("/admin/fairlead/task/").status_code == 302
    assert person("cy").get("/admin/fairlead/task/").status_code == 403
    result.refresh()
    assert result.status == TaskResultStatus.READY


# the console --------------------------------------------------------------------------------------


@pytest.fixture
def queue_of_mail(database: str) -> Iterator[None]:
    drain()  # a worker registers the queues
    thank.using(queue_name="mail").enqueue(1)
    yield


@pytest.mark.usefixtures("queue_of_mail")
def test_the_console_is_for_staff_with_permission() -> None:
    assert Client().get("/fairlead/queues").headers["location"].startswith("/admin/login/")
    assert person("dan", "view_task", is_staff=False).get("/fairlead/queues").status_code == 403
    assert person("eve").get("/fairlead/queues").status_code == 403
    page = person("ann", "view_task").get("/fairlead/queues")
    assert page.status_code == 200 and "mail" in page.content.decode()
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert 'href="/fairlead/tasks' in page.content.decode()


def send(client: Client, form: dict[str, str], **headers: str) -> Any:
    return client.post(
        "/fairlead/do/pause_queue",
        urlencode(form),
        content_type="application/x-www-form-urlencoded",
        headers=headers,
    )


@pytest.mark.usefixtures("queue_of_mail")
def test_the_console_acts_for_people_who_may_change_tasks() -> None:
    ann, ben = person("ann", "view_task", "change_task"), person("ben", "view_task")
    for client, expected in ((ben, 403), (ann, 303)):
        page = client.get("/fairlead/queues").content.decode()
        token = re.findall(r'data-csrf="(\w+)"', page)[0]
        form = {"csrf_token": token, "queue": "mail"}
        assert send(client, form).status_code == expected
    assert {each.queue: each.paused for each in get_app().management.queues()}["mail"]
    assert get_app().management.audit.list()[0].actor == "ann"


@pytest.mark.usefixtures("queue_of_mail")
def test_the_console_keeps_its_checks_of_origin_and_token() -> None:
    client = person("ann", "view_task", "change_task")
    page = client.get("/fairlead/queues").content.decode()
    token = re.findall(r'data-csrf="(\w+)"', page)[0]
    form = {"csrf_token": token, "queue": "mail"}
    assert send(client, form, origin="https://evil.example").status_code == 403
    assert send(client, form, **{"sec-fetch-site": "cross-site"}).status_code == 403
    assert send(client, {"queue": "mail"}).status_code == 403
    assert send(client, form).status_code == 303
    static = re.findall(r'"(/fairlead/static/[^"]+)"', page)
    assert static and all(client.get(each).status_code == 200 for each in static)


# settings and checks ------------------------------------------------------------------------------


def test_missing_migrations_are_a_warning(tmp_path: Path) -> None:
    use_database(settings_of(f"sqlite:///{tmp_path / 'new.sqlite3'}"))
    found = [each for each in run_checks(databases=["default"]) if each.id == "fairlead.W002"]
    assert len(found) == 1 and not found[0].is_serious(40) and "0001_schema" in found[0].msg
    connections.close_all()


def test_sqlite_without_immediate_transactions_is_a_warning(tmp_path: Path) -> None:
    settings = settings_of(f"sqlite:///{tmp_path / 'new.sqlite3'}")
    use_database({**settings, "OPTIONS": {}, "ATOMIC_REQUESTS": True})
    found = [each for each in run_checks() if each.id == "fairlead.W001"]
    assert len(found) == 1 and "ATOMIC_REQUESTS" in found[0].msg
    connections.close_all()


def test_an_application_that_is_not_installed_is_an_error(database: str) -> None:
    from django.conf import settings

    kept = [each for each in settings.INSTALLED_APPS if each != "fairlead.contrib.django"]
    with override_settings(INSTALLED_APPS=kept):
        from fairlead.contrib.django.checks import check_backend

        assert [each.id for each in check_backend(charge.get_backend())] == ["fairlead.E005"]


def test_an_unknown_option_of_the_backend_is_an_error(database: str) -> None:
    path = "fairlead.contrib.django.backend.FairleadBackend"
    tasks = {"default": {"BACKEND": path, "OPTIONS": {"retries": 3}}}
    with override_settings(TASKS=tasks):
        assert "fairlead.E006" in [each.id for each in charge.get_backend().check()]


def test_no_other_vendor_holds_tasks() -> None:
    with pytest.raises(ConfigurationError, match="SQLite or PostgreSQL"):
        url_of("default", "mysql", {"NAME": "shop"})


def test_urls_are_made_from_databases() -> None:
    settings = {
        "NAME": "shop db",
        "USER": "me@here",
        "PASSWORD": "p/w:?",
        "HOST": "db",
        "PORT": "5433",
        "OPTIONS": {"sslmode": "require", "pool": True},
    }
    assert (
        url_of("default", "postgresql", settings)
        == "postgresql://me%40here:p%2Fw%3A%3F@db:5433/shop%20db?sslmode=require"
    )
    socket = {"NAME": "shop", "HOST": "/var/run", "PORT": ""}
    assert url_of("default", "postgresql", socket) == "postgresql:///shop?host=%2Fvar%2Frun"
    assert url_of("default", "sqlite", {"NAME": Path("/a b/c.db")}) == "sqlite:////a%20b/c.db"


def test_no_password_is_shown(database: str) -> None:
    password = connections["default"].settings_dict["PASSWORD"]
    assert password and password not in repr(get_app().connector.settings)
    listed = manage(database, "fairlead", "worker", "--until-empty", "--log-level", "debug")
    assert password not in listed.stdout + listed.stderr


# pool ---------------------------------------------------------------------------------------------


async def test_djangos_own_pool_of_connections(migrated_shop_url: str) -> None:
    pytest.importorskip("psycopg_pool")
    settings = {**settings_of(migrated_shop_url), "CONN_MAX_AGE": 0}
    use_database({**settings, "OPTIONS": {"pool": {"min_size": 1, "max_size": 4}}})
    try:
        order = await Order.objects.acreate(customer="acme", amount=3)
        result = await charge.aenqueue(order.id)
        await adrain()
        await result.arefresh()
        await order.arefresh_from_db()
        assert result.return_value == 3 and order.state == "thanked"
        with psycopg.connect(migrated_shop_url) as other:
            assert other.execute("SELECT count(*) FROM fairlead_tasks").fetchone() == (0,)
    finally:
        connections["default"].close_pool()


# helpers for tests --------------------------------------------------------------------------------


def test_a_clone_for_parallel_tests_has_all_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_database(
        {
            **settings_of(f"sqlite:///{tmp_path / 'shop.sqlite3'}"),
            "TEST": {"NAME": tmp_path / "test.sqlite3"},
        }
    )
    monkeypatch.setitem(settings.DATABASES["default"], "NAME", "")  # the creation changes it
    creation = connections["default"].creation
    creation.create_test_db(verbosity=0)
    creation.clone_test_db("1", verbosity=0)
    tables = set(connections["default"].introspection.table_names())
    use_database(settings_of(f"sqlite:///{tmp_path / 'test_1.sqlite3'}"))
    assert "fairlead_tasks" in tables
    assert tables == set(connections["default"].introspection.table_names())


def test_helpers_say_where_they_can_be_used(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from django.db import transaction

    with pytest.raises(ConfigurationError, match="Django's: use drain.. or run_tasks"):
        request.getfixturevalue("fairlead_kit")
    with transaction.atomic(), pytest.raises(ConfigurationError, match="TransactionTestCase"):
        drain()
    charge.enqueue(1)
    clear()
    assert run_tasks() == 0
    use_database({**settings_of("sqlite:///x"), "NAME": ":memory:"})
    with pytest.raises(ConfigurationError, match="in memory"):
        drain()
    with pytest.raises(CommandError, match="in memory"):
        call_command("fairlead", "worker")
    call_command("migrate", verbosity=0)
    order = Order.objects.create(customer="acme", amount=3)
    result = charge.enqueue(order.id)
    assert run_tasks() == 2
    result.refresh()
    assert result.return_value == 3
    assert RequestFactory().get("/").path == "/"


def test_celery_names_read_settings_that_a_test_overrides() -> None:
    celery = Celery("shop")
    with override_settings(CELERY_TASK_DEFAULT_QUEUE="mails"):
        celery.config_from_object("django.conf:settings", namespace="CELERY")
    assert celery.conf.task_default_queue == "mails"
