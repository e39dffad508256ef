"""The demo: several tenants, several kinds of task, failures and retries, on a temporary SQLite
file."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
import os
import random
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import msgspec

from fairlead.app import App
from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import MICROS
from fairlead.core.policies.retry import Exponential
from fairlead.declare.current import current_task
from fairlead.declare.task import Draft, Task
from fairlead.errors import ConfigurationError, FairleadError
from fairlead.lab.workers import WorkerProcesses
from fairlead.model import Outcome, State
from fairlead.model.history import ATTEMPT_FIELDS, START, Position
from fairlead.ports.statements import Row, Statement, Steps

MODULE = "fairlead.lab.demo:app"

TENANTS = {"acme": 12, "globex": 5, "initech": 2, "umbrella": 1}
"""Shares of the tasks, by tenant: one tenant floods the others."""

_MAX_ATTEMPTS = 3
_ALWAYS_FAILS = 99
_TICK_SECONDS = 0.1
_MOST_EXTRA_SECONDS = 60.0
"""Seconds after the last submit after which an unfinished demo stops with an error."""


_BATCH = 10_000
_COUNTS = "SELECT outcome, next_state, count(*) FROM fairlead_attempts GROUP BY outcome, next_state"
_END = Position(0, 1 << 62)


class DemoUnfinished(FairleadError):
    """The workload did not finish in time."""


class Planned(msgspec.Struct, frozen=True):
    """One task of the workload, drawn from the seed."""

    at: float
    """Seconds from the start to the submit."""
    tenant: str
    name: str
    fails: int
    """Number of its runs that fail."""
    size: int
    """Work of the handler: milliseconds of waiting, or rounds of computing."""


class TenantResult(msgspec.Struct, frozen=True):
    """Results of one tenant, or of all tenants if `tenant` is None."""

    tenant: str | None
    tasks: int
    attempts: int
    failures: int
    """Runs that failed; most of them were retried."""
    errors: int
    """Tasks that failed for good and wait in ERROR for a person."""
    tasks_per_s: float
    p50_ms: float | None
    """Pick-up delay: milliseconds from the time a run was due to its start."""
    p99_ms: float | None


class DemoResult(msgspec.Struct, frozen=True):
    """The result of a demo."""

    seed: int
    workers: int
    seconds: float
    total: TenantResult
    tenants: list[TenantResult]
    kept: str | None
    """Path of the SQLite file, if it was kept."""


class DemoProgress(msgspec.Struct, frozen=True):
    """Progress of a demo."""

    seconds: float
    planned: int
    submitted: int
    done: int
    failures: int
    errors: int


@dataclass(frozen=True)
class DemoSettings:
    """Size of the workload: `tasks` in all, submitted over `seconds`."""

    tasks: int = 3000
    seconds: float = 6.0
    seed: int = 1
    workers: int = 1
    keep: Path | None = None


def demo_app(url: str | None = None) -> App:
    """Return the application of the demo; its workers load it as `fairlead.lab.demo:app`."""
    app = App(url, name="demo", lake="")
    retry = Exponential(max_attempts=_MAX_ATTEMPTS, first=0.2)

    @app.task(queue="mail", retry=retry)
    async def send_invoice(fails: int, size: int) -> None:
        await asyncio.sleep(size / 1000)
        _fail(fails, "the mail server is busy")

    @app.task(queue="files", retry=retry)
    def checksum(fails: int, size: int) -> str:
        digest = hashlib.sha256(b"x" * 65_536 * size).hexdigest()
        _fail(fails, "the disk returned a bad block")
        return digest

    @app.task(queue="partners", retry=retry)
    async def sync_account(fails: int, size: int) -> None:
        await asyncio.sleep(size / 500)
        _fail(fails, "the partner responded with 503")

    return app


def _fail(fails: int, text: str) -> None:
    task = current_task()
    if task is not None and task.attempt <= fails:
        raise ConnectionError(text)


def workload(settings: DemoSettings) -> list[Planned]:
    """Return the tasks in the order of their submits. Equal seeds give equal tasks."""
    source = random.Random(settings.seed)
    times = sorted(source.uniform(0, settings.seconds) for _ in range(settings.tasks))
    tenants = source.choices(list(TENANTS), list(TENANTS.values()), k=settings.tasks)
    names = source.choices(
        ["send_invoice", "checksum", "sync_account"], [5, 3, 2], k=settings.tasks
    )
    fails = source.choices([0, 1, 2, _ALWAYS_FAILS], [88, 8, 3, 1], k=settings.tasks)
    sizes = [source.randint(1, 10) for _ in range(settings.tasks)]
    return [Planned(*planned) for planned in zip(times, tenants, names, fails, sizes, strict=True)]


def run_demo(
    settings: DemoSettings, on_progress: Callable[[DemoProgress], None] = lambda _progress: None
) -> DemoResult:
    """Run the demo to its end. Raise ConfigurationError if the file to keep exists, WorkerEnded if
    a worker ends by itself, DemoUnfinished if the tasks take too long."""
    with _demo_store(settings) as (app, folder):
        with _demo_workers(app, settings, folder) as workers:
            begin = app.clock.now()
            _DemoSubmitter(app, settings, on_progress).run(workers)
        return _result(app, settings, begin)


@contextmanager
def endless_demo(settings: DemoSettings) -> Iterator[App]:
    """Run the workload again and again, each time with the next seed, until the body ends. Raise
    ConfigurationError if the file to keep exists, WorkerEnded if a worker does not start."""
    with _demo_store(settings) as (app, folder), _demo_workers(app, settings, folder):
        stop = threading.Event()
        thread = threading.Thread(
            target=_submit_rounds, args=(app, settings, stop), name="fairlead-demo"
        )
        thread.start()
        try:
            yield app
        finally:
            stop.set()
            thread.join()


@contextmanager
def _demo_store(settings: DemoSettings) -> Iterator[tuple[App, Path]]:
    """Yield the application on its new file, and a temporary folder."""
    if settings.keep is not None and os.path.exists(settings.keep):
        raise ConfigurationError(
            f"{settings.keep} exists: the demo needs a file of its own; choose another name"
        )
    with tempfile.TemporaryDirectory(prefix="fairlead-demo-") as name:
        folder = Path(name)
        app = demo_app(f"sqlite:///{settings.keep or folder / 'tasks.db'}")
        try:
            app.migrate()
            yield app, folder
        finally:
            app.close()


@contextmanager
def _demo_workers(app: App, settings: DemoSettings, folder: Path) -> Iterator[WorkerProcesses]:
    environment = {"FAIRLEAD_URL": app.url}
    with WorkerProcesses(MODULE, settings.workers, folder, environment) as workers:
        workers.wait_until_up(app)
        yield workers


def _submit_rounds(app: App, settings: DemoSettings, stop: threading.Event) -> None:
    for seed in itertools.count(settings.seed):
        submitter = _DemoSubmitter(app, dataclasses.replace(settings, seed=seed), lambda _now: None)
        begin = app.clock.monotonic()
        while not submitter.has_submitted:
            submitter.submit_due(app.clock.monotonic() - begin)
            if stop.wait(_TICK_SECONDS):
                return


class _DemoSubmitter:
    """Submit the workload at its times, and wait until every task has ended."""

    def __init__(
        self, app: App, settings: DemoSettings, on_progress: Callable[[DemoProgress], None]
    ) -> None:
        self._app = app
        self._settings = settings
        self._on_progress = on_progress
        self._planned = workload(settings)
        self._submitted = 0
        self._tasks: dict[tuple[str, str], Task[..., Any]] = {}
        self._pause = threading.Event()

    def run(self, workers: WorkerProcesses) -> None:
        clock = self._app.clock
        begin = clock.monotonic()
        while not self.has_submitted or has_unfinished(self._app):
            now = clock.monotonic() - begin
            self.submit_due(now)
            workers.check()
            self._on_progress(self._progress(now))
            if now > self._settings.seconds + _MOST_EXTRA_SECONDS:
                raise DemoUnfinished(
                    f"not finished after {now:.0f} s; add --keep FILE, and run `fairlead doctor`"
                    " on it"
                )
            self._pause.wait(_TICK_SECONDS)
        self._on_progress(self._progress(clock.monotonic() - begin))

    @property
    def has_submitted(self) -> bool:
        return self._submitted >= len(self._planned)

    def submit_due(self, now: float) -> None:
        first, planned = self._submitted, self._planned
        while self._submitted < len(planned) and planned[self._submitted].at <= now:
            self._submitted += 1
        self._app.submit_many([self._draft(task) for task in planned[first : self._submitted]])

    def _draft(self, planned: Planned) -> Draft:
        key = planned.tenant, planned.name
        task = self._tasks.get(key)
        if task is None:
            handler = self._app.handlers[planned.name]
            task = self._tasks[key] = Task(self._app, handler, handler.function).options(
                fairness_key=planned.tenant
            )
        return task.draft(fails=planned.fails, size=planned.size)

    def _progress(self, seconds: float) -> DemoProgress:
        ended = _counts(self._app)
        done = sum(count for (outcome, _), count in ended.items() if outcome == Outcome.DONE)
        errors = sum(count for (_, state), count in ended.items() if state == State.ERROR)
        return DemoProgress(
            seconds, len(self._planned), self._submitted, done, sum(ended.values()) - done, errors
        )


def _result(app: App, settings: DemoSettings, begin: int) -> DemoResult:
    delays: dict[str | None, list[int]] = defaultdict(list)
    attempts: Counter[str | None] = Counter()
    failures: Counter[str | None] = Counter()
    errors: Counter[str | None] = Counter()
    tasks = Counter[str | None](planned.tenant for planned in workload(settings))
    tasks[None] = settings.tasks
    end = begin
    for run in _runs(app):
        end = max(end, run["finished_at"])
        for tenant in (run["fairness_key"], None):
            attempts[tenant] += 1
            failures[tenant] += run["outcome"] != Outcome.DONE
            errors[tenant] += run["next_state"] == State.ERROR
            if run["ready_at"] is not None and run["started_at"] is not None:
                delays[tenant].append(max(0, run["started_at"] - run["ready_at"]))
    seconds = max(end - begin, 1) / MICROS

    def of(tenant: str | None) -> TenantResult:
        p50, p99 = (_percentile_ms(delays[tenant], share) for share in (0.5, 0.99))
        rate = round(tasks[tenant] / seconds, 1)
        return TenantResult(
            tenant,
            tasks[tenant],
            attempts[tenant],
            failures[tenant],
            errors[tenant],
            rate,
            p50,
            p99,
        )

    kept = None if settings.keep is None else str(settings.keep)
    return DemoResult(
        settings.seed,
        settings.workers,
        round(seconds, 2),
        of(None),
        [of(tenant) for tenant in TENANTS if tasks[tenant]],
        kept,
    )


def has_unfinished(app: App) -> bool:
    """Return whether a task is left to run or to retry. A task in ERROR waits for a person."""
    store = app.sql_store
    return store.database.read_now(store.has_unfinished(sorted(app.queues)))


def _counts(app: App) -> dict[tuple[str, str], int]:
    """Return the number of ended attempts, by (outcome, next state)."""
    rows = app.sql_store.database.read_now(_rows(_COUNTS))
    return {(outcome, next_state): count for outcome, next_state, count in rows}


def _rows(sql: str) -> Steps[Sequence[Row]]:
    return (yield Statement(sql))


def _runs(app: App) -> Iterator[dict[str, Any]]:
    """Yield every run of the history, in batches of the store."""
    history, after = SqlHistory(app.sql_store.database), START
    while rows := history.database.read_now(history.attempts(after, _END, _BATCH)):
        yield from (dict(zip(ATTEMPT_FIELDS, row, strict=True)) for row in rows)
        after = Position(*rows[-1][:2])


def _percentile_ms(micros: list[int], share: float) -> float | None:
    """Return a nearest-rank percentile in milliseconds; None without values."""
    ordered = sorted(micros)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] / 1000 if ordered else None


app = demo_app()
