"""The application: `Celery(...)` with its settings and tasks, on an `App` of Fairlead."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from fairlead.app import App
from fairlead.contrib.celery import beat, canvas, held, mapping, missing, runner, signals
from fairlead.contrib.celery.app import current, eager, routes, submitting
from fairlead.contrib.celery.app.control import Control
from fairlead.contrib.celery.app.loading import installed, loaded, many
from fairlead.contrib.celery.app.making import Tasks, handler_function, make_task
from fairlead.contrib.celery.conf import Conf, found_in, rate_of
from fairlead.contrib.celery.exceptions import ImproperlyConfigured
from fairlead.contrib.celery.messages import Failed
from fairlead.contrib.celery.request import running
from fairlead.contrib.celery.result import AsyncResult, GroupResult, Result, ResultSet
from fairlead.contrib.celery.task import Task as BaseTask
from fairlead.contrib.celery.utils.ids import is_row_id
from fairlead.core.limits.limits import RateLimit
from fairlead.declare.handle import TaskHandle
from fairlead.declare.options import Options
from fairlead.errors import UnknownTask
from fairlead.model import FINAL_STATES

log = logging.getLogger("fairlead.celery")

_STORES = ("sqlite:", "postgres:", "postgresql:", "memory:")
LOWEST_CELERY, HIGHEST = 0, 9


class Celery(missing.Names, names=missing.APPLICATION):
    """An application in Celery's style. Its tasks live in the store of Fairlead: `url`, else a
    `broker` that is such a URL, else $FAIRLEAD_URL. Run its worker with `fairlead worker
    MODULE:APP`."""

    # More than seven parameters: those of Celery's class.
    def __init__(
        self,
        main: str | None = None,
        *,
        url: str | None = None,
        broker: str | None = None,
        backend: str | None = None,
        include: Iterable[str] | None = None,
        changes: Mapping[str, Any] | None = None,
        config_source: Any = None,
        namespace: str | None = None,
        set_as_current: bool = True,
        task_cls: Any = None,
        **options: Any,
    ) -> None:
        self.main = main
        self.conf = Conf(changes)
        self.tasks = Tasks(self)
        self.on_configure = signals.Signal("on_configure")
        self.on_after_configure = signals.Signal("on_after_configure")
        self.on_after_finalize = signals.Signal("on_after_finalize")
        self._base: type[BaseTask] = loaded(task_cls) or BaseTask
        for name in ("broker_url", "result_backend", "fairlead_url"):
            given = {"broker_url": broker, "result_backend": backend, "fairlead_url": url}[name]
            if given is not None:
                self.conf[name] = given
        if include is not None:
            self.conf["include"] = list(include)
        if config_source is not None:
            self.config_from_object(config_source, namespace=namespace)
        self._lock = threading.RLock()
        self._fairlead: App | None = None
        self._is_final = False
        self._has_entries = False
        self._has_run = False
        self._waker: held.Waker | None = None
        self._packages: list[tuple[Any, str | None]] = []
        self._entries: dict[str, Mapping[str, Any]] = {}
        for name, value in options.items():
            if name in ("loader", "amqp", "events", "log", "control", "tasks", "autofinalize"):
                continue
            self.conf[name] = value
        current.apps.append(self)
        if set_as_current:
            self.set_current()
        for kind in (mapping.Map, mapping.StarMap):
            self.register_task(kind)
        for make in current.shared:
            make(self)

    def __repr__(self) -> str:
        return f"<Celery {self.main or '__main__'}>"

    # settings -------------------------------------------------------------------------------------

    def set_current(self) -> None:
        """Make this the application of shared tasks."""
        current.set_current(self)

    set_default = set_current

    def config_from_object(
        self, source: Any, silent: bool = False, force: bool = False, namespace: str | None = None
    ) -> None:
        """Take settings from an object, a map, or the name of a module; with `namespace`, those
        with this prefix."""
        found = loaded(source) if isinstance(source, str) else source
        self.conf.update(found_in(found, namespace))

    def add_defaults(self, found: Any) -> None:
        """Take settings that are not set."""
        given = found() if callable(found) else found
        for name, value in given.items():
            if not self.conf.is_set(name):
                self.conf[name] = value

    def autodiscover_tasks(
        self, packages: Any = None, related_name: str | None = "tasks", force: bool = False
    ) -> None:
        """Import the module `related_name` of each package, by default of Django's installed
        applications, when the application is first used."""
        self._packages.append((packages, related_name))
        if force or self._is_final:
            self._import()

    # tasks ----------------------------------------------------------------------------------------

    @property
    def Task(self) -> type[BaseTask]:
        """The base class of tasks that name none, also of those that are registered."""
        return self._base

    @Task.setter
    def Task(self, base: type[BaseTask]) -> None:
        for each in self.tasks.values():
            if type(each).__bases__ == (self._base,) and hasattr(each, "__wrapped__"):
                type(each).__bases__ = (base,)
        self._base = base

    def task(self, *args: Any, **options: Any) -> Any:
        """Register a function as a task; a decorator with or without options. Raise
        ImproperlyConfigured for an option that is unknown or cannot be carried out."""

        def register(function: Callable[..., Any]) -> BaseTask:
            name = self.gen_task_name(function.__name__, function.__module__)
            task = make_task(function, options, self._base, name)
            task._app = self
            return self._register(task)

        return register(args[0]) if args and callable(args[0]) else register

    def register_task(self, task: Any, **options: Any) -> BaseTask:
        """Register an instance of a class of task, or a class."""
        made: BaseTask = task() if isinstance(task, type) else task
        kind = type(made)
        made.name = made.name or self.gen_task_name(kind.__name__, kind.__module__)
        made._app = self
        return self._register(made)

    def gen_task_name(self, name: str, module: str) -> str:
        """Return the name of a task by the name and the module of its function."""
        return f"{(self.main if module == '__main__' else None) or module}.{name}"

    def _register(self, task: BaseTask) -> BaseTask:
        found = self.tasks.setdefault(task.name, task)
        if found is task:
            task.on_bound(self)
        if found is task and self._is_final:
            self._declare(task)
        return found

    # periodic tasks -------------------------------------------------------------------------------

    def add_periodic_task(
        self,
        schedule: Any,
        sig: Any,
        args: Any = (),
        kwargs: Any = None,
        name: str | None = None,
        **options: Any,
    ) -> str:
        """Submit a task by a schedule; return the name of the entry. Raise ImproperlyConfigured for
        a schedule that cannot be carried out."""
        wanted = canvas.signature(sig, app=self)
        key = name or repr(wanted)
        entry = {
            "task": wanted.task,
            "schedule": schedule,
            "args": (*wanted.args, *args),
            "kwargs": {**wanted.kwargs, **(kwargs or {})},
            "options": {**wanted.options, **options},
        }
        self._entries[key] = entry
        if self._has_entries:
            beat.add_entry(self, key, entry)
        return key

    # the application of Fairlead ------------------------------------------------------------------

    @property
    def declaring(self) -> App:
        """The App of Fairlead, perhaps without some tasks."""
        with self._lock:
            if self._fairlead is None:
                url = self.conf.fairlead_url
                broker = self.conf.broker_url
                if url is None and isinstance(broker, str) and broker.startswith(_STORES):
                    url = broker
                self._fairlead = App(url, name=self.main or "celery")
            return self._fairlead

    @property
    def fairlead(self) -> App:
        """The App of Fairlead with all queues, tasks and periodic tasks, which a worker serves.
        Raises ImproperlyConfigured."""
        self.finalize()
        return self.declaring

    def finalize(self, auto: bool = False) -> None:
        """Import the modules of tasks, and declare all queues, tasks and periodic tasks. Raise
        ImproperlyConfigured for an option or a setting that cannot be carried out."""
        with self._lock:
            if self._is_final:
                return
            self._is_final = True
            try:
                self._finalize()
            except BaseException:
                self._is_final = self._has_entries = False
                self._fairlead = None
                raise

    def _finalize(self) -> None:
        self.on_configure.send(sender=self)
        self.on_after_configure.send(sender=self, source=self.conf)
        self._import()
        for name in self.queue_names():
            if name not in self.declaring.queues:
                self.declaring.queue(name)
        for task in list(self.tasks.values()):
            self._declare(task)
        self.on_after_finalize.send(sender=self)
        entries = {**self.conf.beat_schedule, **self._entries}
        for name, entry in entries.items():
            beat.add_entry(self, name, entry)
        self._has_entries = True
        for name in self.conf.unknown:
            log.warning("a setting is unknown and has no effect", extra={"setting": name})

    def _import(self) -> None:
        for module in (*many(self.conf.imports), *many(self.conf.include)):
            importlib.import_module(module)
        for packages, related in self._packages:
            found = packages() if callable(packages) else packages
            for package in installed() if found is None else found:
                name = f"{package}.{related}" if related else package
                if importlib.util.find_spec(package) and importlib.util.find_spec(name):
                    importlib.import_module(name)
        self._packages.clear()

    def queue_names(self) -> list[str]:
        """Return the queues that the settings name."""
        names = [str(self.conf.task_default_queue), *routes.queues_in(self.conf.task_routes)]
        names += [queue for each in self.conf.task_queues or () if (queue := routes.name_of(each))]
        for entry in (*self.conf.beat_schedule.values(), *self._entries.values()):
            if queue := routes.name_of((entry.get("options") or {}).get("queue")):
                names.append(queue)
        return list(dict.fromkeys(names))

    def queue_of(self, task: BaseTask) -> str:
        """Return the queue of a task: its own, that of the first route by its name, or the
        default."""
        route = routes.route_of(routes.by_name(self.conf.task_routes), task.name)
        named = routes.name_of(task.queue) or routes.name_of(route.get("queue"))
        return named or str(self.conf.task_default_queue)

    def _declare(self, task: BaseTask) -> None:
        """Declare a task to Fairlead."""
        self._annotate(task)
        fairlead = self.declaring
        if task.name in fairlead.handlers:
            return
        rate = rate_of(task.rate_limit or self.conf.task_default_rate_limit)
        hard, _ = self.time_limits_of(task)
        fairlead.task(
            name=task.name,
            queue=self.queue_of(task),
            retry=runner.AsTheTaskSays(),
            timeout=hard,
            concurrency=None if rate is None else RateLimit(rate[0], per=rate[1]),
            keep_result=True,
        )(handler_function(self, task))

    def _annotate(self, task: BaseTask) -> None:
        found = self.conf.task_annotations or {}
        for each in found if isinstance(found, list | tuple) else [found]:
            for name, value in {**each.get("*", {}), **each.get(task.name, {})}.items():
                is_hook = callable(value) and not isinstance(value, type)
                setattr(task, name, types.MethodType(value, task) if is_hook else value)

    def time_limits_of(self, task: BaseTask) -> tuple[float | None, float | None]:
        """Return the hard and the soft time limit of a task, in seconds."""
        return (
            task.time_limit or self.conf.task_time_limit,
            task.soft_time_limit or self.conf.task_soft_time_limit,
        )

    def ignores_result(self, task: BaseTask) -> bool:
        """Return whether the result of a task is dropped."""
        own = task.ignore_result
        return bool(self.conf.task_ignore_result if own is None else own)

    # priorities -----------------------------------------------------------------------------------

    @property
    def _is_zero_first(self) -> bool:
        first = self.conf.fairlead_first_priority
        if first is not None:
            return int(first) == LOWEST_CELERY
        broker = os.environ.get("CELERY_BROKER_URL") or self.conf.broker_url
        return str(broker or "").startswith(("redis", "sentinel"))

    def priority_of(self, given: int | None) -> int:
        """Return Fairlead's priority (0 first) for Celery's: 9 is first with RabbitMQ, 0 with a
        broker_url of Redis. Without one, the default of Fairlead. Raise ImproperlyConfigured
        outside 0 to 9."""
        priority = self.conf.task_default_priority if given is None else given
        if priority is None:
            return Options().priority
        if type(priority) is not int or not LOWEST_CELERY <= priority <= HIGHEST:
            raise ImproperlyConfigured(f"priority={priority!r}: use a whole number from 0 to 9")
        return priority if self._is_zero_first else HIGHEST - priority

    def celery_priority(self, priority: int) -> int:
        """Return Celery's priority for Fairlead's."""
        return priority if self._is_zero_first else HIGHEST - priority

    # submitting -----------------------------------------------------------------------------------

    def submit(
        self,
        wanted: canvas.Signature,
        *,
        errback_of: Failed | None = None,
        unique_key: str | None = None,
    ) -> Result:
        """Submit a signature with all that belongs to it in one transaction; return the result of
        its last tasks. With `errback_of`, a task whose run fails now, the first tasks wait for its
        end. Raise the errors of `Task.apply_async`."""
        return submitting.submit(self, wanted, errback_of, unique_key)

    def send_task(
        self,
        name: str,
        args: Any = None,
        kwargs: Any = None,
        **options: Any,
    ) -> Any:
        """Submit a task by its name. Raise NotRegistered for one that is not registered here,
        unless `queue` names that of the application which has it."""
        return canvas.Signature(name, args, kwargs, options, app=self).apply_async()

    def signature(self, *args: Any, **kwargs: Any) -> canvas.Signature:
        """Return a signature of this application."""
        return canvas.signature(*args, app=self, **kwargs)

    def ResultSet(self, results: Iterable[Any] = ()) -> ResultSet:
        """Return a set of results."""
        return ResultSet(results)

    @property
    def timezone(self) -> ZoneInfo:
        """The time zone of the settings; UTC without one."""
        return ZoneInfo(str(self.conf.timezone or "UTC"))

    def now(self) -> datetime:
        """Return the time in the time zone of the application."""
        return datetime.now(self.timezone)

    # results --------------------------------------------------------------------------------------

    def AsyncResult(self, task_id: str, **options: Any) -> AsyncResult:
        """Return the result of a task by its id."""
        return AsyncResult(task_id, app=self)

    def GroupResult(self, id: str | None = None, results: Any = ()) -> GroupResult:
        """Return the results of a group."""
        return GroupResult(id, results)

    def handle_of(self, task_id: str) -> TaskHandle:
        """Return the handle of a task. An id that no row can have is looked up: while the task is
        unfinished, and among those that ended last. Raise UnknownTask."""
        fairlead = self.fairlead
        if is_row_id(task_id):
            return fairlead.handle(task_id)
        key = f"{submitting.CUSTOM_ID}{task_id}"
        for record in fairlead.management.page(unique_key=key, limit=1).tasks:
            return fairlead.handle(record.id)
        for state in sorted(FINAL_STATES):
            for record in fairlead.management.page(unique_key=key, limit=1, state=state).tasks:
                return fairlead.handle(record.id)
        raise UnknownTask(f"no task with the id {task_id!r} is unfinished or ended lately")

    # running --------------------------------------------------------------------------------------

    @property
    def control(self) -> Control:
        """Remote control, which can revoke tasks."""
        return Control(self)

    @property
    def current_task(self) -> BaseTask | None:
        """The task that runs here; None outside a run."""
        found = running()
        return None if found is None else found.task

    @property
    def waker(self) -> held.Waker:
        """The thread that wakes waiting tasks."""
        with self._lock:
            if self._waker is None:
                self._waker = held.Waker(self.fairlead)
            return self._waker

    @property
    def is_waking(self) -> bool:
        """Whether this process is about to wake tasks that wait for others."""
        return self._waker is not None and self._waker.is_busy

    def on_first_run(self) -> None:
        """Send the signals of a starting worker, before the first task of this process."""
        with self._lock:
            if self._has_run:
                return
            self._has_run = True
        for signal in (
            signals.celeryd_init,
            signals.worker_init,
            signals.worker_process_init,
            signals.worker_ready,
        ):
            signal.send(sender=self)

    def run_here(self, wanted: canvas.Signature, throws: bool) -> Result:
        """Run all tasks of a signature here, one after the other; return the result of the last.
        With `throws`, raise the exception of a task that fails."""
        return eager.run_here(self, wanted, throws)

    def close(self) -> None:
        """Close the connections of the application; it may be used again."""
        if self._fairlead is not None:
            self._fairlead.close()

    def __enter__(self) -> Celery:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
