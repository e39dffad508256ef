"""Names, options and settings of Celery that are not carried over: one error with the cure, and none of
Celery's own names is silently without effect."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from typing import Any

import pytest

from fairlead.contrib import celery as names
from fairlead.contrib.celery import Celery, Task, group
from fairlead.contrib.celery.conf import KNOWN
from fairlead.contrib.celery.exceptions import ImproperlyConfigured
from fairlead.contrib.celery.result import AsyncResult, GroupResult


@pytest.fixture
def work(celery: Celery) -> Any:
    @celery.task(name="work")
    def work() -> None: ...

    return work


@pytest.mark.parametrize(
    ("source", "cure"),
    [
        ("from fairlead.contrib.celery import signals", "fairlead.Interceptor"),
        ("from fairlead.contrib.celery.signals import task_prerun", "fairlead.Interceptor"),
        ("from fairlead.contrib.celery import chunks", "a group"),
        ("import fairlead.contrib.celery.bootsteps", "fairlead worker MODULE:APP"),
        ("from fairlead.contrib.celery.result import ResultSet", "fairlead.gather"),
        ("from fairlead.contrib.celery.exceptions import Ignore", "return, or raise"),
        ("from fairlead.contrib.celery.schedules import solar", "crontab"),
    ],
)
def test_an_import_names_the_replacement(source: str, cure: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="of Celery is not carried over; use ") as caught:
        exec(source)
    assert cure in str(caught.value)
    with pytest.raises(ImportError):
        exec("from fairlead.contrib.celery import nonsense")
    with pytest.raises(ModuleNotFoundError):
        exec("import fairlead.contrib.celery.nonsense")


def test_an_attribute_names_the_replacement(celery: Celery, work: Any) -> None:
    result = celery.AsyncResult("x")
    for call, text in (
        (lambda: work.replace, "a submit of another task"),
        (lambda: work.update_state, "progress"),
        (lambda: work.request.delivery_info, "queue="),
        (lambda: result.children, "AsyncResult of each id"),
        (lambda: result.then, "a chain"),
        (lambda: GroupResult([]).save, "AsyncResult of each id"),
        (lambda: work.s().freeze, r"task_id=uuid\(\)"),
        (lambda: celery.control, r"AsyncResult\(id\).revoke"),
        (lambda: celery.on_after_configure, "beat_schedule"),
        (lambda: result.get(on_message=print), "a chain"),
    ):
        with pytest.raises(ImproperlyConfigured, match=text):
            call()
    for each in (work, result, work.s(), celery, work.request):
        assert not hasattr(each, "nothing")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"expires": 10}, "a time among the arguments"),
        ({"headers": {"a": 1}}, "context="),
        ({"link_error": 1}, "on_failure"),
        ({"routing_key": "a"}, "queue="),
        ({"land": 1}, "one of connection, context, countdown"),
    ],
)
def test_an_option_of_a_submit_names_the_replacement(
    celery: Celery, work: Any, options: dict[str, Any], text: str
) -> None:
    for submit in (work.apply_async, work.apply, work.s().apply_async, group(work.s()).apply_async):
        with pytest.raises(ImproperlyConfigured, match=text):
            submit(**options)


def test_an_option_of_a_task_names_the_replacement(celery: Celery) -> None:
    for option in ("soft_time_limit", "pydantic", "expires", "colour"):
        for declare in (celery.task, names.shared_task):
            with pytest.raises(ImproperlyConfigured, match=f"option '{option}' of Celery"):
                declare(**{option: 1})(lambda: None)
    with pytest.raises(ImproperlyConfigured, match="'before_start'.*Interceptor"):

        class Noted(Task):
            def before_start(self, *args: Any) -> None: ...


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task_routes", {"a": "b"}),
        ("task_annotations", {"*": {}}),
        ("task_soft_time_limit", 5),
        ("beat_scheduler", "django_celery_beat.schedulers:DatabaseScheduler"),
        ("enable_utc", False),
    ],
)
def test_a_setting_names_the_replacement(celery: Celery, name: str, value: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"setting '{name}' of Celery"):
        celery.conf[name] = value
    with pytest.raises(ImproperlyConfigured, match=f"setting '{name}' of Celery"):
        Celery("other", set_as_current=False, **{name: value})
    celery.conf[name] = True if name == "enable_utc" else None


def test_every_option_and_setting_of_celery_has_a_meaning_none_or_an_error(work: Any) -> None:
    base = pytest.importorskip("celery.app.base", reason="Celery is not installed")
    defaults = importlib.import_module("celery.app.defaults")
    silent = set()
    inner = {"args", "kwargs", "name", "self", "options", "connection", "link"}
    for name in set(inspect.signature(base.Celery.send_task).parameters) - inner:
        try:
            work.apply_async(**{name: None if name == "eta" else 5})
        except Exception:
            continue
        silent.add(name)
    assert silent <= {
        "add_to_parent", "compression", "countdown", "eta", "ignore_result", "producer",
        "publisher", "retries", "retry", "retry_policy", "serializer", "shadow",
    }  # fmt: skip
    conf = Celery("other", set_as_current=False).conf
    for name in defaults.SETTING_KEYS:
        with contextlib.suppress(ImproperlyConfigured):
            conf[name] = "json"
        assert name in KNOWN or not name.startswith(("beat_", "task_"))


@pytest.mark.parametrize("name", ["task_defualt_queue", "task_colour", "beat_schedul"])
def test_an_unknown_setting_of_tasks_or_beat_names_those_that_are_like_it(name: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"setting '{name}' of Celery.*one of"):
        Celery("other", set_as_current=False, **{name: 1})


def test_results_by_id_need_an_id() -> None:
    with pytest.raises(ValueError, match="requires valid id"):
        AsyncResult("")
