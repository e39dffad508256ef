"""The application: `Celery(...)` with its settings and tasks, on an `App` of Fairlead; and the
current one, to which shared tasks belong."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import pkgutil
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from fairlead.app import App
from fairlead.contrib.celery import conf, missing, runner, schedules, waiting
from fairlead.contrib.celery.exceptions import ImproperlyConfigured, NotRegistered
from fairlead.contrib.celery.messages import Extras, to_json
from fairlead.contrib.celery.result import AsyncResult, grouped
from fairlead.contrib.celery.signatures import Args, Before, Kwargs, Node, Signature, mapped
from fairlead.contrib.celery.task import OPTIONS, Task
from fairlead.declare.options import Options
from fairlead.declare.task import Draft
from fairlead.forks import free_when_forked

_shared: list[Task] = []
"""Tasks of every application."""
_current: Celery | None = None


class Celery(missing.Names):
    """An application in Celery's style. Its tasks live in the store of Fairlead: `url`, else a
    `broker` that is such a URL, else $FAIRLEAD_URL. Run its worker with `fairlead worker
    MODULE:APP`. Other options are settings."""

    def __init__(
        self, main: str | None = None, *, url: str | None = None, broker: str | None = None,
        set_as_current: bool = True, task_cls: Any = None, **settings: Any,
    ) -> None:  # fmt: skip
        self.main = main
        self.conf = conf.Conf({"broker_url": broker, "fairlead_url": url, **settings})
        is_name = isinstance(task_cls, str)
        self.Task: type[Task] = pkgutil.resolve_name(task_cls) if is_name else task_cls or Task
        """The base class of tasks that name none; set it before the first task."""
        self.tasks: dict[str, Task] = {}
        self._lock = free_when_forked(threading.RLock())
        self._fairlead: App | None = None
        self.waker = waiting.Waker(self)
        self._packages: list[tuple[Any, str]] = []
        if set_as_current:
            self.set_current()

    def set_current(self) -> None:
        """Make this the application of shared tasks."""
        global _current
        _current = self

    set_default = set_current

    def config_from_object(self, source: Any, *, namespace: str | None = None) -> None:
        """Take settings from an object, a map, or the name of a module; with `namespace`, those
        with this prefix."""
        found = pkgutil.resolve_name(source) if isinstance(source, str) else source
        self.conf.update(conf.found_in(found, namespace))

    def autodiscover_tasks(self, packages: Any = None, related_name: str = "tasks") -> None:
        """Import the module `related_name` of each package, by default of Django's installed
        applications, when the application is first used."""
        self._packages.append((packages, related_name))

    # tasks ----------------------------------------------------------------------------------------

    def task(self, *args: Any, **options: Any) -> Any:
        """Register a function as a task; a decorator with or without options. Raise
        ImproperlyConfigured for an option that is unknown or cannot be carried out."""

        def register(function: Callable[..., Any]) -> Task:
            main = self.main if function.__module__ == "__main__" else None
            return self.register_task(_made(function, options, self.Task, main))

        return register(args[0]) if args and callable(args[0]) else register

    def register_task(self, task: Task) -> Task:
        """Register an instance of a class of task; return the task that has its name."""
        found = self.tasks.setdefault(task.name, task)
        if found is task:
            task._app = None if task in _shared else self
            if self._fairlead is not None:
                self._declare(self._fairlead, task)
        return found

    def task_of(self, name: str) -> Task:
        """Return the task of this name. Raise NotRegistered."""
        if name not in self.tasks:
            self._import()
        if name not in self.tasks:
            raise NotRegistered(f"no task {name!r} is registered; import its module")
        return self.tasks[name]

    # the application of Fairlead ------------------------------------------------------------------

    @property
    def fairlead(self) -> App:
        """The App of Fairlead with all queues, tasks and periodic tasks, which a worker serves.
        Raises ImproperlyConfigured for an option or a setting that cannot be carried out."""
        with self._lock:
            self._import()
            if self._fairlead is None:
                fairlead = App(self.conf.store_url(), name=self.main or "celery")
                for queue in sorted(self.conf.queues()):
                    fairlead.queue(queue)
                for task in self.tasks.values():
                    self._declare(fairlead, task)
                for name, entry in self.conf.beat_schedule.items():
                    schedules.add_entry(self, fairlead, name, entry)
                self._fairlead = fairlead
            return self._fairlead

    def _import(self) -> None:
        """Import the modules of tasks, and take over the tasks of every application."""
        for names in (self.conf.imports, self.conf.include):
            for module in [names] if isinstance(names, str) else names:
                importlib.import_module(module)
        while self._packages:
            packages, related = self._packages.pop()
            found = packages() if callable(packages) else packages
            if found is None:
                apps: Any = importlib.import_module("django.apps").apps
                found = [config.name for config in apps.get_app_configs()]
            for package in found:
                if importlib.util.find_spec(f"{package}.{related}"):
                    importlib.import_module(f"{package}.{related}")
        for task in _shared:
            if task.name not in self.tasks:
                if self.Task is not Task and type(task).__bases__ == (Task,):
                    type(task).__bases__ = (self.Task,)
                self.register_task(task)

    def _declare(self, fairlead: App, task: Task) -> None:
        """Declare a task to Fairlead."""
        fairlead.task(
            name=task.name,
            queue=task.queue or self.conf.task_default_queue,
            retry=runner.AsTheTaskSays(),
            timeout=task.time_limit or self.conf.task_time_limit,
            concurrency=conf.rate_of(task.rate_limit),
            keep_result=True,
        )(runner.handler_function(self, task))

    @property
    def is_waking(self) -> bool:
        """Whether this process is about to wake tasks that wait for others."""
        return bool(self.waker.ends)

    def close(self) -> None:
        """Close the connections of the application; it may be used again."""
        if self._fairlead is not None:
            self._fairlead.close()

    # submitting -----------------------------------------------------------------------------------

    def send_task(self, name: str, args: Args = None, kwargs: Kwargs = None, **options: Any) -> Any:
        """Submit a task by its name. Raise NotRegistered for one that is not registered here."""
        return Signature(name, args, kwargs, options, app=self).apply_async()

    def AsyncResult(self, task_id: str) -> AsyncResult:
        """Return the result of a task by its id."""
        return AsyncResult(task_id, app=self)

    def submit(self, wanted: Signature) -> Any:
        """Submit a signature with all that belongs to it in one transaction; return the result of
        its last tasks. Raise the errors of `Task.apply_async`."""
        nodes: list[Node] = []
        last = wanted.add_to(nodes, None, {})
        handles = self.fairlead.submit_many([self._draft(each) for each in nodes]) if nodes else []
        for node, handle in zip(nodes, handles, strict=True):
            node.id = handle.id
        return self._result(last)

    def run_here(self, wanted: Signature, throws: bool) -> Any:
        """Run a signature here and now, as `runner.run_here`."""
        return runner.run_here(self, wanted, throws)

    def _result(self, last: Before) -> Any:
        def result(node: Node) -> AsyncResult:
            return AsyncResult(node.id, app=self, parent=self._result(node.before))

        return grouped(mapped(last, result))

    def _draft(self, node: Node) -> Draft:
        """Return the draft of one task. Raise the errors of `Task.apply_async`."""
        wanted, options, fairlead = node.signature, dict(node.options), self.fairlead
        task, what = self.task_of(wanted.task), f"task {wanted.task!r}"
        if node.before is None:
            task.check_arguments(wanted.args, wanted.kwargs)
        handler = fairlead.handlers[wanted.task]
        queue = options.pop("queue", handler.queue)
        if queue not in fairlead.queues:
            raise ImproperlyConfigured(
                f"{what}: no worker serves the queue {queue!r}; name it in task_queues. Queues:"
                f" {', '.join(sorted(fairlead.queues))}"
            )
        if queue != handler.queue:
            handler = copy.copy(handler)
            handler.queue = queue
        eta, countdown = options.pop("eta", None), options.pop("countdown", None)
        if isinstance(eta, str):
            eta = datetime.fromisoformat(eta)
        if eta is None and countdown is not None:
            eta = datetime.now(UTC) + timedelta(seconds=float(countdown))
        if eta is not None and eta.tzinfo is None:
            eta = eta.replace(tzinfo=UTC)
        extras = Extras(
            after=mapped(node.before, lambda each: each.id),
            passes=not wanted.immutable,
            wakes=node.wakes,
            ignore_result=options.pop("ignore_result", None),
            eta=eta,
        )
        options["priority"] = self.conf.priority_of(options.get("priority", task.priority))
        own = {name: value for name, value in options.items() if name in Options.__struct_fields__}
        args, kwargs = to_json(what, list(wanted.args)), to_json(what, wanted.kwargs)
        arguments = {"args": args, "kwargs": kwargs, "celery": extras}
        return Draft(handler, (), arguments, Options().changed({"run_at": eta, **own}), node.id)


def current() -> Celery:
    """Return the current application, made with the defaults if there is none."""
    return _current or Celery("default")


missing.OfApplication.current = current


class _Current:
    """The current application, looked up at each use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(current(), name)


current_app: Any = _Current()


def shared_task(*args: Any, **options: Any) -> Any:
    """Register a function as a task of every application. Raise ImproperlyConfigured as
    `Celery.task`."""

    def register(function: Callable[..., Any]) -> Task:
        _shared.append(_made(function, options, Task, None))
        return _shared[-1]

    return register(args[0]) if args and callable(args[0]) else register


def _made(
    function: Callable[..., Any], options: dict[str, Any], base: type[Task], main: str | None
) -> Task:
    """Return the task of a function. Raise ImproperlyConfigured for an option that is unknown, and
    for a coroutine function."""
    name = options.get("name") or f"{main or function.__module__}.{function.__name__}"
    given = {key: value for key, value in options.items() if key not in ("base", "bind", "name")}
    missing.check_options(f"task {name!r}", given, OPTIONS)
    if function.__code__.co_flags & 0x80:
        raise ImproperlyConfigured(
            f"task {name!r} is an `async def`, which Celery never ran either: declare it with"
            " `@app.fairlead.task`"
        )
    given |= {each: getattr(function, each) for each in ("__module__", "__doc__", "__name__")}
    given |= {"run": function if options.get("bind") else staticmethod(function), "name": name}
    made: type[Task] = type(function.__name__, (options.get("base") or base,), given)
    return made()
