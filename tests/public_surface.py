"""The public functions of Fairlead, each with all of its parameters, and how a test calls them."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import fairlead
from fairlead import App
from fairlead.declare.handle import TaskHandle
from fairlead.declare.queue import Queue
from fairlead.declare.task import Task, TaskOptions
from fairlead.engine.settings import NodeSettings
from fairlead.errors import FairleadError
from fairlead.model import State, TaskKey
from fairlead.operate.actions import ActionManagement
from fairlead.operate.audit import AuditManagement
from fairlead.operate.changes import Cancel
from fairlead.operate.doctor import explanation
from fairlead.operate.filters import TaskFilters
from fairlead.operate.limits import limits_of_queue
from fairlead.operate.nodes import nodes
from fairlead.operate.ordered import OrderedManagement
from fairlead.operate.overview import queue_view
from fairlead.operate.periodic import PeriodicManagement
from fairlead.operate.store.audit import AuditFilters
from fairlead.operate.summary import summary
from fairlead.operate.tasks import Management
from fairlead.operate.tenants import tenant, tenants
from fairlead.submit.transaction import Transaction
from fairlead.testing import drain

CLASSES = (
    Queue,
    Task,
    TaskHandle,
    Management,
    ActionManagement,
    AuditManagement,
    PeriodicManagement,
    OrderedManagement,
    Transaction,
)
"""Public classes that are not in `fairlead.__all__`, because other public objects return them."""

READS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (tenants, tenant, summary, queue_view, nodes, limits_of_queue, explanation)
}
"""Public functions of `fairlead.operate`, each given the context first."""

NOT_CALLED = {
    "ConcurrencyPolicy": "a protocol",
    "RetryPolicy": "a protocol",
    "ProcessingPolicy": "a protocol",
    "Interceptor": "its methods are called by Fairlead",
    "ContextFilter": "called by logging",
    "CurrentTask": "made and cancelled by the engine",
    "Full": "returned by a limit, to the engine",
    "Draft": "made by Task.draft",
    "Incident": "made by the store",
    "IncidentKind": "an enumeration",
    "Outcome": "an enumeration",
    "State": "an enumeration",
    "Queue": "made by App.queue",
    "Queue.fit": "called by Declarations",
    "Queue.slot_options": "called by Periodic",
    "Task": "made by App.task",
    "TaskHandle": "made by a submit",
    "Management": "made by App.management",
    "ActionManagement": "made by Management.actions",
    "ActionManagement.perform": "takes what `ask` and `resume` return",
    "AuditManagement": "made by Management.audit",
    "PeriodicManagement": "made by Management.periodic",
    "OrderedManagement": "made by Management.ordered",
    "Transaction": "made by App.transaction",
    "Task.__call__": "the function itself",
    "TaskHandle.trigger": "without parameters",
    "TaskHandle.ended": "called by as_completed",
    "TaskHandle.value_of": "called by gather",
    **dict.fromkeys(
        (
            f"{policy}.{method}"
            for policy in ("Limit", "RateLimit", "LimitTree", "ClusterLimit", "ClusterRateLimit")
            for method in (
                "column",
                "acquire",
                "release",
                "fresh",
                "on_node",
                "members",
                "named",
                "cancel",
                "stops_all",
                "keep",
                "limits_of",
                "refused_by",
            )
        ),
        "called by the engine",
    ),
    **dict.fromkeys(
        (f"{policy}.delay" for policy in ("Fixed", "Exponential", "Delays", "NoRetry")),
        "called by the engine",
    ),
}
"""Public names that people do not call with values, with the reason."""


async def _pay(amount: float = 0.0, more: dict[str, Any] | None = None) -> float:
    return amount


def nothing() -> None: ...


class Shop(NamedTuple):
    """An application on a store, with a task in most states."""

    app: App
    url: str
    pay: Task[Any, float]
    done: TaskHandle
    runner: asyncio.Runner

    @classmethod
    def open(cls, url: str) -> Shop:
        app = App(url)
        app.migrate()
        if url.startswith("sqlite"):
            app.queue("letters", kind="ordered", partitions=2)
        pay = app.task(name="pay", keep_result=True)(_pay)
        app.periodic("0 0 1 1 *", name="yearly")(nothing)
        runner = asyncio.Runner()
        done = pay.submit(amount=1.0)
        runner.run(drain(app))
        return cls(app, url, pay, done, runner)

    def close(self) -> None:
        self.runner.close()
        self.app.close()

    def waiting(self) -> str:
        """Return the id of a new task that waits."""
        return self.pay.options(run_at=datetime(9000, 1, 1, tzinfo=UTC)).submit().id

    def asked(self) -> int:
        """Return the id of a new bulk action that waits for a worker."""
        management = self.app.management
        return management.actions.ask(Cancel(), management.where()).id


class Call(NamedTuple):
    """How to call a public function: its object on a shop, and good values of its parameters."""

    on: Callable[[Shop], Callable[..., Any]]
    good: Callable[[Shop], Mapping[str, Any]] = lambda shop: {}


def _used(shop: Shop) -> Callable[..., Any]:
    def make(**given: Any) -> None:
        app = App(**({"url": shop.url} | given))
        try:
            app.task(name="pay", keep_result=True)(_pay).submit(amount=1.0)
            app.management.find(limit=1)
            assert app.channel and app.connections.coordinator and app.notifier
        finally:
            app.close()

    return make


def _decorated(declare: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **given: declare(**({"name": "new"} | given))(nothing)


def _fresh(shop: Shop) -> App:
    return App(shop.url)


def _in_transaction(shop: Shop) -> Callable[..., Any]:
    def use(connection: Any) -> None:
        with shop.app.transaction(connection):
            pass

    return use


def _overridden(shop: Shop) -> Callable[..., Any]:
    def override(**given: Any) -> None:
        with _fresh(shop).override_state(**given):
            pass

    return override


_LIMIT = {"n": 3}
_RATE = {"n": 3, "per": 1.0}
CALLS: dict[str, Call] = {
    "App": Call(_used),
    "App.queue": Call(lambda shop: _fresh(shop).queue, lambda _: {"name": "new"}),
    "App.task": Call(lambda shop: _task_of(_fresh(shop))),
    "App.periodic": Call(
        lambda shop: _decorated(_fresh(shop).periodic), lambda _: {"cron": "* * * * *"}
    ),
    "App.submit_many": Call(
        lambda shop: shop.app.submit_many, lambda shop: {"drafts": [shop.pay.draft()]}
    ),
    "App.submit_many_async": Call(
        lambda shop: shop.app.submit_many_async, lambda shop: {"drafts": [shop.pay.draft()]}
    ),
    "App.transaction": Call(_in_transaction),
    "App.handle": Call(lambda shop: lambda task_id: shop.app.handle(task_id).state()),
    "App.override_state": Call(_overridden, lambda _: {"state": "pool"}),
    "App.node": Call(lambda shop: shop.app.node),
    "ClusterLimit": Call(lambda _: fairlead.ClusterLimit, lambda _: _LIMIT),
    "ClusterRateLimit": Call(lambda _: fairlead.ClusterRateLimit, lambda _: _RATE),
    "Limit": Call(lambda _: fairlead.Limit, lambda _: _LIMIT),
    "LimitTree": Call(lambda _: fairlead.LimitTree, lambda _: {"total": 3}),
    "RateLimit": Call(lambda _: fairlead.RateLimit, lambda _: _RATE),
    "Delays": Call(lambda _: fairlead.Delays, lambda _: {"delays": [1.0]}),
    "Exponential": Call(lambda _: fairlead.Exponential),
    "Fixed": Call(lambda _: fairlead.Fixed),
    "NoRetry": Call(lambda _: fairlead.NoRetry),
    "Processing": Call(lambda _: fairlead.Processing),
    "Retry": Call(lambda _: fairlead.Retry),
    "Snooze": Call(lambda _: fairlead.Snooze),
    "Task.options": Call(lambda shop: lambda **given: shop.pay.options(**given).submit()),
    "Task.draft": Call(
        lambda shop: lambda **given: shop.app.submit_many([shop.pay.draft(**given)])
    ),
    "Task.submit": Call(lambda shop: shop.pay.submit),
    "Task.submit_async": Call(lambda shop: shop.pay.submit_async),
    "Task.submit_many": Call(lambda shop: shop.pay.submit_many, lambda _: {"arguments": [{}]}),
    "Task.submit_many_async": Call(
        lambda shop: shop.pay.submit_many_async, lambda _: {"arguments": [{}]}
    ),
    **{
        name: Call(lambda shop, of=of: functools.partial(of, shop.done))
        for name, of in {"gather": fairlead.gather, "gather_async": fairlead.gather_async}.items()
    },
    **{
        name: Call(lambda _, of=of: of, lambda shop: {"handles": [shop.done]})
        for name, of in {
            "as_completed": fairlead.as_completed,
            "as_completed_async": fairlead.as_completed_async,
        }.items()
    },
    "TaskHandle.result": Call(lambda shop: shop.done.result),
    "TaskHandle.result_async": Call(lambda shop: shop.done.result_async),
    **{
        f"Management.{name}": Call(lambda shop, name=name: getattr(shop.app.management, name))
        for name in ("find", "page", "count")
    },
    **{
        f"Management.{name}": Call(
            lambda shop, name=name: getattr(shop.app.management, name),
            lambda shop: {"task_id": shop.done.id},
        )
        for name in ("show", "attempts", "notes", "payload")
    },
    "Management.named": Call(
        lambda shop: shop.app.management.named, lambda shop: {"beginning": shop.done.id}
    ),
    **{
        f"Management.{name}": Call(
            lambda shop, name=name: getattr(shop.app.management, name),
            lambda shop: {"task_id": shop.waiting()},
        )
        for name in ("resume", "retry", "cancel", "fail")
    },
    "Management.reschedule": Call(
        lambda shop: shop.app.management.reschedule,
        lambda shop: {"task_id": shop.waiting(), "run_at": datetime(9000, 1, 2, tzinfo=UTC)},
    ),
    "Management.change": Call(
        lambda shop: shop.app.management.change,
        lambda shop: {"task_id": shop.waiting(), "priority": 3},
    ),
    "Management.apply": Call(
        lambda shop: shop.app.management.apply,
        lambda shop: {"change": Cancel(), "task_id": shop.waiting()},
    ),
    "Management.apply_all": Call(
        lambda shop: shop.app.management.apply_all,
        lambda shop: {"change": Cancel(), "task_ids": [shop.waiting()]},
    ),
    "Management.where": Call(lambda shop: shop.app.management.where, lambda _: {}),
    "AuditManagement.list": Call(lambda shop: shop.app.management.audit.list, lambda _: {}),
    "ActionManagement.list": Call(lambda shop: shop.app.management.actions.list, lambda _: {}),
    **{
        f"ActionManagement.{name}": Call(
            lambda shop, name=name: getattr(shop.app.management.actions, name),
            lambda shop: {"id": shop.asked()},
        )
        for name in ("show", "interrupt", "resume")
    },
    **{
        f"ActionManagement.{name}": Call(
            lambda shop, name=name: getattr(shop.app.management.actions, name),
            lambda shop: {"change": Cancel(), "where": shop.app.management.where()},
        )
        for name in ("preview", "ask")
    },
    **{
        f"Management.{name}": Call(
            lambda shop, name=name: getattr(shop.app.management, name),
            lambda _: {"queue": "default"},
        )
        for name in ("weights", "limits", "heaviest_keys", "pause", "unpause")
    },
    "Management.set_weight": Call(
        lambda shop: shop.app.management.set_weight,
        lambda _: {"queue": "default", "fairness_key": "a", "weight": 2.0},
    ),
    "Management.set_limit": Call(
        lambda shop: shop.app.management.set_limit,
        lambda _: {"queue": "default", "fairness_key": "a", "limit": 2},
    ),
    **{
        f"PeriodicManagement.{name}": Call(
            lambda shop, name=name: getattr(shop.app.management.periodic, name),
            lambda _: {"name": "nightly"},
        )
        for name in ("run", "pause", "resume", "remove")
    },
    "PeriodicManagement.list": Call(lambda shop: shop.app.management.periodic.list),
    **{
        f"OrderedManagement.{name}": Call(
            lambda shop, name=name: getattr(shop.app.management.ordered, name),
            lambda _: {"queue": "letters"},
        )
        for name in ("tasks", "check_log", "status")
    },
    **{
        f"OrderedManagement.{name}": Call(
            lambda shop, name=name: getattr(shop.app.management.ordered, name),
            lambda _: {"queue": "letters", "partitions": 8},
        )
        for name in ("repartition", "repartition_plan")
    },
    **{
        name: Call(
            lambda shop, read=READS[name]: functools.partial(read, shop.app.operate_context),
            lambda shop, good=good: {
                what: shop.done.id if what == "task_id" else "default" for what in good
            },
        )
        for name, good in {
            "tenants": (),
            "tenant": ("name",),
            "summary": (),
            "queue_view": ("queue",),
            "nodes": (),
            "limits_of_queue": ("queue",),
            "explanation": ("task_id",),
        }.items()
    },
    "OrderedManagement.drop": Call(
        lambda shop: shop.app.management.ordered.drop,
        lambda _: {"queue": "letters", "key": TaskKey(5, "a", "u")},
    ),
}
"""The public functions with parameters."""


def _task_of(app: App) -> Callable[..., Any]:
    def declare(**given: Any) -> Any:
        if "function" in given:
            return app.task(given["function"])
        return app.task(**({"name": "new"} | given))(nothing)

    return declare


def _objects() -> dict[str, Any]:
    """Return the public classes and functions, and the public methods of the classes, by name."""
    found: dict[str, Any] = {}
    named = READS | {name: getattr(fairlead, name) for name in fairlead.__all__}
    for name, value in {**named, **{each.__name__: each for each in CLASSES}}.items():
        is_error = isinstance(value, type) and issubclass(value, FairleadError)
        if is_error and name not in ("Retry", "Snooze"):
            continue
        found[name] = value
        if isinstance(value, type) and not is_error and not issubclass(value, State.__mro__[1]):
            found |= {
                f"{name}.{method}": function
                for method, function in inspect.getmembers(value, inspect.isfunction)
                if not method.startswith("_")
            }
    return found


def parameters_of(name: str) -> list[str]:
    """Return the parameters that a caller gives to a public function, also those of a `**options`."""
    found: list[str] = []
    for parameter in inspect.signature(_objects()[name]).parameters.values():
        match parameter.kind, parameter.name:
            case _, "self":
                pass
            case _, "context" if name in READS:
                pass
            case inspect.Parameter.VAR_POSITIONAL, _:
                pass  # the arguments of the task, which come with the `**kwargs`
            case inspect.Parameter.VAR_KEYWORD, rest:
                found += _MORE[name, rest]
            case _:
                found.append(parameter.name)
    return found


_TASK = [
    name for name in inspect.signature(App.task).parameters if name not in ("self", "function")
]
_MORE = {
    ("App.periodic", "options"): _TASK,
    ("App.node", "settings"): [field.name for field in dataclasses.fields(NodeSettings)],
    ("Task.options", "changes"): [*TaskOptions.__annotations__],
    **{
        (f"Management.{name}", "filters"): [*TaskFilters.__annotations__]
        for name in ("find", "page", "count", "where")
    },
    ("AuditManagement.list", "filters"): [*AuditFilters.__annotations__],
    **{
        (f"Task.{name}", "kwargs"): ["amount", "more"]
        for name in ("draft", "submit", "submit_async")
    },
}
"""The names that a `**` parameter takes."""


def surface() -> Iterator[tuple[str, str]]:
    """Yield each public function and each of its parameters."""
    for name in CALLS:
        for parameter in parameters_of(name):
            yield name, parameter


def undrawn() -> list[str]:
    """Return the public functions with parameters that CALLS does not have."""
    return [
        name
        for name, value in _objects().items()
        if name not in CALLS
        and name not in NOT_CALLED
        and name.partition(".")[0] not in _PARTS
        and callable(value)
        and set(inspect.signature(value).parameters) - {"self"}
    ]


_PARTS = {
    name
    for name, reason in NOT_CALLED.items()
    if "." not in name and not reason.startswith("made by")
}


def call(shop: Shop, name: str, parameter: str, value: Any) -> None:
    """Call a public function with this value of one parameter and good values of the others."""
    given = {**CALLS[name].good(shop), parameter: value}
    result = CALLS[name].on(shop)(**given)
    if inspect.iscoroutine(result):
        shop.runner.run(result)
