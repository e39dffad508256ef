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

from fairlead.contrib.celery.report_reader import CHANGE, Finding, Reader
from fairlead.contrib.celery.schedules import cron_of, crontab, solar
from fairlead.contrib.celery.schedules import schedule as schedule_of
from fairlead.errors import ConfigurationError


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
        reader = Reader(shown)
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
        try:
            cron_of(_of_the_shim(given.get("schedule")))
        except ConfigurationError as error:
            why, _, cure = str(error).partition("; ")
            what = f"beat_schedule[{entry!r}]"
            findings.append(Finding(str(name), 0, what, why, cure or "another schedule"))
    queues = application.conf.task_queues or ()
    return {
        "name": str(name),
        "tasks": sorted(t for t in application.tasks if not t.startswith("celery.")),
        "periodic": sorted(schedule),
        "queues": sorted(str(getattr(queue, "name", queue)) for queue in queues),
    }


def _of_the_shim(given: Any) -> Any:
    """Return a schedule of Celery as one of the shim. Raise ConfigurationError without one."""
    kind = type(given).__name__
    if type(given).__module__ != "celery.schedules" or kind not in ("crontab", "schedule", "solar"):
        return given
    if kind == "crontab":
        names = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
        return crontab(*(getattr(given, f"_orig_{each}") for each in names))
    return solar() if kind == "solar" else schedule_of(given.run_every)
