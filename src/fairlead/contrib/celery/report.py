"""Reports on Celery projects: lines that the shim does not carry over, found in the source, and in
the application if Celery is installed. Nothing runs unless the application is imported."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fairlead.contrib.celery.conf import DEFAULTS, current_name, replacement
from fairlead.contrib.celery.signals import NEVER_SENT
from fairlead.errors import ConfigurationError

CARRIED_MODULES = frozenset(
    {
        "celery",
        "celery.app",
        "celery.app.task",
        "celery.canvas",
        "celery.exceptions",
        "celery.result",
        "celery.schedules",
        "celery.signals",
        "celery.states",
        "celery.utils",
        "celery.utils.log",
    }
)
"""Modules of Celery whose names exist in the shim, or can be imported from its other modules."""

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

CALLS: dict[str, tuple[str, str]] = {
    "update_state": (
        "custom states are logged, not stored",
        "current_task().progress, or a table of your own",
    ),
    "replace": ("a running task cannot become another", "submit the other task, and return"),
    "chunks": ("no chunks", "a group of tasks with slices of the list"),
    "starmap": ("no starmap", "a group of signatures"),
    "send_event": ("no events", "log it"),
    "abortable": ("no abortable tasks", "check fairlead.current_task().cancelled"),
    "add_consumer": ("no remote control", "start another worker with --queues"),
    "cancel_consumer": ("no remote control", "fairlead queues pause"),
    "broadcast": ("no remote control", "fairlead commands, the console or its JSON API"),
    "pool_grow": ("no remote control", "start more workers"),
    "purge": ("no purge", "fairlead tasks cancel with a filter"),
    "start": ("no commands of its own", "fairlead worker MODULE:APP"),
    "worker_main": ("no commands of its own", "fairlead worker MODULE:APP"),
    "save": ("groups are not stored", "keep result.as_tuple()"),
}
"""Methods that are not carried over: what, and what instead."""

_RECEIVERS: dict[str, frozenset[str]] = {
    "replace": frozenset({"self"}),
    "save": frozenset({"result", "group_result", "results"}),
    "purge": frozenset({"app", "celery", "control", "celery_app", "current_app"}),
    "start": frozenset({"app", "celery", "celery_app"}),
}
"""Names on which a method with a common name is Celery's."""

OPTIONS: dict[str, tuple[str, str]] = {
    "exchange": ("no exchanges", "queue="),
    "routing_key": ("no routing keys", "queue="),
    "compression": ("has no effect", "large arguments are always compressed"),
    "producer": ("no producers", "leave it out"),
    "shadow": ("has no effect", "name the task"),
    "pydantic": ("has no effect", "a task of Fairlead with annotations"),
}
"""Options of tasks and submits that are not carried over."""

ATTRIBUTES: dict[str, tuple[str, str]] = {
    "connection": ("no broker", "app.fairlead"),
    "connection_for_read": ("no broker", "app.fairlead"),
    "connection_for_write": ("no broker", "app.fairlead"),
    "events": ("no events", "the history or the console"),
    "inspect": ("no remote control", "fairlead nodes, fairlead queues, the console"),
    "backend": ("no result backend", "AsyncResult, or app.fairlead.handle(id)"),
    "amqp": ("no broker", "task_queues with names"),
    "steps": ("no bootsteps", "an interceptor, or App(observer=...)"),
    "user_options": ("no options of the command line", "settings, or the environment"),
}
"""Attributes of an application that do not exist."""

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
        "s",
        "send_task",
        "si",
        "signature",
    }
)
_APPLICATIONS = frozenset({"app", "celery", "celery_app", "current_app"})
_SUBMITS = frozenset({"apply_async", "send_task", "task", "shared_task", "periodic_task", "set"})
_NOT_JSON = (ast.Set, ast.SetComp, ast.Lambda, ast.GeneratorExp)


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


class Report(msgspec.Struct, frozen=True):
    """Findings in a project, and counts of what is carried over."""

    findings: list[Finding]
    carried: dict[str, int]
    """Number of uses by what is carried over, such as "task" or "chain"."""
    files: int
    """Number of files of Python that were read."""
    application: dict[str, Any] | None
    """Tasks, periodic tasks and queues of the application; None if it was not imported."""


def changes(found: Report) -> list[Finding]:
    """Return the findings that must change."""
    return [each for each in found.findings if each.severity == CHANGE]


def report(folder: Path, application: Any = None) -> Report:
    """Return the report on the source below a folder, and on an imported application. Raise
    ConfigurationError for a folder that does not exist."""
    if not folder.exists():
        raise ConfigurationError(f"{folder} does not exist: give MODULE:APP, or a folder")
    findings: list[Finding] = []
    carried: Counter[str] = Counter()
    paths = list(_sources(folder))
    base = folder if folder.is_dir() else folder.parent
    for path in paths:
        shown = str(path.relative_to(base))
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        except (SyntaxError, UnicodeDecodeError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            findings.append(
                Finding(shown, line, "cannot be read", str(error), "correct it, or leave it out")
            )
            continue
        reader = _Reader(shown)
        reader.visit(tree)
        findings += reader.findings
        carried.update(reader.carried)
    described = None if application is None else _described(application, findings)
    return Report(sorted(set(findings)), dict(sorted(carried.items())), len(paths), described)


def folder_of(module: str) -> Path:
    """Return the folder of the outermost package of a module, or its file. Raise
    ConfigurationError if there is none."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    outermost = module.partition(".")[0]
    try:
        found = importlib.util.find_spec(outermost)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(f"{outermost} cannot be found: {error}") from error
    if found is None:
        raise ConfigurationError(f"no module named {outermost!r}; run this where it is")
    if found.submodule_search_locations:
        return Path(next(iter(found.submodule_search_locations)))
    if found.origin is None:
        raise ConfigurationError(f"{outermost} has no source")
    return Path(found.origin)


def _sources(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
        return
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder).parts
        if not any(part.startswith(".") or part in ("site-packages", "build") for part in inner):
            yield path


class _Reader(ast.NodeVisitor):
    """Reads one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.findings: list[Finding] = []
        self.carried: Counter[str] = Counter()
        self._tasks: set[str] = set()

    def _note(self, node: Any, what: str, why: str, instead: str, severity: str = CHANGE) -> None:
        self.findings.append(Finding(self.file, node.lineno, what, why, instead, severity))

    # imports --------------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        for name in node.names:
            self._import(node, name.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or node.module is None:
            return
        self._import(node, node.module)
        if node.module == "celery.signals":
            for name in node.names:
                if instead := NEVER_SENT.get(name.name):
                    self._note(node, f"signal {name.name}", "it is never sent", instead)

    def _import(self, node: ast.stmt, module: str) -> None:
        for prefix, instead in MODULES:
            if module == prefix or module.startswith(f"{prefix}."):
                self._note(node, f"import of {module}", "it is not part of the shim", instead)
                return
        if module in CARRIED_MODULES:
            self.carried[f"import of {module}"] += 1
        elif module.startswith("celery."):
            self._note(node, f"import of {module}", "it is not part of the shim", "see the how-to")

    # definitions ----------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._decorators(node)
        self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
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
        for target in node.targets:
            name = _last(target)
            if name is None:
                continue
            if isinstance(target, ast.Attribute) and _last(target.value) == "conf":
                self._setting(node, name, node.value)
            elif name.isupper() and name.startswith("CELERY"):
                self._setting(node, name.removeprefix("CELERY_"), node.value, name)
        self.generic_visit(node)

    def _setting(
        self, node: ast.AST, name: str, value: ast.expr | None, shown: str | None = None
    ) -> None:
        lowered = current_name(shown or name)
        if lowered not in DEFAULTS:
            lowered = current_name(name)
        if lowered in ("task_serializer", "result_serializer") and _text(value) not in (
            None,
            "json",
        ):
            self._note(
                node,
                f"{shown or name} = {_text(value)!r}",
                "arguments and results are JSON",
                "pass ids instead of objects, and 'json'",
            )
        elif lowered in DEFAULTS:
            self.carried[f"setting {lowered}"] += 1
        elif (instead := replacement(lowered)) is not None:
            self._note(node, f"setting {shown or name}", "it has no effect", instead, NOTE)
        elif shown is None:  # other packages have settings whose names begin with CELERY_ too
            self._note(node, f"setting {name}", "it is unknown", "leave it out", NOTE)

    # calls ----------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        name = _last(node.func)
        receiver = _last(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if name in _CARRIED:
            self.carried[name] += 1
        elif name == "retry" and receiver is not None:
            self.carried["retry"] += 1
        if name in CALLS and isinstance(node.func, ast.Attribute):
            wanted = _RECEIVERS.get(name)
            if wanted is None or receiver in wanted:
                why, instead = CALLS[name]
                self._note(node, f".{name}()", why, instead)
        if name in _SUBMITS:
            self._options(node)
        if name == "update" and receiver == "conf":
            self._settings(node)
        if name in ("delay", "apply_async", "s", "si"):
            self._arguments(node)
        self.generic_visit(node)

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
            elif keyword.arg is not None:
                self.carried[f"option {keyword.arg}"] += 1

    def _arguments(self, node: ast.Call) -> None:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        for value in given:
            for inner in ast.walk(value):
                if isinstance(inner, _NOT_JSON):
                    kind = type(inner).__name__.removesuffix("Comp").lower()
                    self._note(inner, f"a {kind} as argument", "it is not JSON", "use a list")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        control = node.value
        if isinstance(control, ast.Attribute) and control.attr == "control":
            if node.attr == "revoke":
                self.carried["control.revoke"] += 1
            elif _last(control.value) in _APPLICATIONS and node.attr not in CALLS:
                instead = "fairlead commands, the console or its JSON API"
                self._note(node, f".control.{node.attr}", "no remote control", instead)
        if node.attr in ATTRIBUTES and _last(node.value) in _APPLICATIONS:
            why, instead = ATTRIBUTES[node.attr]
            self._note(node, f".{node.attr}", why, instead)
        self.generic_visit(node)


def _last(node: ast.AST | None) -> str | None:
    """Return the last name of an expression such as `a.b.c`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _text(node: ast.expr | None) -> str | None:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else None  # type: ignore[union-attr]


def _described(application: Any, findings: list[Finding]) -> dict[str, Any]:
    """Return the tasks, periodic tasks and queues of an application of Celery or of the shim; add
    findings about what only the application shows."""
    if hasattr(application, "loader"):  # of Celery: its finalize imports no modules of tasks
        application.loader.import_default_modules()
    application.finalize()
    name = getattr(application, "main", None) or "the application"
    for task_name, task in sorted(application.tasks.items()):
        if task_name.startswith("celery."):
            continue
        serializer = getattr(task, "serializer", None)
        if serializer not in (None, "json"):
            findings.append(
                Finding(
                    task_name,
                    0,
                    f"serializer {serializer!r}",
                    "arguments and results are JSON",
                    "pass ids instead of objects, and 'json'",
                )
            )
    schedule: Mapping[str, Any] = application.conf.beat_schedule or {}
    for entry, given in schedule.items():
        kind = type(given.get("schedule")).__name__
        if kind == "solar":
            findings.append(
                Finding(str(name), 0, f"beat_schedule[{entry!r}]", "no solar schedules", "crontab")
            )
        both = given.get("schedule")
        if kind == "crontab" and not _has_one_kind_of_day(both):
            findings.append(
                Finding(
                    str(name),
                    0,
                    f"beat_schedule[{entry!r}]",
                    "cron runs on days that match day_of_month or day_of_week",
                    "keep one field, and check the other in the task",
                )
            )
    queues = application.conf.task_queues or ()
    return {
        "name": str(name),
        "tasks": sorted(t for t in application.tasks if not t.startswith("celery.")),
        "periodic": sorted(schedule),
        "queues": sorted(str(getattr(queue, "name", queue)) for queue in queues),
    }


def _has_one_kind_of_day(given: Any) -> bool:
    days = getattr(given, "_orig_day_of_month", None) or getattr(given, "day_of_month", "*")
    weekdays = getattr(given, "_orig_day_of_week", None) or getattr(given, "day_of_week", "*")
    return str(days) == "*" or str(weekdays) == "*"
