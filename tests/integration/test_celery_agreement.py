"""Celery's names that the shim lacks: their use raises an error with the cure, `fairlead
celery-report` finds the line, and no name of Celery itself is on neither list."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.contrib.celery import Celery, Task, group, missing, signals
from fairlead.contrib.celery.app.control import Control
from fairlead.contrib.celery.conf import DEFAULTS, Conf, current_name, objection, replacement
from fairlead.contrib.celery.exceptions import ImproperlyConfigured
from fairlead.contrib.celery.report_reader import CHANGE, OPTIONS, Finding, Reader
from fairlead.contrib.celery.result import AsyncResult, GroupResult

TABLES = {
    "self": (missing.TASK, Task),
    "result": (missing.RESULT, AsyncResult),
    "results": (missing.RESULTS, GroupResult),
    "sig": (missing.SIGNATURE, group),
    "app": (missing.APPLICATION, Celery),
    "app.control": (missing.CONTROL, Control),
}
"""Names that a class lacks, by an expression for one of its objects."""

SETTINGS: tuple[tuple[str, Any], ...] = (
    ("task_serializer", "pickle"),
    ("CELERY_TASK_SERIALIZER", "pickle"),
    ("result_serializer", "yaml"),
    ("accept_content", ["pickle"]),
    ("beat_scheduler", "django_celery_beat.schedulers:DatabaseScheduler"),
    ("CELERYBEAT_SCHEDULER", "django_celery_beat.schedulers:DatabaseScheduler"),
    ("task_annotations", {"*": {"@__call__": 1}}),
    ("task_routes", {"shop.*": {"exchange": "media", "routing_key": "high"}}),
)
"""Settings with values that the shim refuses."""


def findings(source: str) -> list[Finding]:
    """Return what the report finds in a source."""
    reader = Reader("shop.py")
    reader.visit(ast.parse(source))
    return reader.findings


@pytest.mark.parametrize(
    ("shown", "name"), [(shown, name) for shown, (table, _) in TABLES.items() for name in table]
)
def test_a_name_that_is_missing_raises_the_cure_and_is_found(shown: str, name: str) -> None:
    table, kind = TABLES[shown]
    with pytest.raises(AttributeError) as caught:
        getattr(kind.__new__(kind), name)
    why, instead = table[name]
    assert f"{why}; instead: {instead}" in str(caught.value)
    (found,) = findings(f"{shown}.{name}()")
    assert (found.severity, found.line) == (CHANGE, 1) and found.why and found.instead


@pytest.mark.parametrize(("name", "value"), SETTINGS)
def test_a_setting_that_is_refused_is_found_however_it_is_written(name: str, value: Any) -> None:
    with pytest.raises(ImproperlyConfigured):
        Conf({name: value})
    for source in (
        f"app.conf.{name} = {value!r}",
        f"app.conf.update({name}={value!r})",
        f"app.conf.update({{{name!r}: {value!r}}})",
        f"{name} = {value!r}",
        f"config = dict({name}={value!r})",
        f"class Config:\n    {name} = {value!r}",
    ):
        assert [each.severity for each in set(findings(source))] == [CHANGE], source


@pytest.mark.parametrize(
    "source",
    [
        "from celery import signals\nsignals.worker_shutdown.connect(print)",
        "import celery\ncelery.signals.worker_shutdown.connect(print)",
        "import celery\ncelery.bootsteps",
        "import celery\ncelery.schedules.solar('sunset', 1, 2)",
        "crontab(0, 0, 1, day_of_month='1')",
        "result.get(on_interval=print)",
        "results.join(on_message=print)",
        "@shared_task(pydantic=True)\ndef work(): ...",
        "@app.task(filter=print)\ndef work(): ...",
        "INSTALLED_APPS = ['django_celery_beat']",
        "self.result._get_task_meta()",
        "from celery.result import allow_join_result",
    ],
)
def test_what_the_shim_refuses_is_found(source: str) -> None:
    assert CHANGE in [each.severity for each in findings(source)]


@pytest.mark.parametrize(
    "source",
    [
        "from django.db.models import signals\nsignals.post_save.connect(print)",
        "crontab(hour=3, day_of_week='*', day_of_month=1)",
        "INSTALLED_APPS = ['django_celery']",
        "accept_content = ['json', extra]",
        "group_result.children",
    ],
)
def test_what_is_carried_over_is_not_found(source: str) -> None:
    assert findings(source) == []


def test_options_that_are_refused_are_those_of_the_report() -> None:
    change = {name for name, (why, _) in OPTIONS.items() if why != "has no effect"}
    for name in change - {"producer"}:
        with pytest.raises(ImproperlyConfigured):
            Celery("shop", set_as_current=False).task(**{name: "x"})(lambda: None)


# Celery's own names ------------------------------------------------------------------------------


def celerys() -> Iterator[tuple[str, Any, Any, missing.Missing]]:
    """Yield classes of Celery: the class, that of the shim, and what it lacks."""
    for path, kind, table in (
        ("app.base.Celery", Celery, missing.APPLICATION),
        ("app.task.Task", Task, missing.TASK),
        ("canvas.Signature", group, missing.SIGNATURE),
        ("canvas.group", group, missing.SIGNATURE),
        ("result.AsyncResult", AsyncResult, missing.RESULT),
        ("result.GroupResult", GroupResult, missing.RESULTS),
        ("app.control.Control", Control, missing.CONTROL),
        ("utils.dispatch.Signal", signals.Signal, {}),
    ):
        module, _, name = path.rpartition(".")
        yield path, getattr(importlib.import_module(f"celery.{module}"), name), kind, table


INNER = {
    "app.base.Celery": """IS_WINDOWS IS_macOS Pickler SYSTEM amqp_cls annotations
        autofinalize backend_cls bugreport builtin_fixups clock configured control_cls
        create_task_cls current_worker_task default_connection default_producer either events_cls
        finalized loader_cls log_cls namespace oid on_after_fork on_init prepare_config
        registry_cls set_as_current strict_typing subclass_with_self task_cls thread_oid
        type_checker uses_utc_timezone""",
    "app.task.Task": """Request Strategy acks_on_failure acks_on_failure_or_timeout
        acks_on_timeout annotate bind from_config on_replace resultrepr_maxsize
        retry_on_worker_lost send_events shadow_name start_strategy store_errors_even_if_ignored
        trail""",
    "canvas.Signature": """AsyncResult TYPES append_to_list_option extend_list_option
        flatten_links parent_id register_type reprcall root_id subtask_type""",
    "result.AsyncResult": "TimeoutError id ignored parent supports_native_join",
    "result.GroupResult": "app id parent results supports_native_join",
    "app.control.Control": "Mailbox",
    "utils.dispatch.Signal": "has_listeners receivers",
}
INNER["canvas.group"] = INNER["canvas.Signature"]
"""Attributes of objects, and names of Celery that projects do not use, by class; the latter raise a
plain AttributeError."""


@pytest.mark.slow
def test_no_public_name_of_celery_is_on_neither_list() -> None:
    pytest.importorskip("celery", reason="Celery is not installed: pip install celery")
    lacking = {}
    for path, theirs, ours, table in celerys():
        names = {each for each in dir(theirs) if not each.startswith("_")}
        made = ours("x", set_as_current=False) if ours is Celery else ours
        known = {each for each in names if each in dir(made) or each in table}
        lacking[path] = sorted(names - known - set(INNER.get(path, "").split()))
    assert {path: names for path, names in lacking.items() if names} == {}


@pytest.mark.slow
def test_every_setting_and_signal_of_celery_is_known() -> None:
    defaults = pytest.importorskip("celery.app.defaults", reason="Celery is not installed")
    theirs = importlib.import_module("celery.signals").__all__
    lacking = [each for each in theirs if not hasattr(signals, each)]
    assert [each for each in lacking if not each.startswith("eventlet_")] == []
    keys = sorted(defaults.SETTING_KEYS)
    assert [each for each in keys if each not in DEFAULTS and replacement(each) is None] == []
    present = {each: current_name(each) for each in defaults._TO_NEW_KEY}
    wrong = {
        old: (present[old], new)
        for old, new in defaults._TO_NEW_KEY.items()
        if (new in DEFAULTS or objection(new, "x")) and present[old] != new
    }
    assert wrong == {}


@pytest.mark.slow
def test_every_option_of_a_submit_of_celery_is_taken_or_refused(celery: Celery) -> None:
    base = pytest.importorskip("celery.app.base", reason="Celery is not installed")

    @celery.task(name="work")
    def work() -> None: ...

    silent = {}
    taken = {"args", "kwargs", "name", "self", "options", "connection", "link", "link_error"}
    for name in set(inspect.signature(base.Celery.send_task).parameters) - taken:
        try:
            work.apply_async(**{name: 5})
        except (ImproperlyConfigured, TypeError):
            continue
        silent[name] = findings(f"work.apply_async({name}=5)")
    effective = {"countdown", "expires", "task_id", "retries"}
    inner = {"add_to_parent", "chord", "group_id", "group_index", "parent_id", "publisher"}
    inner |= {"replaced_task_nesting", "root_id"}
    assert {name for name, found in silent.items() if not found} <= effective | inner
