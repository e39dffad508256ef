"""Code that runs at the call under Celery itself and under the shim: equal results, and hooks in the same
order."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.contrib.celery import app as app_module
from fairlead.contrib.celery.schedules import crontab
from fairlead.declare.periodic import CronTimes


def names(root: str) -> SimpleNamespace:
    """Return the names of Celery from its package or from the shim."""
    package = importlib.import_module(root)
    inner = {
        name: importlib.import_module(f"{root}.{name}") for name in ("exceptions", "schedules")
    }
    return SimpleNamespace(**{each: getattr(package, each) for each in EXPORTED}, **inner)


EXPORTED = ("Celery", "Task", "chain", "chord", "group")


def retries(c: SimpleNamespace, app: Any, seen: list[Any]) -> None:
    @app.task(bind=True, max_retries=2, name="work")
    def work(self: Any, fails: int) -> int:
        seen.append(("run", self.request.retries, self.request.is_eager, self.request.args))
        if self.request.retries < fails:
            raise self.retry(exc=ValueError("no"), countdown=1)
        return self.request.retries

    for fails in (0, 2, 5):
        result = work.apply((fails,))
        seen.append((fails, result.state, repr(result.result), result.ready(), result.failed()))


def autoretries(c: SimpleNamespace, app: Any, seen: list[Any]) -> None:
    @app.task(bind=True, name="work", autoretry_for=(OSError,), retry_kwargs={"max_retries": 1})
    def work(self: Any, kind: str) -> None:
        seen.append((kind, self.request.retries))
        raise {"os": OSError, "value": ValueError}[kind](kind)

    for kind in ("os", "value"):
        result = work.apply((kind,))
        seen.append((result.state, repr(result.result)))


def hooks(c: SimpleNamespace, app: Any, seen: list[Any]) -> None:
    class Base(c.Task):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(("call", list(args)))
            return super().__call__(*args, **kwargs)

        def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            seen.append(("failure", repr(exc), list(args), kwargs, "Traceback" in einfo.traceback))

    @app.task(base=Base, name="work")
    def work(x: int, *, y: int = 1) -> float:
        return x / y

    for y in (2, 0):
        work.apply((1,), {"y": y})


def canvas(c: SimpleNamespace, app: Any, seen: list[Any]) -> None:
    @app.task(name="add")
    def add(x: Any, y: Any) -> Any:
        return x + y

    @app.task(name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    seen.append(add.s(1, 2).delay().get())
    seen.append((add.s(1) | add.s(3)).delay(5).get())
    seen.append(c.chain(add.s(1, 2), add.si(5, 5), add.s(1))().get())
    seen.append(c.group(add.s(n, n) for n in range(3))().get())
    seen.append(c.group(add.s(n) for n in range(3)).delay(10).get())
    seen.append(c.chord([add.s(n, 1) for n in range(4)])(total.s()).get())
    seen.append((c.group(add.s(1, 1), add.s(2, 2)) | total.s() | add.s(100)).delay().get())
    seen.append((add.s(1, 1) | c.group(add.s(1), add.s(2)) | total.s()).delay().get())
    seen.append(add.s(1, y=2).set(countdown=5).delay().get())
    clone = add.s(2).clone((1,), {})
    seen.append((list(clone.args), clone.kwargs, clone.task))
    seen.append(add.s(1, 2).set(queue="x").options)


def errors(c: SimpleNamespace, app: Any, seen: list[Any]) -> None:
    @app.task(name="fail")
    def fail() -> None:
        raise KeyError("missing")

    result = fail.delay()
    seen.append((result.state, repr(result.get(propagate=False)), "KeyError" in result.traceback))
    for call in (result.get, lambda: fail.apply(throw=True), fail):
        with pytest.raises(KeyError):
            call()
    with pytest.raises(TypeError):
        fail.delay(1)

    @app.task(bind=True, name="retried", max_retries=0)
    def retried(self: Any) -> None:
        self.retry()

    result = retried.delay()
    seen.append((result.state, type(result.result).__name__))


def direct(c: SimpleNamespace, app: Any, seen: list[Any]) -> None:
    @app.task(bind=True, name="work", rate_limit="3/m", queue="x")
    def work(self: Any, x: int) -> Any:
        """Say something."""
        return x, self.request.called_directly, self.request.id, self.name

    seen.append((work(5), work.run(6), work.name, work.__doc__, work.rate_limit, work.queue))
    seen.append(("work" in app.tasks, work.max_retries, work.default_retry_delay))


SCENARIOS: tuple[Callable[[SimpleNamespace, Any, list[Any]], None], ...] = (
    retries,
    autoretries,
    hooks,
    canvas,
    errors,
    direct,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_the_shim_does_what_celery_does(
    scenario: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("celery", reason="Celery is not installed: pip install celery")
    monkeypatch.setattr(app_module, "_shared", [])
    monkeypatch.setenv("FAIRLEAD_URL", f"sqlite:///{tmp_path}/tasks.db")
    found: list[list[Any]] = []
    for root in ("celery", "fairlead.contrib.celery"):
        c = names(root)
        app = c.Celery("shop", set_as_current=True)
        app.conf.task_always_eager = True
        seen: list[Any] = []
        scenario(c, app, seen)
        found.append(seen)
    assert found[0] and found[0] == found[1]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"minute": 0, "hour": "*/3"},
        {"minute": "*/15", "hour": "8-17", "day_of_week": "mon-fri"},
        {"minute": 30, "hour": [2, 14], "day_of_month": "1,15"},
        {"minute": 0, "hour": 0, "day_of_month": 1, "month_of_year": "*/3"},
        {"minute": 5, "hour": 4, "day_of_week": 0},
        {"minute": 5, "hour": 4, "day_of_week": "sun,thursday"},
    ],
)
def test_a_crontab_is_due_at_the_times_of_celerys(given: dict[str, Any]) -> None:
    celery = pytest.importorskip("celery.schedules", reason="Celery is not installed")
    start = datetime(2026, 1, 30, 7, 3, tzinfo=UTC)
    app = importlib.import_module("celery").Celery("x", set_as_current=False)
    theirs, at = [], start
    for _ in range(30):
        schedule = celery.crontab(**given, app=app, nowfun=lambda at=at: at)
        wait = schedule.remaining_estimate(at)
        at = (at + wait + timedelta(microseconds=1)).replace(microsecond=0)
        theirs.append(at)
    ours = CronTimes(crontab(**given).expression, "UTC").after(start)
    assert [next(ours) for _ in range(30)] == theirs
