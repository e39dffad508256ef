"""Fairlead in Django projects: a backend of Django's tasks, a worker command, migrations, an admin,
system checks and the console, over the project's own database.

The extra `fairlead[django]` installs what it needs. Add `fairlead.contrib.django` to
INSTALLED_APPS.
"""

from __future__ import annotations

from fairlead.contrib.django.project import DjangoApp, get_app

__all__ = ["DjangoApp", "get_app"]
