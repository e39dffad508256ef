"""The Django application `fairlead.contrib.django`."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.core.signals import setting_changed

from fairlead.contrib.django.checks import check_migrations, check_project
from fairlead.contrib.django.configuration import Configuration


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


def _on_setting_changed(*, setting: str, **given: object) -> None:
    if setting == "FAIRLEAD":
        Configuration.load.cache_clear()
