"""The backend of Django's tasks that stores them with Fairlead."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections
from django.utils import timezone

from fairlead.contrib.django.compat import (
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)
from fairlead.contrib.django.project import DjangoApp, get_app
from fairlead.contrib.django.results import imported, is_id, read, result_of
from fairlead.contrib.django.runs import handler_function
from fairlead.contrib.django.schema import is_missing_table
from fairlead.contrib.django.task import FairleadTask
from fairlead.core import values
from fairlead.core.policies.processing import Processing
from fairlead.core.policies.retry import DEFAULT_RETRY
from fairlead.declare.handler import Handler
from fairlead.declare.task import Draft
from fairlead.errors import ConfigurationError
from fairlead.errors import InvalidTask as Refused

OPTIONS = ("retry", "timeout")


class FairleadBackend(BaseTaskBackend):
    """A backend of Django's tasks. `enqueue` writes in the caller's transaction.

    OPTIONS: `retry` and `timeout` of tasks that declare none.
    """

    task_class = FairleadTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        """Raise ImproperlyConfigured for wrong queues or options."""
        super().__init__(alias, params)
        try:
            self._check_options()
            for queue in self.queues:
                values.name("queue name", queue)
        except ConfigurationError as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: {error}") from error
        with suppress(ConfigurationError):  # a wrong setting FAIRLEAD, which the checks report
            for queue in sorted(self.queues):
                if queue not in self.app.queues:
                    self.app.queue(queue)

    def _check_options(self) -> None:
        if not isinstance(self.options, Mapping):
            raise ConfigurationError(f"OPTIONS {values.brief(self.options)}: use a map")
        retry, timeout = (self.options.get(name) for name in OPTIONS)
        Handler(
            function=lambda: None,
            name="OPTIONS",
            queue="default",
            retry=retry or DEFAULT_RETRY,
            processing=Processing(timeout=timeout),
        )

    @property
    def app(self) -> DjangoApp:
        """The application of the project."""
        return get_app()

    # tasks ----------------------------------------------------------------------------------------

    def validate_task(self, task: Any) -> None:
        """Register the function of a task with Fairlead. Raise InvalidTask for what Django or
        Fairlead cannot run."""
        self._check(task)
        try:
            task.options()
            self.handler_of(task)
        except (Refused, ConfigurationError) as error:
            raise InvalidTask(str(error)) from error

    def _check(self, task: Any) -> None:
        super().validate_task(task)
        if not isinstance(task, FairleadTask):
            raise InvalidTask(f"{task.module_path}: its class is not that of this backend")

    def handler_of(self, task: Any) -> Handler:
        """Return the handler of a Django task, registered at the first call. Raise
        ConfigurationError for options that Fairlead refuses."""
        known: Handler | None = self.app.handlers.get(task.module_path)
        declared_task = getattr(known and known.function, "django_task", None)
        if known is not None and declared_task is not None and declared_task.func is task.func:
            return known
        _check_function(task)
        if known is not None:  # the module was imported again, as by an interpreter
            del self.app.handlers[task.module_path]
        function: Any = handler_function(self, task)
        function.django_task = task
        retry, timeout = (self.options.get(name) for name in OPTIONS)
        declared = self.app.task(
            function,
            name=task.module_path,
            queue=task.queue_name,
            retry=task.retry or retry or DEFAULT_RETRY,
            timeout=timeout if task.timeout is None else task.timeout,
            transactional=task.transactional,
            keep_result=True,
        )
        handler: Handler = declared.handler
        # The kept result has the arguments too, and the priority.
        limit = handler.kept.result_limit + self.app.payload_limit + 100
        handler.kept = replace(handler.kept, result_limit=limit)
        return handler

    def draft_of(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Draft:
        """Return the submit of a task, in the transaction of Django's connection. Raise Refused for
        arguments that are nested too deeply."""
        handler = self.handler_of(task)
        if handler.queue != task.queue_name:
            if task.queue_name not in self.app.queues:
                self.app.queue(task.queue_name)
            handler = copy.copy(handler)
            handler.queue = task.queue_name
            self.app.queues[task.queue_name].fit(handler)
        run_at = task.run_after
        if run_at is not None and timezone.is_naive(run_at):
            run_at = timezone.make_aware(run_at)
        try:
            data: dict[str, Any] = {
                "args": normalize_json(args),
                "kwargs": normalize_json(kwargs),
            }
        except RecursionError as error:
            raise Refused(f"task {handler.name!r}: its arguments are nested too deeply") from error
        if task.priority:  # 0 is the default of the handler
            data["priority"] = task.priority
        options = task.options(
            priority=fairlead_priority(task.priority),
            run_at=run_at,
            connection=connections[self.app.alias],
        )
        return Draft(handler, (), data, options)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Submit a task in the transaction of Django's connection, and return its result. For a
        unique key that is taken, return the result of the earlier task. Raise InvalidTask."""
        self._check(task)
        try:
            handle = self.app.submit_many([self.draft_of(task, args, kwargs)])[0]
        except (Refused, ConfigurationError) as error:
            raise InvalidTask(str(error)) from error
        except DatabaseError as error:
            if is_missing_table(error):
                error.add_note(
                    f"The tables of Fairlead are missing: run {self.app.migrate_command}"
                )
            raise
        if not handle.is_new:
            return self.get_result(handle.id)
        result = TaskResult(
            task=task,
            id=handle.id,
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    # results --------------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> Any:
        """Return a result by its id, as the transaction of Django's connection sees it. Raise
        TaskResultDoesNotExist."""
        result = self.find_result(result_id)
        if result is None:
            raise TaskResultDoesNotExist(result_id)
        return result

    def find_result(self, result_id: str) -> Any:
        """Return a result by its id; None if there is none."""
        if not is_id(result_id):
            return None
        store = self.app.connections.sql_store
        found = store.database.join(connections[self.app.alias], read(store, result_id))
        return None if found is None else result_of(found, self.alias, self._task_at)

    def _task_at(self, path: str) -> Any:
        handler = self.app.handlers.get(path)
        task = getattr(getattr(handler, "function", None), "django_task", None)
        return imported(path) if task is None else task

    def check(self, **kwargs: Any) -> list[Any]:
        """Return what is missing in the settings of this project."""
        from fairlead.contrib.django.checks import check_backend

        found: list[checks.CheckMessage] = check_backend(self)
        return found


def fairlead_priority(priority: int) -> int:
    """Return Fairlead's priority, 0 first, for Django's, 100 first: 100 to 81 give 0, ..., 20 to 1
    give 4, 0 to -19 give 5, ..., -80 to -100 give 9."""
    return min(max(5 + (-priority) // 20, 0), 9)


def _check_function(task: Any) -> None:
    """Raise ConfigurationError for a function that no worker can import or run."""
    function, path = task.func, task.module_path
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"task {path!r}: a function with `yield` never runs as a task; collect what it yields,"
            " and return that"
        )
    if not all(part.isidentifier() for part in path.split(".")):
        raise ConfigurationError(f"task {path!r}: no worker can import it: name the function")


__all__ = ["FairleadBackend", "FairleadTask"]
