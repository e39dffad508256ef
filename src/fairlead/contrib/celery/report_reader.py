"""The lines of one source file that the shim does not carry over."""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from functools import cache
from types import ModuleType
from typing import Any

import msgspec

from fairlead.contrib.celery import missing
from fairlead.contrib.celery.conf import DEFAULTS, current_name, objection, replacement
from fairlead.contrib.celery.signals import NEVER_SENT

MODULES: tuple[tuple[str, str], ...] = (
    ("celery.worker", "the worker is `fairlead worker`; use an interceptor or a signal"),
    ("celery.bin", "the commands are those of `fairlead`"),
    ("celery.beat", "every worker submits periodic tasks; schedules are beat_schedule"),
    ("celery.events", "read the history or the console"),
    ("celery.bootsteps", "use an interceptor, or App(observer=...)"),
    ("celery.contrib.testing", "use fairlead.testing"),
    ("celery.contrib.pytest", "use fairlead.testing"),
    ("celery.contrib.abortable", "check fairlead.current_task().cancelled"),
    ("celery.backends", "results live in the store"),
    ("celery.concurrency", "handlers run in threads, processes or on the loop"),
    ("celery.loaders", "give config_from_object the settings"),
    ("kombu", "there is no broker; name queues by their names"),
    ("django_celery_beat", "schedules are beat_schedule, in code"),
    ("django_celery_results", "results live in the store: `fairlead tasks`, the console"),
    ("celery_once", "use unique_key="),
    ("celery_singleton", "use unique_key="),
    ("celery_batches", "submit one task for many items"),
)
"""Modules that are not carried over, and what to use instead; the first prefix that fits counts."""

IMPORTS: missing.Missing = {
    "solar": (
        "there are no schedules by the sun",
        "crontab, with the times worked out in the task",
    ),
    "allow_join_result": (
        "a task that waits for another keeps a worker busy",
        "get(disable_sync_subtasks=False)",
    ),
    "Abortable": ("there are no abortable tasks", "fairlead.current_task().cancelled"),
}
"""Names of which the report says more than that the shim lacks them."""

ONE_KIND_OF_DAY = (
    "cron runs on days that match day_of_month or day_of_week",
    "keep one field, and check the other in the task",
)

OPTIONS: dict[str, tuple[str, str]] = {
    "exchange": ("no exchanges", "queue="),
    "routing_key": ("no routing keys", "queue="),
    "compression": ("has no effect", "large arguments are always compressed"),
    "producer": ("no producers", "leave it out"),
    "retry": ("has no effect", "catch StoreUnavailable to submit again"),
    "retry_policy": ("has no effect", "catch StoreUnavailable to submit again"),
    "delivery_mode": ("has no effect", "every task is durable"),
    "reply_to": ("has no effect", "AsyncResult"),
    "acks_on_failure_or_timeout": ("has no effect", "a failed task stays in the store"),
    "store_errors_even_if_ignored": ("has no effect", "errors are always stored"),
    "send_events": ("has no effect", "the history has each run"),
    "trail": ("has no effect", "return the ids of tasks that a run submits"),
    "shadow": ("has no effect", "name the task"),
    "pydantic": ("arguments stay plain values", "@app.fairlead.task, with annotations"),
    "filter": ("tasks are not wrapped", "a base class of the task"),
    "argsrepr": ("has no effect", "no argument is logged"),
    "kwargsrepr": ("has no effect", "no argument is logged"),
}
"""Options of tasks and submits that are not carried over."""

_CARRIED = frozenset(
    {
        "AsyncResult",
        "GroupResult",
        "add_periodic_task",
        "apply_async",
        "chain",
        "chord",
        "crontab",
        "delay",
        "group",
        "map",
        "chunks",
        "starmap",
        "s",
        "send_task",
        "si",
        "signature",
    }
)
_APPLICATIONS = frozenset({"app", "celery", "celery_app", "current_app"})
_SUBMITS = frozenset({"apply_async", "send_task", "task", "shared_task", "periodic_task", "set"})
_NOT_JSON = (ast.Set, ast.SetComp, ast.Lambda, ast.GeneratorExp)


_SIGNATURES = frozenset({"s", "si", "signature", "subtask", "chain", "group", "chord"})
_EVERYWHERE: missing.Missing = {
    name: table[name]
    for table, names in (
        (
            missing.CONTROL,
            ("add_consumer", "cancel_consumer", "pool_grow", "pool_shrink", "broadcast"),
        ),
        (missing.APPLICATION, ("worker_main", "producer_or_acquire", "connection_for_write")),
        (missing.RESULT, ("iterdeps", "get_leaf", "revoke_by_stamped_headers")),
        (missing.TASK, ("add_to_chord", "send_event", "is_aborted")),
    )
    for name in names
}
"""Names that are Celery's on any object."""

CHANGE, NOTE = "change", "note"


class Finding(msgspec.Struct, frozen=True, order=True):
    """A line that is not carried over as it is. `severity`: "change" for one that must change,
    "note" for one that has no effect and may stay."""

    file: str
    line: int
    what: str
    why: str
    instead: str
    severity: str = CHANGE


class Reader(ast.NodeVisitor):
    """Reads one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.findings: list[Finding] = []
        self.carried: Counter[str] = Counter()
        self.modules: set[str] = set()
        """Names of the module `celery` in the file."""

    def _note(self, node: Any, what: str, why: str, instead: str, severity: str = CHANGE) -> None:
        self.findings.append(Finding(self.file, node.lineno, what, why, instead, severity))

    # imports --------------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        """Read an import."""
        for name in node.names:
            self._import(node, name.name)
            if name.name == "celery":
                self.modules.add(name.asname or name.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Read an import of names."""
        if node.level or node.module is None or not self._import(node, node.module):
            return
        for name in node.names:
            self._name(node, node.module, name.name)

    def _import(self, node: ast.AST, module: str) -> bool:
        """Note an import of a module that the shim lacks; return whether it is one of the shim."""
        for prefix, instead in MODULES:
            if module == prefix or module.startswith(f"{prefix}."):
                self._note(node, f"import of {module}", "it is not part of the shim", instead)
                return False
        if module != "celery" and not module.startswith("celery."):
            return False
        if shim_module(module) is None:
            self._note(node, f"import of {module}", "it is not part of the shim", "see the how-to")
            return False
        self.carried[f"import of {module}"] += 1
        return True

    def _name(self, node: ast.AST, module: str, name: str) -> None:
        if module == "celery.signals" and (instead := NEVER_SENT.get(name)):
            self._note(node, f"signal {name}", "it is never sent", instead)
        elif name in IMPORTS:
            self._note(node, f"import of {name}", *IMPORTS[name])
        elif name != "*" and not hasattr(shim_module(module), name):
            self._import(node, f"{module}.{name}")

    # definitions ----------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Read a function and its decorators."""
        self._decorators(node)
        self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Read a coroutine function and its decorators."""
        if self._decorators(node):
            self._note(
                node,
                f"async def {node.name}",
                "Celery never awaits a task",
                "@app.fairlead.task, which runs coroutines",
            )
        self.generic_visit(node)

    def _decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        is_task = False
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = _last(called)
            if name in ("task", "shared_task"):
                is_task = True
                self.carried["task"] += 1
            elif name == "periodic_task":
                self._note(decorator, "periodic_task", "Celery 5 removed it", "beat_schedule")
        return is_task

    # assignments ----------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> None:
        """Read an assignment, perhaps of a setting."""
        for target in node.targets:
            name = _last(target)
            if name is None:
                continue
            if isinstance(target, ast.Attribute) and _last(target.value) == "conf":
                self._setting(node, name, node.value)
            elif name.isupper() and name.startswith("CELERY"):
                self._setting(node, name.removeprefix("CELERY_"), node.value, name)
            else:
                self._objection(node, name, node.value, name)
        self.generic_visit(node)

    def _setting(
        self, node: ast.AST, name: str, value: ast.expr | None, shown: str | None = None
    ) -> None:
        lowered = current_name(shown or name)
        if lowered not in DEFAULTS:
            lowered = current_name(name)
        if self._objection(node, lowered, value, shown or name):
            return
        if lowered == "enable_utc" and _literal(value) is False:
            why = "the time zone of the machine is not used"
            self._note(node, f"setting {shown or name}", why, "timezone=", NOTE)
        elif lowered in DEFAULTS:
            self.carried[f"setting {lowered}"] += 1
        elif (instead := replacement(lowered)) is not None:
            self._note(node, f"setting {shown or name}", "it has no effect", instead, NOTE)
        elif shown is None:  # other packages have settings whose names begin with CELERY_ too
            self._note(node, f"setting {name}", "it is unknown", "leave it out", NOTE)

    def _objection(self, node: ast.AST, name: str, value: Any, shown: str) -> bool:
        """Note a setting that cannot have its value; return whether it cannot."""
        literal = _literal(value)
        found = None if literal is _UNKNOWN else objection(current_name(name), literal)
        if found is not None:
            self._note(node, f"setting {shown}", *found)
        return found is not None

    def visit_keyword(self, node: ast.keyword) -> None:
        """Read an argument, perhaps a setting."""
        self._objection(node.value, node.arg or "", node.value, node.arg or "")
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        """Read a map, perhaps of settings."""
        for key, value in zip(map(_text, node.keys), node.values, strict=True):
            self._objection(value, key or "", value, key or "")
        self.generic_visit(node)

    # calls ----------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        """Read a call: its name, options and arguments."""
        name = _last(node.func)
        receiver = _last(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if name in _CARRIED:
            self.carried[name] += 1
        elif name == "retry" and receiver is not None:
            self.carried["retry"] += 1
        if name == "update_state":
            self._update_state(node)
        elif name in ("get", "wait", "join", "join_native"):
            for each in node.keywords:
                if each.arg in ("on_message", "on_interval"):
                    why = "no messages about states"
                    self._note(node, f"{name}({each.arg}=)", why, "read result.info")
        elif name == "crontab":
            self._crontab(node)
        if name in _SUBMITS:
            self._options(node)
        if name == "update" and receiver == "conf":
            self._settings(node)
        if name in ("delay", "apply_async", "s", "si"):
            self._arguments(node)
        self.generic_visit(node)

    def _crontab(self, node: ast.Call) -> None:
        names = ("minute", "hour", "day_of_week", "day_of_month")
        given = dict(zip(names, node.args, strict=False))
        given |= {each.arg: each.value for each in node.keywords if each.arg}
        if all(_literal(given.get(each, ast.Constant("*"))) != "*" for each in names[2:]):
            self._note(node, "crontab(day_of_month=, day_of_week=)", *ONE_KIND_OF_DAY)

    def _settings(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg is not None:
                self._setting(keyword.value, keyword.arg, keyword.value)
        for each in node.args:
            for key, value in (
                zip(each.keys, each.values, strict=True) if isinstance(each, ast.Dict) else ()
            ):
                if (name := _text(key)) is not None:
                    self._setting(value, name, value)

    def _options(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg in OPTIONS:
                why, instead = OPTIONS[keyword.arg]
                severity = NOTE if why == "has no effect" else CHANGE
                self._note(keyword.value, f"{keyword.arg}=", why, instead, severity)
            elif keyword.arg == "serializer" and _text(keyword.value) not in (None, "json"):
                self._note(
                    keyword.value,
                    f"serializer={_text(keyword.value)!r}",
                    "arguments and results are JSON",
                    "pass ids instead of objects, and 'json'",
                )
            elif keyword.arg in ("soft_time_limit", "time_limit") and _last(node.func) in (
                "apply_async",
                "send_task",
            ):
                self._note(
                    keyword.value,
                    f"{keyword.arg}= of one submit",
                    "a task has one time limit",
                    "set it where the task is declared",
                )
            elif keyword.arg == "acks_late" and _is_false(keyword.value):
                why = "a task whose worker died runs again"
                self._note(keyword.value, "acks_late=False", why, "an idempotent task", NOTE)
            elif keyword.arg is not None:
                self.carried[f"option {keyword.arg}"] += 1

    def _arguments(self, node: ast.Call) -> None:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        for value in given:
            for inner in ast.walk(value):
                if isinstance(inner, _NOT_JSON):
                    kind = type(inner).__name__.removesuffix("Comp").lower()
                    self._note(inner, f"a {kind} as argument", "it is not JSON", "use a list")

    def _update_state(self, node: ast.Call) -> None:
        self.carried["update_state"] += 1
        given = [keyword.value for keyword in node.keywords if keyword.arg == "task_id"]
        for value in [*node.args[:1], *given]:
            is_own = isinstance(value, ast.Attribute) and _last(value.value) == "request"
            if not is_own and not (isinstance(value, ast.Constant) and value.value is None):
                self._note(
                    node,
                    "update_state(task_id=)",
                    "only the run itself reports its state",
                    "call it in the task, without task_id",
                )

    def visit_Constant(self, node: ast.Constant) -> None:
        """Read a text, perhaps a name in INSTALLED_APPS."""
        for module, instead in MODULES:
            if node.value == module and module.startswith("django_celery_"):
                self._note(node, f"application {module}", "it is not part of the shim", instead)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Read an attribute, perhaps one that the shim lacks."""
        receiver, attribute = node.value, node.attr
        if _last(receiver) == "control" and attribute == "revoke":
            self.carried["control.revoke"] += 1
        found = next((each[attribute] for each in _tables(receiver) if attribute in each), None)
        found = found or _EVERYWHERE.get(attribute)
        if _last(receiver) == "signals" and attribute in NEVER_SENT:
            self._name(node, "celery.signals", attribute)
        elif _last(receiver) == "schedules" and attribute in IMPORTS:
            self._name(node, "celery.schedules", attribute)
        elif _last(receiver) in self.modules and not hasattr(shim_module("celery"), attribute):
            self._name(node, "celery", attribute)
            found = None
        if found is not None:
            prefix = ".control" if _last(receiver) == "control" else ""
            self._note(node, f"{prefix}.{attribute}", *found)
        elif attribute == "forget" and missing.RESULT in _tables(receiver):
            why, instead = "has no effect", "results end with the history"
            self._note(node, ".forget", why, instead, NOTE)
        self.generic_visit(node)


def _tables(receiver: ast.expr) -> list[missing.Missing]:
    """Return the tables of what the object before a dot lacks, as far as its name tells."""
    name = (_last(receiver) or "").lower()
    if isinstance(receiver, ast.Call):
        called = _last(receiver.func)
        if called in ("delay", "apply_async", "AsyncResult", "GroupResult", "ResultSet"):
            return [missing.RESULT, missing.RESULTS]
        return [missing.SIGNATURE] if called in _SIGNATURES else []
    if name in ("self", "cls"):
        return [missing.TASK]
    if name in _APPLICATIONS:
        return [missing.APPLICATION, {"inspect": missing.CONTROL["inspect"]}]
    if name == "control":
        return [missing.CONTROL]
    if name.endswith(("group_result", "groupresult")):
        return [missing.RESULTS]
    if name.endswith(("result", "results", "resultset")):
        return [missing.RESULTS, missing.RESULT]
    return [missing.SIGNATURE] if name.endswith(("signature", "sig")) else []


def _last(node: ast.AST | None) -> str | None:
    """Return the last name of an expression such as `a.b.c`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _text(node: ast.expr | None) -> str | None:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else None  # type: ignore[union-attr]


_UNKNOWN = object()


def _literal(node: ast.expr | None) -> Any:
    """Return the value of an expression, with _UNKNOWN for the parts that the source does not
    tell."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        found = [_literal(each) for each in node.elts]
        return _UNKNOWN if _UNKNOWN in found else found
    if isinstance(node, ast.Dict):
        return dict(zip(map(_text, node.keys), map(_literal, node.values), strict=True))
    return _UNKNOWN


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


@cache
def shim_module(module: str) -> ModuleType | None:
    """Return the shim's module for one of Celery; None if there is none."""
    name = f"fairlead.contrib.{module}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None
