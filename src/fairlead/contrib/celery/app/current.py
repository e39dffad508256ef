"""The current application, and tasks that belong to every application."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairlead.contrib.celery.app.making import make_task
from fairlead.contrib.celery.request import running
from fairlead.contrib.celery.task import Task

if TYPE_CHECKING:
    from fairlead.contrib.celery.app.base import Celery

shared: list[Callable[[Celery], Task]] = []
"""Functions that register a task of every application with one of them."""
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


class _Shared:
    """A shared task: at each use, that of the current application."""

    def __init__(self, function: Callable[..., Any], name: str | None) -> None:
        for each in functools.WRAPPER_ASSIGNMENTS[:4]:
            vars(self)[each] = getattr(function, each)
        vars(self).update(__wrapped__=function, _own_name=name)

    def _get_current_object(self) -> Task:
        app, own = current(), vars(self)
        name = own["_own_name"] or app.gen_task_name(own["__name__"], own["__module__"])
        return app.tasks[name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._get_current_object()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._get_current_object(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._get_current_object(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._get_current_object(), name)

    def __repr__(self) -> str:
        return repr(self._get_current_object())

    def __eq__(self, other: object) -> bool:
        return self._get_current_object() == other

    def __hash__(self) -> int:
        return hash(self._get_current_object())

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._get_current_object())


def shared_task(*args: Any, **options: Any) -> Any:
    """Register a function as a task of every application."""

    def register(function: Callable[..., Any]) -> Any:
        make_task(function, options, Task, function.__name__)  # raises what each application would

        def make(app: Celery) -> Task:
            task: Task = app.task(**options)(function)
            return task

        shared.append(make)
        for app in apps:
            make(app)
        return _Shared(function, options.get("name"))

    return register(args[0]) if args and callable(args[0]) else register
