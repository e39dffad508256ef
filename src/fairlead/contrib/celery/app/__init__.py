"""The application, the current one, and tasks of every application."""

from fairlead.contrib.celery.app.base import Celery
from fairlead.contrib.celery.app.current import (
    app_or_default,
    current_app,
    current_task,
    shared_task,
)

__all__ = ["Celery", "app_or_default", "current_app", "current_task", "shared_task"]
