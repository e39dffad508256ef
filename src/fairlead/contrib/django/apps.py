"""The Django application `fairlead.contrib.django`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.signals import setting_changed
from django.db import DatabaseError
from django.db.backends.signals import connection_created

from fairlead.contrib.django.checks import check_migrations, check_project
from fairlead.contrib.django.configuration import Configuration
from fairlead.contrib.django.database_url import is_in_memory
from fairlead.errors import FairleadError


class FairleadConfig(AppConfig):
    """Configuration of the Django application; its label is `fairlead`."""

    name = "fairlead.contrib.django"
    label = "fairlead"
    verbose_name = "Fairlead"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        checks.register(check_project)
        checks.register(check_migrations, checks.Tags.database)
        setting_changed.connect(_on_setting_changed)
        connection_created.connect(_on_connection_created)


def _on_setting_changed(*, setting: str, **given: object) -> None:
    if setting == "FAIRLEAD":
        Configuration.load.cache_clear()


def _on_connection_created(*, connection: Any, **given: object) -> None:
    """Switch a SQLite file to its write-ahead log, so that Fairlead never waits for a transaction
    of Django in order to do it."""
    try:
        alias = Configuration.load().database
    except FairleadError:
        return  # the checks name the wrong setting; other databases work
    if connection.vendor != "sqlite" or connection.alias != alias:
        return
    of_test = (connection.settings_dict.get("TEST") or {}).get("NAME")
    if of_test is not None and str(of_test) == str(connection.settings_dict["NAME"]):
        return  # `test --parallel` copies the file without its log; a worker switches it later
    if not is_in_memory(connection.vendor, connection.settings_dict):
        with suppress(DatabaseError), connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode = WAL")
