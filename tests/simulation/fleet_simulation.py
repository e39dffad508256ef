"""A random fleet of workers on virtual time: nodes of different queues, versions and applications
start, stop, hang, die and lose their store, while handlers end oddly and limits hold tasks back.

A fleet is a seed: everything is drawn from it. Its promises are checked all the time
(`tests.simulation.fleet_promises`).

    python -m tests.simulation.fleet_simulation SEED [--people]
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import fairlead
from fairlead import App
from fairlead.clock import MICROS, SYSTEM_CLOCK, to_datetime
from fairlead.core.ids import IdSource
from fairlead.declare.arguments import Arguments
from fairlead.engine.leases import owners_of
from fairlead.model import PartitionKey
from fairlead.ports.notification import Notification
from tests.integration.odd_endings import ASYNC_FAILING, ASYNC_RETURNING, RAISED
from tests.simulation.fleet_jobs import Job, Run
from tests.simulation.fleet_loop import FleetLoop, current_process
from tests.simulation.fleet_people import People
from tests.simulation.fleet_plan import DELAYS, KEYS, LENGTHS, NEW, ODD, OLD, Plan, Scope
from tests.simulation.fleet_promises import Broken, Promises
from tests.simulation.fleet_store import Link, Machine
from tests.simulation.fleet_worker import FleetWatchdog, Worker
from tests.virtual_loop import VirtualTime, virtual_system_clock

LOOK_EVERY = 0.5
"""Seconds between two checks of the promises."""
SETTLE_SECONDS = 300.0
"""Seconds within which everything has run, after the last event."""
BEGAN = 1_750_000_000_000_000
"""Microseconds since the epoch at which every run begins."""


class Failed(Exception):
    """Raised for a broken promise, with the seed and the history of its fleet."""


class Fleet:
    """The fleet of one seed."""

    def __init__(self, plan: Plan, history: list[str]) -> None:
        """`history`: takes a line for each event."""
        self.plan = plan
        self.chance = plan.chance
        self.machine = Machine(self.chance, self.plan.latency, self.plan.loss)
        self.workers: list[Worker] = []
        self.jobs: list[Job] = []
        self.paused: dict[str, float] = {}
        """Time of the pause, by paused queue."""
        self.history = history
        self.promises = Promises(self)
        self._keys: defaultdict[tuple[str, str], list[Job]] = defaultdict(list)
        """Jobs by queue and ordering key."""
        self._unstarted: dict[Job, None] = {}
        self._loop = asyncio.get_running_loop()
        self._broken: Broken | None = None
        """First promise that a start has broken."""
        self._background: set[asyncio.Task[None]] = set()
        self._handlers = self._make_handlers()
        self._submitter = App("sqlite:///fleet", lake="")
        self._submitter.connector.use(self.machine.connections(Link(self.machine)))
        self._tasks: dict[tuple[str, str], Any] = {}
        self._declare(self._submitter, NEW, [*self.plan.queues], is_submitter=True)
        self.people = People(self, self._submitter.management)

    # what others see ------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds of the loop."""
        return self._loop.time()

    @property
    def living(self) -> list[Worker]:
        """Workers whose process lives."""
        return [worker for worker in self.workers if worker.is_living]

    def limits(self, job: Job) -> list[tuple[Scope, int, bool]]:
        """Return the limits of a job."""
        return self.plan.queues[job.queue].limits(job.name, job.fairness_key)

    def of_key(self, job: Job) -> Sequence[Job]:
        """Return the jobs with the ordering key of this one, in order."""
        return () if job.ordering_key is None else self._keys[job.queue, job.ordering_key]

    def unstarted(self) -> Iterator[Job]:
        """Yield the committed jobs that have never started."""
        return (job for job in self._unstarted if job.id is not None)

    def can_run(self, job: Job) -> bool:
        """Return whether some node could start the job now."""
        is_limited = self.plan.queues[job.queue].kind == "rate"
        if job.queue in self.paused or is_limited or job.due_at > self.now:
            return False
        if any(not each.is_over for each in self.of_key(job) if each.number < job.number):
            return False
        limits = self.limits(job)
        living = self.living
        if any(
            sum(worker.counts[scope] for worker in living) >= most
            for scope, most, is_cluster_wide in limits
            if is_cluster_wide
        ):
            return False
        return any(
            worker.has_slot(job)
            and all(worker.counts[scope] < most for scope, most, is_wide in limits if not is_wide)
            for worker in living
        )

    def owners(self) -> dict[PartitionKey, str]:
        """Return the name of the owner of each partition that has one."""
        now = SYSTEM_CLOCK.now()
        sql = (
            "SELECT name, owner FROM fairlead_leases JOIN fairlead_holders USING (owner)"
            " WHERE expires_at > ?"
        )
        return owners_of(dict(self.machine.database.execute(sql, (now,)).fetchall()))

    def show(self, job: Job) -> str:
        """Return a line about a job and its runs."""
        runs = [(run.worker.name, round(run.at, 2), run.ended_at) for run in job.runs]
        return f"task {job.number} ({job.queue}.{job.name} {job.how} {job.ordering_key}) {runs}"

    def log(self, what: str) -> None:
        """Note an event."""
        self.history.append(f"{self.now:9.2f} {what}")

    # declarations ---------------------------------------------------------------------------------

    def _declare(
        self, app: App, names: Sequence[str], queues: Sequence[str], is_submitter: bool = False
    ) -> None:
        for name in queues:
            plan = self.plan.queues[name]
            version = "submitter" if is_submitter else "new" if names is NEW else "old"
            app.queue(
                name,
                order=plan.order,
                cost=plan.cost,
                partitions=plan.partitions + self.plan.more_partitions.get(version, 0),
                concurrency=None if is_submitter else plan.limit(),
            )
            for task in names:
                declared = app.task(
                    self._handlers[task],
                    name=f"{name}.{task}",
                    queue=name,
                    retry=fairlead.NoRetry() if task == "odd" else fairlead.Fixed(0.5, 20),
                    transactional=task == "joined",
                    concurrency=None if is_submitter else plan.limit_of_task(task),
                )
                if is_submitter:
                    self._tasks[name, task] = declared

    def _make_handlers(self) -> dict[str, Callable[..., Any]]:
        async def work(n: int) -> None:
            with self._running(n) as job:
                await asyncio.sleep(job.seconds)

        async def flaky(n: int) -> None:
            with self._running(n) as job:
                await asyncio.sleep(job.seconds)
                if job.ended_runs < job.fails:
                    raise ValueError("as wanted")

        async def odd(n: int) -> None:
            with self._running(n) as job:
                await asyncio.sleep(0.1)
                await _end_oddly(job)

        async def joined(n: int, connection: Any) -> None:
            with self._running(n):
                connection.execute("INSERT INTO effects VALUES (?)", (n,))
                await asyncio.sleep(0.01)

        return {"work": work, "added": work, "flaky": flaky, "odd": odd, "joined": joined}

    @contextmanager
    def _running(self, n: int) -> Iterator[Job]:
        """Note one run of a job on the present process."""
        process = current_process()
        assert process is not None
        worker, job = FleetWatchdog.workers[process], self.jobs[n]
        if not worker.is_living:
            raise asyncio.CancelledError  # a dead process starts nothing
        run = Run(worker, self.now)
        job.runs.append(run)
        self._unstarted.pop(job, None)
        self.log(f"{worker.name} runs {n}")
        worker.running += 1
        scopes = job.scopes
        worker.counts.update(scopes)
        try:
            self.promises.on_start(job, run)
        except Broken as broken:
            self._broken = self._broken or broken
        try:
            yield job
        finally:
            worker.running -= 1
            worker.counts.subtract(scopes)
            if worker.is_living:
                run.ended_at = self.now

    # events ---------------------------------------------------------------------------------------

    async def start(
        self, queues: Sequence[str] = (), names: Sequence[str] = (), name: str = "", **more: Any
    ) -> Worker:
        """Start a worker; draw its queues and task names unless they are given."""
        chance, known = self.chance, [*self.plan.queues]
        served = queues or sorted(chance.sample(known, chance.randint(1, len(known))))
        # An application may declare queues that its node does not serve.
        declared = known if chance.random() < 0.5 else [*served]
        knows = names or chance.choice([OLD, NEW])
        worker = Worker(
            name or f"{chance.getrandbits(16):04x}",
            self.machine,
            lambda app: self._declare(app, knows, declared),
            served,
            knows,
            chance.randint(1, 4),
        )
        FleetWatchdog.workers[worker.link.process] = worker
        self.workers.append(worker)
        shown = f"{served} {'new' if knows is NEW else 'old'} x {worker.concurrency} {more or ''}"
        self.log(f"start {worker.name}: {shown}")
        await worker.start(self.plan.look_ahead, **more)
        return worker

    async def _stop(self, worker: Worker) -> None:
        self.log(f"stop {worker.name}")
        await worker.stop()
        self.log(f"stopped {worker.name}")

    async def _deploy(self) -> None:
        """Replace all nodes by those of a new version, one after the other."""
        for worker in [each for each in self.living if not each.node._stopping.is_set()]:
            await self.start(worker.queues, NEW)
            self._in_background(self._stop(worker))

    async def _restart(self) -> None:
        """Start a node, stop it so that it announces its return, and mostly bring it back."""
        identity, seconds = f"{self.chance.getrandbits(16):04x}", self.chance.choice([1.0, 5.0])
        worker = await self.start(name=f"{identity}#1", restart_seconds=seconds)
        await asyncio.sleep(self.chance.choice([0.1, 2.0]))
        await self._stop(worker)
        await asyncio.sleep(self.chance.random() * seconds)
        if self.chance.random() < 0.8:
            await self.start(worker.queues, worker.names, f"{identity}#2")

    def _in_background(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _submit(self) -> None:
        """Submit a batch of one kind of task."""
        chance = self.chance
        queue = chance.choice([*self.plan.queues])
        name = chance.choice(["work", "work", "work", "flaky", "odd", "added", "joined"])
        fairness_key, count = chance.choice(KEYS), chance.choice([1, 1, 4, 12])
        may_be_ordered = name in ("work", "flaky") and self.plan.has_ordering_keys
        is_ordered = may_be_ordered and chance.random() < 0.25
        ordering_key = chance.choice(KEYS) if is_ordered else None
        priority = 5 if is_ordered else chance.choice([5, 5, 2])
        delay = 0.0 if is_ordered else chance.choice(DELAYS)
        batch = [
            Job(
                number=len(self.jobs) + n,
                queue=queue,
                name=name,
                fairness_key=fairness_key,
                ordering_key=ordering_key,
                priority=priority,
                how=chance.choice(ODD) if name == "odd" else "",
                seconds=chance.choice(LENGTHS),
                fails=chance.choice([0, 1, 2]) if name == "flaky" else 0,
                due_at=self.now + delay,
            )
            for n in range(count)
        ]
        shown = f"{queue}.{name} {fairness_key} {ordering_key or ''} {delay or ''}"
        self.log(f"submit {count} of {shown}: {batch[0].number}...")
        await self.submit(batch)

    async def submit(self, jobs: Sequence[Job]) -> None:
        """Submit jobs in one transaction."""
        drafts = []
        for job in jobs:
            self.jobs.append(job)
            self._unstarted[job] = None
            if job.ordering_key is not None:
                self._keys[job.queue, job.ordering_key].append(job)
            delay = job.due_at - self.now
            due = to_datetime(SYSTEM_CLOCK.now() + round(delay * MICROS))
            task = self._tasks[job.queue, job.name].options(
                fairness_key=job.fairness_key,
                priority=job.priority,
                ordering_key=job.ordering_key,
                run_at=due if delay > 0 else None,
            )
            drafts.append(task.draft(n=job.number))
        handles = await self._submitter.submit_many_async(drafts)
        for job, handle in zip(jobs, handles, strict=True):
            job.id = handle.id

    def note_cancelled(self, job: Job) -> None:
        """Note that a job was cancelled before it ran."""
        job.is_cancelled = True
        self._unstarted.pop(job, None)

    async def _pause(self, queue: str, is_paused: bool) -> None:
        self.log(f"{'pause' if is_paused else 'resume'} {queue}")
        store: Any = self._submitter.store
        if not is_paused:
            self.paused.pop(queue, None)
        is_known = await store.database.run_async(store.pause(queue, is_paused))
        self._submitter.channel.announce(Notification(control=True))
        if is_paused and is_known:
            self.paused[queue] = self.now

    async def _event(self) -> None:
        """Let one thing happen."""
        chance, event = self.chance, self.plan.event()
        steady = [w for w in self.living if w.node.not_ready is None and not w.is_hanging]
        if event == "submit":
            await self._submit()
        elif event == "start" and len(self.living) < self.plan.most_nodes:
            await self.start()
        elif event == "pause":
            queue = chance.choice([*self.plan.queues])
            await self._pause(queue, queue not in self.paused)
        elif event == "deploy" and len(self.living) < 4:
            await self._deploy()
        elif event == "lose" and chance.random() < 0.3:
            seconds = chance.choice([0.5, 3.0, 12.0])
            self.log(f"the store fails for {seconds} s")
            for worker in self.living:
                if worker.node.ready.is_set():  # a node without a store does not start
                    worker.lose_store(seconds)
        elif event == "restart" and len(self.living) < 4:
            self._in_background(self._restart())
        elif steady and event in ("kill", "stop", "lose", "hang"):
            await self._hurt(event, chance.choice(steady))

    async def _hurt(self, event: str, worker: Worker) -> None:
        chance = self.chance
        if event == "stop":
            self._in_background(self._stop(worker))
        elif event == "kill":
            self.log(f"kill {worker.name}")
            worker.kill()
        elif event == "lose":
            seconds = chance.choice([0.5, 3.0])
            self.log(f"{worker.name} loses the store for {seconds} s")
            worker.lose_store(seconds)
        elif event == "hang" and not worker.link.in_transaction:
            seconds = chance.choice([0.5, 3.0, 12.0, 20.0])
            self.log(f"{worker.name} hangs for {seconds} s")
            worker.hang(seconds)

    # the run --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Let everything happen and settle. Raise Broken for a broken promise."""
        living = self._loop.create_task(self._live())
        try:
            while not living.done():
                self.check()
                await asyncio.wait([living], timeout=LOOK_EVERY)
            await living
            self.check()
        finally:
            living.cancel()

    def check(self) -> None:
        """Check the promises. Raise Broken."""
        if self._broken is not None:
            raise self._broken
        self.promises.check()

    async def _live(self) -> None:
        await self.start()
        for _ in range(self.plan.events):
            await asyncio.sleep(self.chance.choice(self.plan.pauses))
            await self._event()
            await self.people.act()
        for queue in list(self.paused):
            await self._pause(queue, False)
        while self._background:
            await asyncio.wait(list(self._background))
        await self.start([*self.plan.queues], NEW)
        self.log("settle")
        await self._settle()

    async def _settle(self) -> None:
        """Wait until everything has run and every partition has an owner, then check the end."""
        ends = self.now + SETTLE_SECONDS
        read = self.machine.database.execute
        names = {worker.name for worker in self.living}
        while True:
            counted = read("SELECT count(*) FROM fairlead_tasks WHERE state <> 'ERROR'")
            left = counted.fetchone()[0]
            owned = {key for key, owner in self.owners().items() if owner in names}
            wanted = {
                PartitionKey(plan.name, partition)
                for plan in self.plan.queues.values()
                for partition in range(plan.partitions)
            }
            if self.now > ends or (not left and wanted <= owned):
                break
            await asyncio.sleep(LOOK_EVERY)
        self.log("settled")
        in_error = read("SELECT id, error_text FROM fairlead_tasks WHERE state = 'ERROR'")
        effects = read("SELECT task, count(*) FROM effects GROUP BY task")
        self.promises.check_end(left, dict(in_error.fetchall()), dict(effects.fetchall()))

    async def end(self) -> None:
        """End all processes."""
        for task in list(self._background):
            task.cancel()
        for worker in self.workers:
            worker.kill()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=100)
        self.machine.database.close()


async def _end_oddly(job: Job) -> None:
    if job.how == "snooze":
        if not job.ended_runs:
            raise fairlead.Snooze(until=to_datetime(SYSTEM_CLOCK.now() + MICROS))
    elif job.how in RAISED:
        raise RAISED[job.how]()
    else:
        await {**ASYNC_FAILING, **ASYNC_RETURNING}[job.how]()


def simulate(seed: int, has_people: bool = False) -> list[str]:
    """Run the fleet of this seed; return its history. Raise Failed for a broken promise.
    `has_people`: as in `Plan.draw`."""
    history: list[str] = []

    async def run() -> None:
        fleet = Fleet(Plan.draw(seed, has_people), history)
        try:
            await fleet.run()
        finally:
            await fleet.end()

    try:
        on_virtual_time(run, seed)
    except (Exception, SystemExit) as error:
        kind = "" if isinstance(error, Broken) else f"{type(error).__name__}: "
        repeat = f"Repeat: python -m tests.simulation.fleet_simulation {seed}"
        repeat += " --people" if has_people else ""
        raise Failed("\n".join([f"fleet {seed}: {kind}{error}", *history, repeat])) from error
    return history


def on_virtual_time(main: Callable[[], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    """Run a coroutine on a loop of its own, where nothing depends on the machine."""
    clock, entropy = VirtualTime(BEGAN), random.Random(seed)
    state, disabled = random.getstate(), logging.root.manager.disable
    random.seed(seed)
    logging.disable()
    FleetWatchdog.workers = {}
    try:
        with (
            virtual_system_clock(clock),
            patch("fairlead.engine.cluster_limits.Watchdog", FleetWatchdog),
            patch("fairlead.declare.task._ids", IdSource()),
            patch("fairlead.config._from_files", lambda folder: {}),
            # A thread that an earlier test has left may use the generator of the module.
            patch("fairlead.pauses.random", random.Random(seed)),
            # Every node declares the tasks of the fleet again.
            patch("fairlead.declare.handler.Arguments", cache(Arguments)),
            patch.object(os, "urandom", entropy.randbytes),
            asyncio.Runner(loop_factory=lambda: FleetLoop(clock)) as runner,
        ):
            runner.run(main())
    finally:
        random.setstate(state)
        logging.disable(disabled)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of texts is part of a run.
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606
    numbers = [each for each in sys.argv[1:] if each != "--people"]
    for number in numbers:
        try:
            print("\n".join(simulate(int(number), has_people="--people" in sys.argv)))
        except Failed as failure:
            sys.exit(str(failure))
