"""System checks, which say what is missing in a Django project and how to mend it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import DatabaseError

from fairlead.contrib.django.configuration import Configuration
from fairlead.contrib.django.database_url import SUPPORTED, is_in_memory, url_of
from fairlead.contrib.django.project import DjangoApp, get_app
from fairlead.errors import FairleadError

BACKEND = "fairlead.contrib.django.backend.FairleadBackend"


def check_project(**given: Any) -> list[CheckMessage]:
    """Check the setting FAIRLEAD, its database, and what TASKS needs beside the backend."""
    try:
        configuration = Configuration.load()
        _ = configuration.mask_function
    except FairleadError as error:
        return [Error(str(error), id="fairlead.E001")]
    alias = configuration.database
    if alias not in connections:
        return [
            Error(
                f"FAIRLEAD['DATABASE'] is {alias!r}, which is not in DATABASES.",
                hint=f"Use one of {', '.join(connections)}.",
                id="fairlead.E002",
            )
        ]
    return [*_check_database(alias, configuration), *_check_tasks()]


def _check_database(alias: str, configuration: Configuration) -> Iterable[CheckMessage]:
    connection = connections[alias]
    if connection.vendor not in SUPPORTED:
        yield Error(
            f"The database {alias!r} is one of {connection.vendor}.",
            hint="Tasks live in SQLite or PostgreSQL: name another entry of DATABASES in"
            " FAIRLEAD['DATABASE'].",
            id="fairlead.E003",
        )
        return
    try:
        app = get_app()
        if configuration.url is not None:
            yield from _check_url(app)
        elif not is_in_memory(connection.vendor, connection.settings_dict):
            url_of(alias, connection.vendor, connection.settings_dict)
    except FairleadError as error:
        yield Error(str(error), id="fairlead.E001")
    yield from _check_modules(configuration)
    if connection.vendor == "sqlite":
        yield from _check_sqlite(alias, connection)


def _check_url(app: DjangoApp) -> Iterable[CheckMessage]:
    try:
        _ = app.connections.sql_store
    except FairleadError as error:
        yield Error(f"FAIRLEAD['URL']: {error}", id="fairlead.E001")


def _check_modules(configuration: Configuration) -> Iterable[CheckMessage]:
    for name in configuration.modules:
        try:
            is_found = "." not in name or find_spec(name) is not None
        except ImportError:
            is_found = False
        if not is_found:
            yield Error(f"FAIRLEAD['MODULES']: there is no module {name!r}.", id="fairlead.E001")


def _check_sqlite(alias: str, connection: Any) -> Iterable[CheckMessage]:
    options = connection.settings_dict.get("OPTIONS") or {}
    if str(options.get("transaction_mode", "")).upper() in ("IMMEDIATE", "EXCLUSIVE"):
        return
    what = "With ATOMIC_REQUESTS, every view" if _has_atomic_requests(connection) else "A block"
    yield CheckWarning(
        f"{what} that reads from the database {alias!r} and then writes or enqueues fails at once"
        " with 'database is locked' if a worker wrote meanwhile.",
        hint="Set OPTIONS = {'transaction_mode': 'IMMEDIATE'} for this database.",
        id="fairlead.W001",
    )


def _has_atomic_requests(connection: Any) -> bool:
    return bool(connection.settings_dict.get("ATOMIC_REQUESTS"))


def _check_tasks() -> Iterable[CheckMessage]:
    configured = getattr(settings, "TASKS", {})
    is_ours = any(each.get("BACKEND") == BACKEND for each in configured.values())
    try:
        import django.tasks  # noqa: F401 - of Django 6
    except ModuleNotFoundError:
        if is_ours and not apps.is_installed("django_tasks"):
            yield Error(
                "Before Django 6, the setting TASKS needs the application 'django_tasks'.",
                hint="pip install django-tasks, and add 'django_tasks' to INSTALLED_APPS.",
                id="fairlead.E004",
            )


def check_backend(backend: Any) -> list[CheckMessage]:
    """Check a backend of Django's tasks."""
    found: list[CheckMessage] = []
    if not apps.is_installed("fairlead.contrib.django"):
        found.append(
            Error(
                f"TASKS[{backend.alias!r}] uses Fairlead, but the application is not installed.",
                hint="Add 'fairlead.contrib.django' to INSTALLED_APPS.",
                id="fairlead.E005",
            )
        )
    if unknown := set(backend.options) - {"retry", "timeout"}:
        found.append(
            Error(
                f"TASKS[{backend.alias!r}]['OPTIONS'] has the unknown name {min(unknown)!r}.",
                hint="Known: retry, timeout.",
                id="fairlead.E006",
            )
        )
    return found


def check_migrations(databases: Iterable[str] | None = None, **given: Any) -> list[Any]:
    """Check that the migrations of Fairlead are applied, if its database is among these."""
    try:
        alias = Configuration.load().database
    except FairleadError:
        return []
    if databases is None or alias not in databases or alias not in connections:
        return []
    try:
        executor = MigrationExecutor(connections[alias])
        targets = [each for each in executor.loader.graph.leaf_nodes() if each[0] == "fairlead"]
        plan = [migration for migration, _ in executor.migration_plan(targets)]
    except DatabaseError as error:
        return [CheckWarning(f"The database {alias!r} cannot be read: {error}", id="fairlead.W003")]
    missing = [each.name for each in plan if each.app_label == "fairlead"]
    if not missing:
        return []
    # A warning, because errors would keep `manage.py migrate` from running.
    return [
        CheckWarning(
            f"Migrations of Fairlead are not applied in {alias!r}: {', '.join(missing)}.",
            hint=f"Run {get_app().migrate_command}.",
            id="fairlead.W002",
        )
    ]
