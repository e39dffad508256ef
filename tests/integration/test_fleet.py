"""Random fleets on virtual time: nodes of different queues and versions start, stop, die and lose
their store, while handlers end oddly. Each seed is one fleet; a failure prints its history.
`make test-fleets` sets their number in FAIRLEAD_FLEETS.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest

import fairlead
from fairlead import App
from fairlead.engine.lease_names import owners_of
from fairlead.engine.node import Node
from fairlead.engine.settings import LEASE_SECONDS, Intervals
from fairlead.errors import StoreUnavailable
from tests.tiers import seeds

pytestmark = pytest.mark.virtual_time

QUEUES = ("a", "b", "c")
FLEETS = int(os.environ.get("FAIRLEAD_FLEETS", "400"))
VERSIONS = {"old": ("work", "odd"), "new": ("work", "odd", "added")}
SECONDS = 60
"""Length of the disturbed part of a run, in virtual seconds."""
DRAIN = 10.0
LONGEST = 2.0
"""Seconds of the longest task."""
IDLE_SECONDS = 6.0
"""Seconds for which a task may wait while some node could run it. Nodes notice a new node and a dead
owner within this time. Outages of the store do not count."""
ODD = ("raise", "base", "cancel", "nan", "unprintable", "snooze")


class Unprintable(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> NoReturn:
        raise RuntimeError("no text")


class Strange(BaseException):
    """A user's exception that is no subclass of `Exception`."""


@dataclass
class Start:
    """One start of a task."""

    worker: Worker
    at: float


@dataclass(eq=False)
class Worker:
    """One application with its node."""

    number: int
    app: App
    node: Node
    queues: tuple[str, ...]
    names: tuple[str, ...]
    concurrency: int
    running: int = 0
    killed_at: float | None = None
    outage_until: float = 0.0
    task: asyncio.Task[None] | None = None

    @property
    def is_serving(self) -> bool:
        """Whether the node takes tasks."""
        return self.killed_at is None and self.node.not_ready is None

    def can_run(self, queue: str, name: str) -> bool:
        """Return whether the node has a free slot for such a task."""
        is_known = queue in self.queues and name in self.names
        return is_known and self.is_serving and self.running < self.concurrency


@dataclass
class Fleet:
    """A fleet of one seed."""

    url: str
    chance: random.Random
    workers: list[Worker] = field(default_factory=list)
    starts: dict[int, list[Start]] = field(default_factory=lambda: defaultdict(list))
    kinds: dict[int, tuple[str, str]] = field(default_factory=dict)
    """(queue, task name) by number of the task."""
    ids: dict[int, str] = field(default_factory=dict)
    """Id by number of the task."""
    idle: dict[int, float] = field(default_factory=dict)
    """The time since when some node could have run each waiting task."""
    history: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        chance = self.chance
        self.orders = {queue: chance.choice(["fair", "fifo"]) for queue in QUEUES}
        self.partitions = {queue: chance.choice([1, 1, 2, 3]) for queue in QUEUES}
        self.submitter, self.tasks = self._application(VERSIONS["new"], more=chance.random() < 0.3)
        self.submitter.migrate()

    def log(self, what: str) -> None:
        """Note an event."""
        self.history.append(f"{self.loop.time():9.2f} {what}")

    # applications ---------------------------------------------------------------------------------

    def _application(
        self, names: tuple[str, ...], more: bool = False
    ) -> tuple[App, dict[tuple[str, str], Any]]:
        """Return an application and its tasks; with `more`, it declares more partitions than others."""
        app = App(self.url)
        for queue in QUEUES:
            app.queue(queue, order=self.orders[queue], partitions=self.partitions[queue] + more)

        async def work(n: int, seconds: float) -> None:
            with _Running(self, app, n):
                await asyncio.sleep(seconds)

        async def odd(n: int, kind: str) -> None:
            with _Running(self, app, n):
                await asyncio.sleep(0.1)
                if kind == "snooze" and len(self.starts[n]) == 1:
                    raise fairlead.Snooze(1.0)
                self._end_oddly(kind)

        functions: dict[str, Callable[..., Awaitable[None]]] = {
            "work": work,
            "odd": odd,
            "added": work,
        }
        tasks = {
            (queue, name): app.task(
                functions[name], name=f"{queue}.{name}", queue=queue, retry=fairlead.NoRetry()
            )
            for queue in QUEUES
            for name in names
        }
        return app, tasks

    @staticmethod
    def _end_oddly(kind: str) -> None:
        if kind == "raise":
            raise ValueError("as wanted")
        if kind == "base":
            raise Strange
        if kind == "cancel":
            raise asyncio.CancelledError
        if kind == "nan":
            raise fairlead.Retry(after=float("nan"))
        if kind == "unprintable":
            raise Unprintable

    # events ---------------------------------------------------------------------------------------

    async def start(self, queues: tuple[str, ...] | None = None, version: str = "") -> None:
        """Start a node."""
        names = VERSIONS[version or self.chance.choice(["old", "new"])]
        app, _ = self._application(names)
        served = queues or tuple(self.chance.sample(QUEUES, self.chance.randint(1, 3)))
        concurrency = self.chance.randint(1, 4)
        node = app.node(
            queues=served, concurrency=concurrency, drain=DRAIN, intervals=Intervals(gauges=5.0)
        )
        worker = Worker(len(self.workers), app, node, served, names, concurrency)
        self.workers.append(worker)
        worker.task = asyncio.create_task(node.run())
        self.log(f"start {worker.number}: {served} {names} x {concurrency}")
        await node.ready.wait()

    async def stop(self, worker: Worker) -> None:
        """Stop a node in order."""
        self.log(f"stop {worker.number}")
        worker.node.stop()
        assert worker.task is not None
        await worker.task
        worker.killed_at = self.loop.time()
        self._end_process(worker)
        self.log(f"stopped {worker.number}")

    def _end_process(self, worker: Worker) -> None:
        """Release the locks that the kernel releases when a process ends."""
        presence: Any = worker.app.connector.connections.presence
        for descriptor in presence._held.values():
            os.close(descriptor)
        presence._held.clear()

    async def kill(self, worker: Worker) -> None:
        """End a node as kill -9 does: none of its later calls reaches the store."""
        self.log(f"kill {worker.number}")
        worker.killed_at = self.loop.time()
        connections = worker.app.connector.connections
        database: Any = connections.store.database

        async def never(*_: Any, **__: Any) -> NoReturn:
            await asyncio.Event().wait()
            raise AssertionError

        database.run_async = database.read = database.run_quickly = never
        channel: Any = connections.channel
        channel.announce = channel.send = lambda *_: None
        await connections.notifier.close()
        self._end_process(worker)
        assert worker.task is not None
        worker.task.cancel()

    async def lose_store(self, worker: Worker) -> None:
        """Let the store refuse a node for some seconds, sometimes after the store did the work."""
        seconds = self.chance.choice([0.5, 3.0])
        self.log(f"worker {worker.number} loses the store for {seconds} s")
        database: Any = worker.app.connector.connections.store.database
        worker.outage_until = self.loop.time() + seconds
        if "run_async" in vars(database):
            return
        for name in ("run_async", "read", "run_quickly"):
            setattr(database, name, self._refusing(worker, getattr(database, name)))

    def _refusing(
        self, worker: Worker, call: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def refused(*arguments: Any, **more: Any) -> Any:
            if self.loop.time() >= worker.outage_until:
                return await call(*arguments, **more)
            if self.chance.random() < 0.3:
                await call(*arguments, **more)  # only the response is lost
            raise StoreUnavailable("as wanted")

        return refused

    async def submit(self) -> None:
        """Submit a batch of one kind of task."""
        queue = self.chance.choice(QUEUES)
        name = self.chance.choice(["work", "work", "work", "odd", "added"])
        count = self.chance.choice([1, 5, 20])
        task = self.tasks[queue, name].options(
            fairness_key=self.chance.choice(["x", "y", "z"]), priority=self.chance.choice([5, 5, 2])
        )
        drafts = []
        for _ in range(count):
            n = len(self.kinds)
            self.kinds[n] = queue, name
            if name == "odd":
                drafts.append(task.draft(n=n, kind=self.chance.choice(ODD)))
            else:
                seconds = self.chance.choice([0.0, 0.0, 0.1, LONGEST])
                drafts.append(task.draft(n=n, seconds=seconds))
        self.log(f"submit {count} of {queue}.{name}: {len(self.kinds) - count}...")
        handles = await self.submitter.submit_many_async(drafts)
        first = len(self.kinds) - count
        self.ids.update((first + n, handle.id) for n, handle in enumerate(handles))

    # the run --------------------------------------------------------------------------------------

    @property
    def living(self) -> list[Worker]:
        """Workers that were neither killed nor stopped."""
        return [worker for worker in self.workers if worker.killed_at is None]

    async def disturb(self) -> None:
        """Draw events until the time is over."""
        ends = self.loop.time() + SECONDS
        await self.start()
        while self.loop.time() < ends:
            await asyncio.sleep(self.chance.choice([0.0, 0.1, 1.0, 4.0]))
            event = self.chance.random()
            living = self.living
            if event < 0.6:
                await self.submit()
            elif event < 0.75 and len(living) < 4:
                await self.start()
            elif living and event < 0.85:
                await self.kill(self.chance.choice(living))
            elif living and event < 0.93:
                await self.stop(self.chance.choice(living))
            elif living:
                await self.lose_store(self.chance.choice(living))

    async def watch(self) -> None:
        """Check continuously that no handler ends its node, and that no task waits for long
        while a slot is free."""
        while True:
            await asyncio.sleep(0.25)
            now = self.loop.time()
            for worker in self.living:
                assert worker.task is not None
                assert not worker.task.done() or worker.node._stopping.is_set(), (
                    f"node {worker.number} died"
                )
            # A node that loses the store while it stops keeps its leases until they expire.
            if any(worker.outage_until > now - LEASE_SECONDS - 2 for worker in self.workers):
                self.idle.clear()
                continue
            waiting = [n for n in self.kinds if n not in self.starts]
            self.idle = {
                n: self.idle.get(n, now)
                for n in waiting
                if any(worker.can_run(*self.kinds[n]) for worker in self.living)
            }
            late = {n: since for n, since in self.idle.items() if now - since > IDLE_SECONDS}
            free = [
                (worker.number, worker.queues, worker.concurrency - worker.running)
                for worker in self.living
            ]
            kinds = {self.kinds[n]: (n, since) for n, since in late.items()}
            if late:
                await self.show(min(late))
            assert not late, f"at {now} {len(late)} tasks wait: {kinds}; slots: {free}"

    async def show(self, n: int) -> None:
        """Add what the store and each node know about a task to the history."""
        store = self.submitter.store
        if n not in self.ids:
            self.log(f"task {n} is being submitted")
            return
        self.log(f"task {n}: {await store.database.read(store.task(self.ids[n]))}")
        for worker in self.living:
            parts = worker.node.parts
            context, task_id = parts.context, self.ids[n]
            self.log(
                f"worker {worker.number}, {context.name}: owns"
                f" {[tuple(key) for key in parts.ownership.owned]}, knows version"
                f" {parts.intake._known.get(task_id)}, runs it: {task_id in context.in_flight},"
                f" table {len(context.table)}, runs {len(context.in_flight)}"
            )

    async def settle(self) -> None:
        """Start a node for all queues and task names, and wait until all tasks have ended."""
        await self.start(QUEUES, "new")
        store = self.submitter.store
        ends = self.loop.time() + 240
        while self.loop.time() < ends:
            left, _ = await store.database.read(store.unfinished(list(QUEUES)))
            if not left:
                return
            await asyncio.sleep(0.5)
        lost = [n for n in self.kinds if n not in self.starts]
        raise AssertionError(f"{left} tasks are left; never started: {lost}")

    async def check(self) -> None:
        """Check that each task ran once, except after outages, and that each partition has an owner."""
        assert [n for n in self.kinds if n not in self.starts] == []
        for n, starts in self.starts.items():
            again = starts[:-1]
            if self.kinds[n][1] == "odd" and again:
                again = again[1:]  # at most one snooze
            for start in again:
                killed_at = start.worker.killed_at
                excuse = killed_at is not None and killed_at - start.at <= LONGEST + 1
                assert excuse or start.worker.outage_until > start.at - 15, (
                    f"{n} ran again: {starts}"
                )
        await asyncio.sleep(LEASE_SECONDS + 5)
        leases = await self.living[-1].app.connector.connections.coordinator.owners()
        owners = owners_of(leases)
        names = {worker.node.settings.name for worker in self.living}
        for queue in QUEUES:
            for partition in range(self.partitions[queue]):
                assert owners.get(fairlead.model.PartitionKey(queue, partition)) in names


class _Running:
    """One run of a task, which counts as running on its worker."""

    def __init__(self, fleet: Fleet, app: App, n: int) -> None:
        self._fleet, self._n = fleet, n
        [self._worker] = [worker for worker in fleet.workers if worker.app is app]

    def __enter__(self) -> None:
        if self._worker.killed_at is not None:
            raise asyncio.CancelledError  # a dead process starts nothing
        self._worker.running += 1
        self._fleet.starts[self._n].append(Start(self._worker, self._fleet.loop.time()))

    def __exit__(self, *_: object) -> None:
        self._worker.running -= 1


@pytest.mark.parametrize("seed", seeds([149, *range(149), *range(150, FLEETS)], few=12))
async def test_a_random_fleet_runs_every_task_once(sqlite_url: str, seed: int) -> None:
    fleet = Fleet(sqlite_url, random.Random(seed))
    watching = asyncio.create_task(fleet.watch())
    try:
        await fleet.disturb()
        await fleet.settle()
        await fleet.check()
        assert not watching.done() or watching.result()
    except BaseException as error:
        if watching.done() and not watching.cancelled() and watching.exception() is not None:
            error = watching.exception() or error
        raise AssertionError(f"seed {seed}: {error}\n" + "\n".join(fleet.history)) from error
    finally:
        watching.cancel()
        for worker in fleet.living:
            worker.node.stop()
        await asyncio.wait([w.task for w in fleet.living if w.task is not None], timeout=60)
        for worker in fleet.workers:
            worker.app.close()
        fleet.submitter.close()
