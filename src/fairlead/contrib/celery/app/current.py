"""The current application, and tasks that belong to every application."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairlead.contrib.celery.app.making import make_task
from fairlead.contrib.celery.request import running
from fairlead.contrib.celery.task import Task

if TYPE_CHECKING:
    from fairlead.contrib.celery.app.base import Celery

shared: list[Task] = []
"""Tasks of every application."""
apps: list[Celery] = []
"""All applications of the process."""
_local = threading.local()
_default: Celery | None = None


def set_current(app: Celery) -> None:
    """Make this the application of shared tasks."""
    global _default
    _local.app = app
    _default = app


def current() -> Celery:
    """Return the current application, made with the defaults if there is none."""
    from fairlead.contrib.celery.app.base import Celery

    found: Celery | None = getattr(_local, "app", None) or _default
    return found or Celery("default")


def app_or_default(app: Celery | None = None) -> Celery:
    """Return the application, or the current one."""
    return current() if app is None else app


class _Current:
    """The current application, looked up at each use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(current(), name)

    def __repr__(self) -> str:
        return repr(current())


class _CurrentTask:
    """The task that runs here, looked up at each use; false outside a run."""

    def __getattr__(self, name: str) -> Any:
        found = running()
        if found is None:
            raise AttributeError(f"no task runs here, so there is no {name!r}")
        return getattr(found.task, name)

    def __bool__(self) -> bool:
        return running() is not None


current_app: Any = _Current()
current_task: Any = _CurrentTask()


def shared_task(*args: Any, **options: Any) -> Any:
    """Register a function as a task of every application."""

    def register(function: Callable[..., Any]) -> Task:
        task = make_task(function, options, Task, f"{function.__module__}.{function.__name__}")
        known = next((each for each in shared if each.name == task.name), None)
        if known is not None:
            shared.remove(known)
        shared.append(task)
        for app in apps:
            app._register(task)
        return task

    return register(args[0]) if args and callable(args[0]) else register
