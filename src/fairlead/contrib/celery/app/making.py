"""Tasks made of functions, and their handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fairlead.contrib.celery import runner
from fairlead.contrib.celery.conf import Conf
from fairlead.contrib.celery.exceptions import ImproperlyConfigured, NotRegistered
from fairlead.contrib.celery.messages import Extras
from fairlead.contrib.celery.task import Task
from fairlead.core.policies.processing import Processing
from fairlead.declare.handler import Handler

if TYPE_CHECKING:
    from fairlead.contrib.celery.app.base import Celery


class Tasks(dict[str, Task]):
    """Tasks of an application, by name. Raises NotRegistered for an unknown one."""

    def __init__(self, app: Celery) -> None:
        super().__init__()
        self._app = app

    def __missing__(self, name: str) -> Task:
        raise NotRegistered(name)

    def register(self, task: Any) -> None:
        """Register an instance of a class of task, or a class."""
        self._app.register_task(task)

    def unregister(self, name: Any) -> None:
        """Remove a task, by itself or by its name."""
        del self[getattr(name, "name", name)]


def make_task(
    function: Callable[..., Any], options: Mapping[str, Any], base: type[Task], name: str
) -> Task:
    """Return the task of a function. Raise ImproperlyConfigured for an option that is unknown, and
    for a coroutine function."""
    given = dict(options)
    kind: type[Task] = given.pop("base", None) or base
    is_bound = given.pop("bind", False)
    own_name = given.pop("name", None) or name
    for without_effect in ("lazy", "shared", "_force_evaluate"):
        given.pop(without_effect, None)
    if serializer := given.get("serializer"):
        Conf({"task_serializer": serializer})
    if getattr(function, "__code__", None) is not None and function.__code__.co_flags & 0x80:
        raise ImproperlyConfigured(
            f"task {own_name!r} is an `async def`, which Celery never ran either: declare it with"
            " `@app.fairlead.task`"
        )
    for each in _REFUSED.keys() & given.keys():
        if given.pop(each):
            raise ImproperlyConfigured(f"task {own_name!r}: {each}=: {_REFUSED[each]}")
    attributes = {
        **given,
        "name": own_name,
        "run": function if is_bound else staticmethod(function),
        "__module__": function.__module__,
        "__doc__": function.__doc__,
        "__wrapped__": function,
        "__name__": getattr(function, "__name__", own_name),
    }
    made: type[Task] = type(getattr(function, "__name__", "task"), (kind,), attributes)
    return made()


_REFUSED = {
    "exchange": "there are no exchanges: use queue=",
    "routing_key": "there are no routing keys: use queue=",
    "filter": "tasks are not wrapped: give the task a base class",
    "pydantic": "arguments stay plain values: make the models in the task, or declare it with"
    " `@app.fairlead.task` and annotations",
}


def handler_function(app: Celery, task: Task) -> Callable[..., Any]:
    """Return the function by which Fairlead runs a task."""

    def run(args: list[Any], kwargs: dict[str, Any], celery: Extras = Extras()) -> Any:  # noqa: B008
        return runner.run(app, task, args, kwargs, celery)

    return run


def foreign_handler(name: str, queue: str) -> Handler:
    """Return a handler that submits tasks which another application runs."""

    def run(args: list[Any], kwargs: dict[str, Any], celery: Extras = Extras()) -> Any:  # noqa: B008
        raise NotRegistered(name)

    return Handler(
        run,
        name=name,
        queue=queue,
        retry=runner.AsTheTaskSays(),
        processing=Processing(),
        keep_result=True,
    )
