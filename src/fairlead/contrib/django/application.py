"""The application of a Django project for the command line: `fairlead worker
fairlead.contrib.django.application:app` with DJANGO_SETTINGS_MODULE, or `manage.py fairlead
worker`."""

from __future__ import annotations

import django
from django.apps import apps

from fairlead.contrib.django.project import get_app

if not apps.ready:
    django.setup()

app = get_app()
app.import_tasks()
