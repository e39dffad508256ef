"""One simulated worker process: an application with its node, and what can happen to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextvars import Context
from typing import TYPE_CHECKING

from fairlead import App
from fairlead.core.look_ahead import TRIGGER_BYTES
from fairlead.engine.liveness.blocked_loop import BlockedLoop
from fairlead.engine.settings import LOOK_AHEAD_BYTES, Intervals
from fairlead.engine.sharing import LOOK_AHEADS
from tests.simulation.fleet_loop import Process, current_process
from tests.simulation.fleet_plan import Scope
from tests.simulation.fleet_store import Link, Machine

if TYPE_CHECKING:
    from tests.simulation.fleet_jobs import Job

DRAIN = 10.0
"""Seconds that a worker gives its runs when it stops."""
INTERVALS = Intervals(gauges=10.0)


class Worker:
    """A worker process."""

    def __init__(
        self,
        name: str,
        machine: Machine,
        declare: Callable[[App], None],
        queues: Sequence[str],
        names: Sequence[str],
        concurrency: int,
    ) -> None:
        """`declare`: declares queues and tasks. `queues`, `names`: what it serves and knows."""
        self.name = name
        self.queues, self.names, self.concurrency = tuple(queues), tuple(names), concurrency
        self.link = Link(machine, Process())
        self.app = App("sqlite:///fleet", lake="")
        self.app.connector.use(machine.connections(self.link))
        declare(self.app)
        self.running = 0
        self.counts: Counter[Scope] = Counter()
        """Number of its runs, by what limits count."""
        self.killed_at: float | None = None
        self.faults: list[tuple[float, float]] = []
        """Begin and end of each time in which it hung or had no store."""
        self.restart_seconds = 0.0
        self._loop = asyncio.get_running_loop()

    async def start(self, look_ahead: int, restart_seconds: float = 0.0) -> None:
        """Start the node, and wait until it serves."""
        self.restart_seconds = restart_seconds
        self.node = self.app.node(
            name=self.name,
            queues=self.queues,
            concurrency=self.concurrency,
            drain=DRAIN,
            look_ahead=look_ahead,
            # With a small look-ahead, all lanes together may hold what four queues may: evictions
            # of a few triggers at a time take minutes.
            look_ahead_bytes=min(LOOK_AHEAD_BYTES, 4 * look_ahead * LOOK_AHEADS * TRIGGER_BYTES),
            restart_seconds=restart_seconds,
            intervals=INTERVALS,
        )
        # The thread of this part watches the event loop, which many nodes share here.
        parts = self.node.parts.in_order
        parts[:] = [part for part in parts if not isinstance(part, BlockedLoop)]
        context = self.link.process.context
        self.task = self._loop.create_task(self.node.run(), context=context)
        ready = self._loop.create_task(self.node.ready.wait())
        await asyncio.wait([self.task, ready], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()

    # events ---------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop the node in order."""
        self.node.stop()
        await asyncio.wait([self.task])
        if self.is_living:
            self.kill()

    def kill(self) -> None:
        """End the process."""
        if self.is_living:
            self.killed_at = self._loop.time()
            self.link.machine.end(self.link)
            self.proceed()
            self.task.cancel()

    def hang(self, seconds: float) -> None:
        """Stop the process for some seconds."""
        now = self._loop.time()
        self.faults.append((now, now + seconds))
        self.link.process.stop()
        self._loop.call_later(seconds, self.proceed)

    def proceed(self) -> None:
        """Continue the process after it hung."""
        if self.link.process.is_stopped:
            self.link.process.proceed()

    def lose_store(self, seconds: float) -> None:
        """Let all calls to the store fail for some seconds, some of them only after their effect."""
        now = self._loop.time()
        self.link.outage_until = max(self.link.outage_until, now + seconds)
        self.faults.append((now, now + seconds))

    # state ----------------------------------------------------------------------------------------

    @property
    def is_living(self) -> bool:
        """Whether its process lives."""
        return self.killed_at is None

    @property
    def is_serving(self) -> bool:
        """Whether its node takes tasks."""
        return self.is_living and not self.is_hanging and self.node.not_ready is None

    @property
    def is_hanging(self) -> bool:
        """Whether its process is stopped."""
        return self.link.process.is_stopped

    def had_fault(self, begin: float, end: float) -> bool:
        """Return whether it hung or had no store at any time between `begin` and `end`."""
        return any(first <= end and last >= begin for first, last in self.faults)

    def has_slot(self, job: Job) -> bool:
        """Return whether it could begin a run of this job, if no limit stops it."""
        return (
            self.running < self.concurrency
            and job.queue in self.queues
            and job.name in self.names
            and self.is_serving
        )


class FleetWatchdog:
    """The watchdog of a worker (`fairlead.engine.liveness.watchdog`) on the fleet's loop: kills it at its
    deadline, also while it hangs."""

    workers: dict[Process, Worker]
    """Workers of the present fleet."""

    def __init__(self, worker: Worker | None) -> None:
        self._worker = worker
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def start(cls) -> FleetWatchdog:
        process = current_process()
        return cls(None if process is None else cls.workers[process])

    def set_deadline(self, until: float | None, children: Collection[int]) -> None:
        self._cancel()
        if until is not None and self._worker is not None:
            self._timer = asyncio.get_running_loop().call_at(
                until, self._worker.kill, context=Context()
            )

    async def ended(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
