"""The application: `Celery(...)` with its settings and tasks, on an `App` of Fairlead."""

from __future__ import annotations

import copy
import fnmatch
import importlib
import importlib.util
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fairlead.app import App
from fairlead.contrib.celery import beat, canvas, held, runner, signals, states
from fairlead.contrib.celery.conf import Conf, found_in, rate_of
from fairlead.contrib.celery.exceptions import ImproperlyConfigured, NotRegistered
from fairlead.contrib.celery.messages import Extras, to_json
from fairlead.contrib.celery.plan import Before, Node, Plan, nodes_of
from fairlead.contrib.celery.request import Context, running
from fairlead.contrib.celery.result import AsyncResult, EagerResult, GroupResult, Result
from fairlead.contrib.celery.task import Task
from fairlead.contrib.celery.utils.ids import is_row_id, uuid
from fairlead.core.limits.limits import RateLimit
from fairlead.core.policies.processing import Processing
from fairlead.declare.handle import TaskHandle
from fairlead.declare.handler import Handler
from fairlead.declare.options import Options
from fairlead.declare.task import Draft
from fairlead.errors import InvalidTask, UnknownTask
from fairlead.model import FINAL_STATES

log = logging.getLogger("fairlead.celery")

_STORES = ("sqlite:", "postgres:", "postgresql:", "memory:")
_OWN = ("fairness_key", "weight", "ordering_key", "context", "connection")
_WITHOUT_EFFECT = frozenset(
    {
        "retry",
        "retry_policy",
        "serializer",
        "compression",
        "add_to_parent",
        "reply_to",
        "publisher",
        "producer",
        "shadow",
        "ignore_result",
        "delivery_mode",
        "group_id",
        "group_index",
        "chord",
        "replaced_task_nesting",
        "root_id",
        "parent_id",
        "argsrepr",
        "kwargsrepr",
    }
)
_CUSTOM_ID = "celery-id/"
LOWEST_CELERY, HIGHEST = 0, 9

_shared: list[Task] = []
_apps: list[Celery] = []
_local = threading.local()


class Celery:
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
        self.tasks: dict[str, Task] = {}
        self.on_configure = signals.Signal("on_configure")
        self.on_after_configure = signals.Signal("on_after_configure")
        self.on_after_finalize = signals.Signal("on_after_finalize")
        self.Task: type[Task] = _loaded(task_cls) or Task
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
        _apps.append(self)
        if set_as_current:
            self.set_current()
        for task in _shared:
            self._register(task)

    def __repr__(self) -> str:
        return f"<Celery {self.main or '__main__'}>"

    # settings -------------------------------------------------------------------------------------

    def set_current(self) -> None:
        """Make this the application of shared tasks."""
        global _default
        _local.app = self
        _default = self

    set_default = set_current

    def config_from_object(
        self, source: Any, silent: bool = False, force: bool = False, namespace: str | None = None
    ) -> None:
        """Take settings from an object, a map, or the name of a module; with `namespace`, those
        with this prefix."""
        found = _loaded(source) if isinstance(source, str) else source
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

    def task(self, *args: Any, **options: Any) -> Any:
        """Register a function as a task; a decorator with or without options. Raise
        ImproperlyConfigured for an option that is unknown or cannot be carried out."""

        def register(function: Callable[..., Any]) -> Task:
            task = make_task(function, options, self.Task, self.name_of(function))
            task._app = self
            return self._register(task)

        return register(args[0]) if args and callable(args[0]) else register

    def register_task(self, task: Any, **options: Any) -> Task:
        """Register an instance of a class of task, or a class."""
        made: Task = task() if isinstance(task, type) else task
        kind = type(made)
        made.name = made.name or f"{kind.__module__}.{kind.__name__}"
        made._app = self
        return self._register(made)

    def name_of(self, function: Any) -> str:
        """Return the name of a task by its function: module and name."""
        module = getattr(function, "__module__", "")
        if module == "__main__":
            module = self.main or module
        return f"{module}.{function.__name__}"

    gen_task_name = name_of

    def _register(self, task: Task) -> Task:
        found = self.tasks.setdefault(task.name, task)
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
        for module in (*_many(self.conf.imports), *_many(self.conf.include)):
            importlib.import_module(module)
        for packages, related in self._packages:
            found = packages() if callable(packages) else packages
            for package in _installed() if found is None else found:
                name = f"{package}.{related}" if related else package
                if importlib.util.find_spec(package) and importlib.util.find_spec(name):
                    importlib.import_module(name)
        self._packages.clear()

    def queue_names(self) -> list[str]:
        """Return the queues that the settings name."""
        names = [self.conf.task_default_queue]
        queues = self.conf.task_queues or ()
        for queue in queues:
            names.append(queue if isinstance(queue, str) else queue.name)
        for pattern, route in _routes(self.conf.task_routes):
            if pattern is not None and (queue := _queue_of(route)):
                names.append(queue)
        for entry in (*self.conf.beat_schedule.values(), *self._entries.values()):
            if queue := (entry.get("options") or {}).get("queue"):
                names.append(queue if isinstance(queue, str) else queue.name)
        return list(dict.fromkeys(names))

    def queue_of(self, task: Task) -> str:
        """Return the queue of a task: its own, that of the first route that fits, or the
        default."""
        own = task.queue
        if own:
            return own if isinstance(own, str) else str(own)
        return self._route(task.name) or str(self.conf.task_default_queue)

    def _route(self, name: str) -> str | None:
        for pattern, route in _routes(self.conf.task_routes):
            if pattern is None:
                route = route(name, (), {}, {})
            elif not (
                pattern.fullmatch(name)
                if isinstance(pattern, re.Pattern)
                else fnmatch.fnmatchcase(name, pattern)
            ):
                continue
            if route and (queue := _queue_of(route)):
                return queue
        return None

    def _declare(self, task: Task) -> None:
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
        )(_handler_function(self, task))

    def _annotate(self, task: Task) -> None:
        found = self.conf.task_annotations or {}
        for each in found if isinstance(found, list | tuple) else [found]:
            for name, value in {**each.get("*", {}), **each.get(task.name, {})}.items():
                setattr(task, name, value)

    def time_limits_of(self, task: Task) -> tuple[float | None, float | None]:
        """Return the hard and the soft time limit of a task, in seconds."""
        return (
            task.time_limit or self.conf.task_time_limit,
            task.soft_time_limit or self.conf.task_soft_time_limit,
        )

    def ignores_result(self, task: Task) -> bool:
        """Return whether the result of a task is dropped."""
        own = task.ignore_result
        return bool(self.conf.task_ignore_result if own is None else own)

    # priorities -----------------------------------------------------------------------------------

    @property
    def _is_zero_first(self) -> bool:
        first = self.conf.fairlead_first_priority
        if first is not None:
            return int(first) == LOWEST_CELERY
        return str(self.conf.broker_url or "").startswith(("redis", "sentinel"))

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
        errback_of: str | None = None,
        unique_key: str | None = None,
    ) -> Result:
        """Submit a signature with all that belongs to it in one transaction; return the result of
        its last tasks. With `errback_of`, the id of a task whose run fails now, the first task
        waits for its end. Raise the errors of `Task.apply_async`."""
        plan = Plan()
        last = wanted.add_to(plan, None)
        group = uuid()
        parent = running()
        drafts = []
        for node in plan.nodes:
            extras: dict[str, Any] = {"errback_of": errback_of}
            if len(plan.nodes) > 1:
                extras["group"] = group
            if parent is not None:
                extras |= {"parent": parent.request.id, "root": parent.request.root_id}
            drafts.append(self._draft(node, extras, unique_key))
        for draft in drafts:
            signals.before_task_publish.send(
                sender=draft.handler.name,
                headers={"id": draft.id, "task": draft.handler.name},
                body=(draft.args, draft.kwargs, {}),
                routing_key=draft.handler.queue,
                exchange="",
            )
        handles = self.fairlead.submit_many(drafts) if drafts else []
        ids = {
            node.id: node.signature.id or handle.id
            for node, handle in zip(plan.nodes, handles, strict=True)
        }
        return self._result(last, ids, group)

    def _result(self, last: Before, ids: Mapping[str, str], group: str) -> Result:
        if isinstance(last, Node):
            parent = None
            if last.before is not None:
                parent = self._result(last.before, ids, group)
            name = last.signature.task
            return AsyncResult(ids[last.id], task_name=name, app=self, parent=parent)
        return GroupResult(group, [self._result(each, ids, group) for each in last or []])

    def _draft(self, node: Node, extras: dict[str, Any], unique_key: str | None) -> Draft:
        wanted = node.signature
        options = {name: value for name, value in wanted.options.items() if value is not None}
        name = wanted.task
        task = self.tasks.get(name)
        now = datetime.now(UTC)
        if node.before is None and extras["errback_of"] is None and task is not None:
            task.check_arguments(wanted.args, wanted.kwargs)
        custom = options.pop("task_id", None)
        unique = options.pop("unique_key", unique_key)
        if custom is not None and custom != node.id:
            extras["id"], unique = str(custom), unique or f"{_CUSTOM_ID}{custom}"
        elif custom is not None:
            self._check_free(custom)
        eta = options.pop("eta", None)
        countdown = options.pop("countdown", None)
        run_at = _instant(eta) if eta is not None else _later(now, countdown)
        extras["eta"] = run_at
        expires = options.pop("expires", None if task is None else task.expires)
        if expires is not None:
            is_instant = isinstance(expires, datetime)
            extras["expires"] = _instant(expires) if is_instant else _later(now, expires)
        errbacks = canvas.listed(options.pop("link_error", None))
        what = f"task {name!r}"
        extras["link_error"] = to_json(what, [dict(canvas.signature(each)) for each in errbacks])
        extras["headers"] = to_json(what, options.pop("headers", None) or {})
        extras["retries"] = options.pop("retries", 0)
        extras |= {"wakes": node.wakes, "is_partial": node.is_partial}
        if node.before is not None:
            extras |= {"after": node.after, "passes": not wanted.immutable}
        priority = options.pop("priority", None)
        if priority is None and task is not None:
            priority = task.priority
        own = {name: options.pop(name) for name in _OWN if name in options}
        queue = options.pop("queue", None)
        options.pop("link", None)
        self._check_rest(name, options, queue)
        checked = Options().changed(
            {
                "priority": self.priority_of(priority),
                "run_at": run_at,
                "unique_key": unique,
                **own,
            }
        )
        kwargs = {
            "args": to_json(what, list(wanted.args)),
            "kwargs": to_json(what, wanted.kwargs),
            "celery": Extras(**extras),
        }
        return Draft(self._handler(name, queue), (), kwargs, checked, node.id)

    def _check_free(self, task_id: str) -> None:
        try:
            record = self.handle_of(task_id).record()
        except UnknownTask:
            return
        raise InvalidTask(
            f"task_id {task_id!r} is that of a task which is {record.state}; make an id for each"
            " submit, or use a text of your own, such as 'order-17', to submit once"
        )

    def _check_rest(self, name: str, options: Mapping[str, Any], queue: Any) -> None:
        rest = set(options) - _WITHOUT_EFFECT
        if queue is not None:
            rest -= {"exchange", "routing_key"}
        if serializer := options.get("serializer"):
            Conf({"task_serializer": serializer})
        if rest:
            cure = (
                "there are no exchanges: use queue="
                if rest & {"exchange", "routing_key"}
                else "set it on the task"
            )
            raise ImproperlyConfigured(
                f"task {name!r}: option {', '.join(sorted(rest))} is not carried over; {cure}"
            )

    def _handler(self, name: str, queue: Any) -> Handler:
        """Return the handler of a task, for another queue a copy. Raise ImproperlyConfigured for a
        queue that no worker would serve."""
        fairlead = self.fairlead
        handler = fairlead.handlers.get(name)
        if handler is None:
            if queue is None:
                queue = self._route(name)
            if queue is None:
                raise NotRegistered(
                    f"no task {name!r} is registered; import its module, or name the queue of the"
                    " other application that has it"
                )
            handler = _foreign_handler(name, str(queue))
            if handler.queue not in fairlead.queues:
                fairlead.queue(handler.queue)
            return handler
        wanted = None if queue is None else str(getattr(queue, "name", queue))
        if wanted is None or wanted == handler.queue:
            return handler
        if wanted not in fairlead.queues:
            raise ImproperlyConfigured(
                f"task {name!r}: no worker serves the queue {wanted!r}; name it in task_queues or"
                f" task_routes. Queues: {', '.join(sorted(fairlead.queues))}"
            )
        copied = copy.copy(handler)
        copied.queue = wanted
        return copied

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
        key = f"{_CUSTOM_ID}{task_id}"
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
    def current_task(self) -> Task | None:
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
        plan = Plan()
        last = wanted.add_to(plan, None)
        ended: dict[str, EagerResult] = {}
        for node in plan.nodes:
            ended[node.id] = self._run_node(node, ended, throws)
        return _eager(last, ended)

    def _run_node(self, node: Node, ended: Mapping[str, EagerResult], throws: bool) -> EagerResult:
        wanted = node.signature
        task = self.tasks.get(wanted.task)
        if task is None:
            self._import()
            task = self.tasks.get(wanted.task)
        if task is None:
            raise NotRegistered(f"no task {wanted.task!r} is registered")
        id = wanted.id or node.id
        for each in nodes_of(node.before):
            if ended[each.id].state != states.SUCCESS:
                return EagerResult(id, ended[each.id].result, states.FAILURE, name=task.name)
        args = [*wanted.args]
        if node.before is not None and not wanted.immutable:
            args.insert(0, _values(node.before, ended))
        if node.before is None:
            task.check_arguments(tuple(args), wanted.kwargs)
        retries = int(wanted.options.get("retries") or 0)
        while True:
            request = Context(
                id=id,
                row_id=id,
                task=task.name,
                args=tuple(args),
                kwargs=wanted.kwargs,
                retries=retries,
                is_eager=True,
                called_directly=False,
                headers=wanted.options.get("headers") or {},
                delivery_info={"is_eager": True},
            )
            outcome = runner.call(task, request, (None, self.time_limits_of(task)[1]))
            if outcome.state != states.RETRY or getattr(outcome.error, "is_submitted", False):
                break
            retries += 1
        if outcome.state == states.FAILURE:
            if throws and outcome.error is not None:
                raise outcome.error
            for each in canvas.listed(wanted.options.get("link_error")):
                errback = canvas.signature(each, app=self)
                given = (request, outcome.error, outcome.traceback)
                errback.clone(given).apply()
        return EagerResult(id, outcome.value, outcome.state, outcome.traceback, task.name)

    def close(self) -> None:
        """Close the connections of the application; it may be used again."""
        if self._fairlead is not None:
            self._fairlead.close()

    def __enter__(self) -> Celery:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_default: Celery | None = None


def current() -> Celery:
    """Return the current application, made with the defaults if there is none."""
    found: Celery | None = getattr(_local, "app", None) or _default
    return found or Celery("default")


class Control:
    """The part of Celery's remote control that is carried over: revoking tasks."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def revoke(self, task_id: str | Iterable[str], terminate: bool = False, **options: Any) -> None:
        """Cancel one task or several that have not ended, as `AsyncResult.revoke`."""
        for each in [task_id] if isinstance(task_id, str) else list(task_id):
            self._app.AsyncResult(each).revoke(terminate=terminate)


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
        known = next((each for each in _shared if each.name == task.name), None)
        if known is not None:
            _shared.remove(known)
        _shared.append(task)
        for app in _apps:
            app._register(task)
        return task

    return register(args[0]) if args and callable(args[0]) else register


def make_task(
    function: Callable[..., Any], options: Mapping[str, Any], base: type[Task], name: str
) -> Task:
    """Return the task of a function. Raise ImproperlyConfigured for an option that is unknown, and
    for a coroutine function."""
    given = dict(options)
    kind: type[Task] = given.pop("base", None) or base
    is_bound = given.pop("bind", False)
    own_name = given.pop("name", None) or name
    for without_effect in ("lazy", "shared", "filter", "pydantic", "_force_evaluate"):
        given.pop(without_effect, None)
    if serializer := given.get("serializer"):
        Conf({"task_serializer": serializer})
    if getattr(function, "__code__", None) is not None and function.__code__.co_flags & 0x80:
        raise ImproperlyConfigured(
            f"task {own_name!r} is an `async def`, which Celery never ran either: declare it with"
            " `@app.fairlead.task`"
        )
    unknown = [each for each in given if not hasattr(kind, each) and each in _REFUSED]
    if unknown:
        raise ImproperlyConfigured(f"task {own_name!r}: {unknown[0]}: {_REFUSED[unknown[0]]}")
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
}


def _handler_function(app: Celery, task: Task) -> Callable[..., Any]:
    def run(args: list[Any], kwargs: dict[str, Any], celery: Extras = Extras()) -> Any:  # noqa: B008
        return runner.run(app, task, args, kwargs, celery)

    return run


def _foreign_handler(name: str, queue: str) -> Handler:
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


def _eager(last: Before, ended: Mapping[str, EagerResult]) -> Result:
    if isinstance(last, Node):
        return ended[last.id]
    return GroupResult(uuid(), [_eager(each, ended) for each in last or []])


def _values(before: Before, ended: Mapping[str, EagerResult]) -> Any:
    if isinstance(before, Node):
        return ended[before.id].result
    return [_values(each, ended) for each in before or []]


def _instant(when: Any) -> datetime:
    if not isinstance(when, datetime):
        raise ImproperlyConfigured(f"eta={when!r}: use a datetime")
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def _later(now: datetime, seconds: Any) -> datetime | None:
    if seconds is None:
        return None
    wait = seconds if isinstance(seconds, timedelta) else timedelta(seconds=float(seconds))
    return now + wait


def _many(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


def _loaded(source: Any) -> Any:
    """Return what a name such as `package.module`, `module:NAME` or `module.NAME` stands for."""
    if not isinstance(source, str):
        return source
    name, _, attribute = source.partition(":")
    try:
        module = sys.modules.get(name) or importlib.import_module(name)
    except ModuleNotFoundError as error:
        outer, _, inner = name.rpartition(".")
        if attribute or not outer or error.name not in (name, outer):
            raise
        return getattr(importlib.import_module(outer), inner)
    return getattr(module, attribute) if attribute else module


def _installed() -> list[str]:
    """Return the installed applications of Django; none without Django."""
    if importlib.util.find_spec("django") is None:
        return []
    apps: Any = importlib.import_module("django.apps").apps
    return [config.name for config in apps.get_app_configs()]


def _routes(given: Any) -> list[tuple[Any, Any]]:
    """Return routes as pairs (pattern, route); a function has the pattern None."""
    found: list[tuple[Any, Any]] = []
    if isinstance(given, str):
        given = _loaded(given)
    if isinstance(given, Mapping):
        return list(given.items())
    if callable(given):
        return [(None, given)]
    for each in given or ():
        if isinstance(each, tuple):
            found.append(each)
        else:
            found += _routes(each)
    return found


def _queue_of(route: Any) -> str | None:
    if isinstance(route, str):
        return route
    queue = route.get("queue") if isinstance(route, Mapping) else None
    return None if queue is None else str(getattr(queue, "name", queue))
