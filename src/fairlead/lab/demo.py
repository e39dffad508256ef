"""The demo: four promises, each shown by real worker processes on one SQLite file."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from fairlead.app import App
from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import MICROS
from fairlead.core.limits.limits import Limit
from fairlead.core.policies.retry import Exponential
from fairlead.declare.current import current_task
from fairlead.declare.task import Task
from fairlead.errors import ConfigurationError, FairleadError
from fairlead.lab.workers import WorkerProcess
from fairlead.model import Outcome, State
from fairlead.model.history import ATTEMPT_FIELDS, START, Position

MODULE = "fairlead.lab.demo:app"

FLOODING, *SMALL = TENANTS = ("acme", "globex", "initech", "umbrella")
"""Tenants: the first one floods the others."""
FLOOD, FEW = 600, 20
"""Tasks of the flooding tenant, and of each other one, in each order."""
SLOTS = 4
"""Tasks of a queue that run at once."""
PARCELS = 12
"""Tasks of the worker that is killed."""

_SEND_SECONDS, _PACK_SECONDS = 0.015, 0.4
_FAILS = [0, 0, 0, 0, 0, 1, 2, 99]
"""Runs of a task of `sync_account` that fail, by turns; the last one fails for good."""
_TICK_SECONDS = 0.05
_MOST_SECONDS = 60.0
"""Seconds after which a part of the demo that is not finished ends with an error."""
_BATCH = 10_000
_END = Position(0, 1 << 62)


class DemoUnfinished(FairleadError):
    """The tasks did not end in time."""


class Fairness(msgspec.Struct, frozen=True, tag=True):
    """Median waits of each tenant, in seconds from the first run on, in both orders."""

    fifo_s: dict[str, float]
    fair_s: dict[str, float]


class Transactions(msgspec.Struct, frozen=True, tag=True):
    """Rows and tasks of one order that was rolled back and one that was committed."""

    orders: int
    tasks: int


class Kill(msgspec.Struct, frozen=True, tag=True):
    """A worker was killed while `running` tasks of `tasks` ran."""

    tasks: int
    running: int
    done: int
    lost_runs: int
    """Runs that the kill ended, and that were repeated."""


class Tenant(msgspec.Struct, frozen=True):
    """Runs of a tenant in the history."""

    tenant: str
    runs: int
    failed_runs: int
    needs_person: int
    """Tasks that failed for good."""
    worker_s: float
    """Seconds of all runs."""


class History(msgspec.Struct, frozen=True, tag=True):
    """The history of attempts, by tenant."""

    tenants: list[Tenant]


Proof = Fairness | Transactions | Kill | History


def demo_app(url: str | None = None) -> App:
    """Return the application of the demo; its workers load it as `fairlead.lab.demo:app`."""
    app = App(url, name="demo", lake="")
    app.queue("fifo", order="fifo", concurrency=Limit(SLOTS))
    app.queue("fair", concurrency=Limit(SLOTS))
    app.queue("parcels", concurrency=Limit(SLOTS))

    async def send() -> None:
        await asyncio.sleep(_SEND_SECONDS)

    for queue in ("fifo", "fair"):
        app.task(queue=queue, name=f"send_{queue}")(send)

    @app.task(queue="orders")
    async def confirm(order: int) -> None: ...

    @app.task(queue="parcels")
    async def pack(parcel: int) -> None:
        await asyncio.sleep(_PACK_SECONDS)

    @app.task(queue="partners", retry=Exponential(max_attempts=3, first=0.2))
    async def sync_account(fails: int) -> None:
        await asyncio.sleep(_SEND_SECONDS)
        task = current_task()
        if task is not None and task.attempt <= fails:
            raise ConnectionError("the partner responded with 503")

    return app


def run_demo(keep: Path | None = None) -> Iterator[Proof]:
    """Run the demo, and yield the proof of each promise when it stands. Raise ConfigurationError if
    the file to keep exists, WorkerEnded if a worker ends by itself, DemoUnfinished if tasks take
    too long."""
    with _store(keep) as (app, folder):
        # Before the worker starts, so that the flood is there before the others.
        _submit_flood(app)
        with _worker(app, folder) as worker:
            _wait_until_empty(app, worker)
            yield _fairness(app)
            yield _transactions(app, worker)
            _task(app, "pack").submit_many([{"parcel": number} for number in range(PARCELS)])
            _wait(lambda: _count(app, "PROCESSING") == SLOTS, worker)
            worker.kill()
            running = _count(app, "PROCESSING")
        with _worker(app, folder) as worker:
            _wait_until_empty(app, worker)
            runs = [run["outcome"] for run in _runs(app) if run["name"] == "pack"]
            yield Kill(PARCELS, running, runs.count(Outcome.DONE), runs.count(Outcome.LOST))
            submit_accounts(app, random.Random(1))
            _wait_until_empty(app, worker)
            yield _history(app)


@contextmanager
def endless_demo(keep: Path | None) -> Iterator[App]:
    """Submit tasks of all tenants again and again, until the body ends. Raise ConfigurationError if
    the file to keep exists, WorkerEnded if the worker does not start."""
    with _store(keep) as (app, folder), _worker(app, folder):
        stop = threading.Event()

        def submit() -> None:
            source = random.Random(1)
            while not stop.is_set():
                submit_accounts(app, source)
                if _count(app, "SUBMITTED") < FLOOD:
                    _submit_flood(app)
                stop.wait(1)

        thread = threading.Thread(target=submit, name="fairlead-demo")
        thread.start()
        try:
            yield app
        finally:
            stop.set()
            thread.join()


@contextmanager
def _store(keep: Path | None) -> Iterator[tuple[App, Path]]:
    """Yield the application on its new file, and a temporary folder."""
    if keep is not None and os.path.exists(keep):
        raise ConfigurationError(
            f"{keep} exists: the demo needs a file of its own; choose another name"
        )
    with tempfile.TemporaryDirectory(prefix="fairlead-demo-") as name:
        folder = Path(name)
        app = demo_app(f"sqlite:///{keep or folder / 'tasks.db'}")
        try:
            app.migrate()
            yield app, folder
        finally:
            app.close()


@contextmanager
def _worker(app: App, folder: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(MODULE, folder, {"FAIRLEAD_URL": app.url}) as worker:
        worker.wait_until_up(app)
        yield worker


# the four promises --------------------------------------------------------------------------------


def _submit_flood(app: App) -> None:
    for queue in ("fifo", "fair"):
        task = _task(app, f"send_{queue}")
        for tenant in TENANTS:
            count = FLOOD if tenant == FLOODING else FEW
            task.options(fairness_key=tenant).submit_many([{}] * count)


def _fairness(app: App) -> Fairness:
    runs, waits = _runs(app), defaultdict[tuple[str, str], list[int]](list)
    begin = min(run["started_at"] for run in runs)
    for run in runs:
        waits[run["queue"], run["fairness_key"]].append(run["started_at"] - begin)
    return Fairness(
        *(
            {tenant: round(median(waits[queue, tenant]) / MICROS, 3) for tenant in TENANTS}
            for queue in ("fifo", "fair")
        )
    )


def _transactions(app: App, worker: WorkerProcess) -> Transactions:
    confirm = _task(app, "confirm")
    path = app.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        for order, is_paid in ((1, False), (2, True)):
            try:
                with app.transaction(connection):
                    connection.execute("INSERT INTO orders VALUES (?)", (order,))
                    confirm.options(connection=connection).submit(order=order)
                    if not is_paid:
                        raise ValueError("the card was declined")
            except ValueError:
                pass  # both writes are rolled back
        _wait_until_empty(app, worker)
        (orders,) = connection.execute("SELECT count(*) FROM orders").fetchone()
    return Transactions(orders, sum(run["name"] == "confirm" for run in _runs(app)))


def submit_accounts(app: App, source: random.Random) -> None:
    """Submit tasks of all tenants, of which some fail."""
    for tenant in TENANTS:
        fails = [{"fails": source.choice(_FAILS)} for _ in range(FEW)]
        _task(app, "sync_account").options(fairness_key=tenant).submit_many(fails)


def _history(app: App) -> History:
    runs, failed, errors = Counter[str](), Counter[str](), Counter[str]()
    micros = Counter[str]()
    for run in _runs(app):
        tenant = run["fairness_key"]
        runs[tenant] += 1
        failed[tenant] += run["outcome"] != Outcome.DONE
        errors[tenant] += run["next_state"] == State.ERROR
        micros[tenant] += run["finished_at"] - (run["started_at"] or run["finished_at"])
    return History(
        [
            Tenant(each, runs[each], failed[each], errors[each], round(micros[each] / MICROS, 2))
            for each in TENANTS
        ]
    )


# the store ----------------------------------------------------------------------------------------


def _task(app: App, name: str) -> Task[..., Any]:
    handler = app.handlers[name]
    return Task(app, handler, handler.function)


def _wait(is_so: Callable[[], bool], worker: WorkerProcess) -> None:
    deadline = time.monotonic() + _MOST_SECONDS
    while not is_so():
        worker.check()
        if time.monotonic() > deadline:
            raise DemoUnfinished(
                f"not finished after {_MOST_SECONDS:.0f} s; add --keep FILE, and run `fairlead"
                " doctor` on it"
            )
        time.sleep(_TICK_SECONDS)


def _wait_until_empty(app: App, worker: WorkerProcess) -> None:
    _wait(lambda: not has_unfinished(app), worker)


def has_unfinished(app: App) -> bool:
    """Return whether a task is left to run or to retry. A task in ERROR waits for a person."""
    store = app.sql_store
    return store.database.read_now(store.has_unfinished(sorted(app.queues)))


def _count(app: App, state: str) -> int:
    return len(app.management.find(state=state, limit=2 * FLOOD))


def _runs(app: App) -> Sequence[dict[str, Any]]:
    """Return every run of the history."""
    history, after = SqlHistory(app.sql_store.database), START
    found: list[dict[str, Any]] = []
    while rows := history.database.read_now(history.attempts(after, _END, _BATCH)):
        found += (dict(zip(ATTEMPT_FIELDS, row, strict=True)) for row in rows)
        after = Position(*rows[-1][:2])
    return found


app = demo_app()
