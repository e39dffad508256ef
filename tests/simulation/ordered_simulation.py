"""Ordered queues under faults: the real partitions over slow stores that fail and lose responses, and
nodes that crash, on a virtual clock. The store of some schedules refuses single tasks and ends of runs
for some time.

A schedule is a seed. A node may crash between any two calls to a store: the node stops at once, and
a call under way may have taken effect or not. Another node takes over when the leases have expired,
or at once, before the first node notices.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fairlead.clock import MICROS
from fairlead.core.fair.table import TriggerTable
from fairlead.core.ids import id_text
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.core.sharding.partitions import partition_of
from fairlead.declare.queue import OrderedQueue
from fairlead.errors import BatchTooLarge, StoreUnavailable
from fairlead.model import (
    Finish,
    NewTask,
    Outcome,
    PartitionKey,
    RunEnd,
    ScheduledTask,
    State,
    TaskKey,
)
from fairlead.ordered.clock_guard import ClockGuard
from fairlead.ordered.context import OrderedContext
from fairlead.ordered.queues import OrderedQueues
from fairlead.ports.observer import Silent
from fairlead.ports.task_log import Drop, Submit
from tests import builders
from tests.memory_schedule import MemoryScheduleStore
from tests.memory_task_log import MemoryTaskLog
from tests.simulation.virtual_clock import VirtualClock

QUEUE = "q"
HOUR = 3600.0


class Broken(Exception):
    """Raised for a broken promise, with the schedule."""


@dataclass
class Faults:
    """Faults of the calls of one node."""

    chance: Random
    clock: VirtualClock
    share: float
    is_dead: bool = False
    crash_in: int | None = None
    """Number of calls until the node crashes."""
    crashed: asyncio.Event = field(default_factory=asyncio.Event)

    async def wrap(self, call: Callable[[], Awaitable[Any]]) -> Any:
        await self._pause()
        if self.share and self.chance.random() < self.share / 2:
            raise StoreUnavailable("not reached")
        result = await call()
        await self._pause()
        if self.share and self.chance.random() < self.share / 2:
            raise StoreUnavailable("the answer was lost")
        return result

    async def _pause(self) -> None:
        """Pause; a dead node never gets a response."""
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in <= 0:
                self.is_dead = True
                self.crashed.set()
        if self.is_dead:
            await asyncio.get_running_loop().create_future()
        if self.chance.random() < 0.3:
            await self.clock.sleep(self.chance.choice((0.0, 0.001, 0.1, 3.0)))
        if self.is_dead:
            await asyncio.get_running_loop().create_future()


class RefusingStore(MemoryScheduleStore):
    """A schedule store that refuses some tasks, and the ends of some runs, for some time."""

    def __init__(self, chance: Random, clock: VirtualClock) -> None:
        super().__init__()
        self.share = chance.choice((0.0, 0.0, 0.02, 0.2))
        """Share of the entries that are refused at first."""
        self._chance = chance
        self._clock = clock
        self.persisted: dict[TaskKey, int] = {}
        """Instants of the first write of each task, by key."""
        self._refused: dict[tuple[str, str], tuple[int, Exception]] = {}
        """Ends of the refusals and their errors, by the kind of write and the id of the task."""

    async def persist(
        self, partition: PartitionKey, range_id: int, tasks: Sequence[NewTask], record: Any
    ) -> set[TaskKey]:
        self._fenced(partition, range_id)
        self._check("persist", tasks)
        for task in tasks:
            self.persisted.setdefault(ScheduledTask.of(task).key, self._clock.now())
        return await super().persist(partition, range_id, tasks, record)

    async def finish(self, partition: PartitionKey, range_id: int, ends: Sequence[RunEnd]) -> None:
        self._fenced(partition, range_id)
        self._check("finish", [end.scheduled.task for end in ends])
        await super().finish(partition, range_id, ends)

    def refuses(self, what: str, task_id: str) -> bool:
        """Return whether the store has seen a write of this task and refuses it now."""
        return self._refused.get((what, task_id), (0, None))[0] > self._clock.now()

    def _check(self, what: str, tasks: Sequence[NewTask]) -> None:
        for task in tasks:
            seconds = self._chance.choice((0.5, 20.0, 900.0))
            if self._chance.random() >= self.share:
                seconds = 0.0
            error = self._chance.choice(
                (RuntimeError("a trigger of the user"), BatchTooLarge("raise temp_file_limit"))
            )
            until = self._clock.now() + round(seconds * MICROS)
            self._refused.setdefault((what, task.id), (until, error))
        for task in tasks:
            if self.refuses(what, task.id):
                raise self._refused[what, task.id][1]


class Faulty:
    """A store or a log whose calls are subject to faults."""

    def __init__(self, real: Any, faults: Faults) -> None:
        self._real = real
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name in ("poke", "joins_transactions", "location"):
            return found

        async def call(*rest: Any, **named: Any) -> Any:
            result = found(*rest, **named)
            return await result if asyncio.iscoroutine(result) else result

        return lambda *rest, **named: self._faults.wrap(lambda: call(*rest, **named))


class Node:
    """The parts of a node that serve ordered queues, without threads and task stores."""

    def __init__(self, simulation: Simulation, faults: Faults) -> None:
        self.simulation = simulation
        self.faults = faults
        self.name = "node"
        self.clock = simulation.clock
        slot_ledger = SlotLedger(simulation.chance.choice((1, 3, 1000)))
        slot_ledger.register_queue(QUEUE, None)
        self.table = TriggerTable(slot_ledger)
        self._slot_ledger = slot_ledger
        self._wanted = asyncio.Event()
        self.in_flight: dict[str, asyncio.Task[None]] = {}
        self._stopped: dict[str, bool] = {}
        context = OrderedContext(
            node="node",
            log=Faulty(MemoryTaskLog(self.clock, simulation.log), faults),
            store=Faulty(simulation.store, faults),
            table=self.table,
            dispatch=self._wanted.set,
            stop_run=self._stop_run,
            settled=self._settled,
            on_incidents=lambda reports: None,
            observer=Silent(),
            clock=ClockGuard(self.clock, "node", lambda reports: None, simulation.store.now),
        )
        self.ordered = OrderedQueues([simulation.queue], context, drain=5.0)
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self.ordered.run())
            group.create_task(self._dispatch())

    async def _dispatch(self) -> None:
        slot_ledger = self._slot_ledger
        slot_ledger.register_task(QUEUE, "work")
        while True:
            self._wanted.clear()
            triggers, _ = self.table.take(100, self.clock.monotonic())
            for trigger in triggers:
                task = self.ordered.claim(trigger, self.clock.now())
                if task is None:
                    self.table.freed(slot_ledger.cancel(trigger, self.clock.monotonic()))
                    continue
                running = self._group.create_task(self._work(trigger, task))
                self.in_flight[task.id] = running
            if not triggers:
                await self._wanted.wait()

    async def _work(self, trigger: Any, task: Any) -> None:
        simulation = self.simulation
        key = simulation.keys[task.id]
        finish: Finish | None = None
        simulation.started(self, task.id, key)
        try:
            began = self.clock.now()
            await self.clock.sleep(simulation.chance.choice((0.0, 0.01, 1.0, 20.0)))
            now = self.clock.now()
            if simulation.chance.random() < simulation.failing:
                finish = Finish(
                    task.id,
                    task.version,
                    Outcome.RETRIED,
                    State.WAITING,
                    began,
                    now,
                    "E",
                    "e",
                    None,
                    now + MICROS,
                )
            else:
                finish = Finish(task.id, task.version, Outcome.DONE, State.DONE, began, now)
        except asyncio.CancelledError:
            if self.faults.is_dead:
                raise
            if self._stopped.get(task.id):
                finish = Finish(
                    task.id,
                    task.version,
                    Outcome.CANCELLED,
                    State.SUBMITTED,
                    began,
                    self.clock.now(),
                    spends_try=False,
                )
        finally:
            simulation.ended(self, task.id, key, finish)
        if freed := self._slot_ledger.release(trigger, self.clock.monotonic()):
            self.table.freed(freed)
        if finish is not None:
            self.ordered.ended(trigger, finish)
        else:
            self.ordered.drop_ended([trigger])
            self._settled([task.id])
        self._wanted.set()

    def _stop_run(self, task_id: str, keeps_end: bool) -> None:
        running = self.in_flight.get(task_id)
        if running is not None and not running.done():
            self._stopped[task_id] = keeps_end
            running.cancel()

    def _settled(self, ids: Collection[str]) -> None:
        for task_id in ids:
            self.in_flight.pop(task_id, None)
        self._wanted.set()

    async def die(self) -> None:
        """Crash: no run of the node continues."""
        self.faults.is_dead = True
        self.task.cancel()
        await asyncio.wait([self.task])


class Simulation:
    """One schedule. Raises Broken as soon as a promise is broken."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.clock = VirtualClock()
        self.log = MemoryTaskLog(self.clock)
        self.store = RefusingStore(self.chance, self.clock)
        self.partitions = self.chance.choice((1, 2, 5))
        self.queue = OrderedQueue(
            QUEUE,
            partitions=self.partitions,
            look_ahead=self.chance.choice((1.0, 60.0, 300.0)),
        )
        self.failing = self.chance.choice((0.0, 0.0, 0.3))
        self.share = self.chance.choice((0.0, 0.02, 0.2))
        self.keys: dict[str, TaskKey] = {}
        self.last_ids: dict[TaskKey, str] = {}
        """Id of the last task that was submitted with a key."""
        self.appended: dict[TaskKey, int] = {}
        """Time of the first append to the log, by key."""
        self.dropped: set[TaskKey] = set()
        self.done: dict[TaskKey, int] = {}
        """Time of the first successful run, by key."""
        self.good_runs: Counter[TaskKey] = Counter()
        self.at_work: dict[str, tuple[Node, str]] = {}
        """Running node and task by ordering key."""
        self.lives: list[Node] = []
        self.node: Node | None = None
        self.expiring: list[asyncio.Task[None]] = []
        self.number = 0

    def fail(self, why: str) -> None:
        raise Broken(f"seed {self.seed}: {why}")

    # handlers -------------------------------------------------------------------------------------

    def started(self, node: Node, task_id: str, key: TaskKey) -> None:
        if self.clock.now() < key.run_at:
            self.fail(f"{key} runs before its time")
        if key.ordering_key in self.at_work and self.at_work[key.ordering_key][0] is node:
            self.fail(f"two tasks of {key.ordering_key!r} run at once")
        self.at_work[key.ordering_key] = (node, task_id)
        if node is not self.node:
            return  # another node has taken over, and will refuse the writes of this one
        patience = 200 * MICROS
        for other, at in self.appended.items():
            if (
                other.ordering_key == key.ordering_key
                and other < key
                and max(at, self.store.persisted.get(other, 0)) + patience < self.clock.now()
            ):
                rows = self.store.partitions[PartitionKey(QUEUE, self.of(key.ordering_key))]
                if other in rows.tasks:
                    self.fail(f"{key} overtakes {other}")
        for other, earlier in self.last_ids.items():
            if (
                other.ordering_key == key.ordering_key
                and other < key
                and earlier < task_id
                and self.store.refuses("persist", earlier)
            ):
                self.fail(f"{key} overtakes {other}, which the store refuses")

    def ended(self, node: Node, task_id: str, key: TaskKey, finish: Finish | None) -> None:
        if self.at_work.get(key.ordering_key) == (node, task_id):
            del self.at_work[key.ordering_key]
        if finish is not None and finish.next_state == State.DONE:
            self.good_runs[key] += 1
            self.done.setdefault(key, self.clock.now())

    # events ---------------------------------------------------------------------------------------

    def of(self, ordering_key: str) -> int:
        return partition_of(ordering_key, 0, self.partitions)

    def submit(self) -> None:
        now = self.clock.now()
        entries: list[Submit | Drop] = []
        for _ in range(self.chance.choice((1, 1, 5, 60))):
            self.number += 1
            ordering_key = self.chance.choice("abcdefgh" if self.chance.random() < 0.9 else "x")
            run_at = (
                now
                + round(self.chance.choice((-5.0, 0.0, 1.0, 30.0, 400.0, HOUR / 4)) * MICROS)
                + self.chance.randrange(5)
            )
            task_id = id_text(self.number)
            made = builders.task(
                task_id,
                queue=QUEUE,
                partition=self.of(ordering_key),
                ordering_key=ordering_key,
                unique_key=self.chance.choice("uv"),
                run_at=run_at,
                submitted_at=now,
            )
            key = ScheduledTask.of(made).key
            self.keys[task_id] = key
            self.last_ids[key] = task_id
            self.appended.setdefault(key, now)
            entries.append(Submit(made))
        if self.appended and self.chance.random() < 0.1:
            key = self.chance.choice(list(self.appended))
            self.dropped.add(key)
            entries.append(Drop(QUEUE, self.of(key.ordering_key), key, "ada", now))
        self.log.append(entries)
        if self.node is not None:
            self.node.ordered.poke()

    def begin(self) -> None:
        faults = Faults(self.chance, self.clock, self.share)
        if self.chance.random() < 0.6:
            faults.crash_in = self.chance.choice((1, 5, 20, 100, 400))
        self.node = Node(self, faults)
        self.lives.append(self.node)
        self.node.ordered.assign([PartitionKey(QUEUE, n) for n in range(self.partitions)])

    async def follow(self) -> None:
        """Let another node take over: the previous node is dead, has left in order, or does not know it
        yet."""
        node, self.node = self.node, None
        if node is not None:
            fate = self.chance.random()
            if node.faults.is_dead or fate < 0.5:
                await node.die()
            elif fate >= 0.7:
                self.expiring.append(asyncio.create_task(self._expire_leases(node)))
            else:
                leaving = asyncio.create_task(
                    node.ordered.release([PartitionKey(QUEUE, n) for n in range(self.partitions)])
                )
                await self.clock.run(leaving.done, 600)
                await node.die()
        self.begin()

    async def _expire_leases(self, node: Node) -> None:
        """Notify a node that its leases have expired."""
        await self.clock.sleep(self.chance.choice((0.1, 2.0, 10.0)))
        node.ordered.assign([])

    async def go(self) -> None:
        self.begin()
        for _ in range(self.chance.choice((10, 40))):
            what = self.chance.random()
            if what < 0.6:
                self.submit()
            elif what < 0.75:
                await self.follow()
            seconds = self.chance.choice((0.0, 0.5, 10.0, 300.0, HOUR if what > 0.97 else 1.0))
            await self.clock.run(
                lambda: self.node is None or self.node.faults.crashed.is_set(), seconds
            )
            self.check()
        self.share = self.store.share = 0.0
        for expiring in self.expiring:
            expiring.cancel()
        for old in self.lives:
            await old.die()
        self.failing = 0.0
        self.node = None
        # A run of each node may be interrupted, or end unreported after a take-over.
        await self.run_all()

    async def run_all(self) -> None:
        """Let a last node run all tasks without faults."""
        self.begin()
        assert self.node is not None
        self.node.faults.crash_in = None
        if not await self.clock.run(lambda: set(self.appended) <= self.over(), 30 * HOUR):
            self.fail(f"never ended: {sorted(set(self.appended) - self.over())[:5]}")
        await self.clock.run(lambda: False, 30)
        self.check()
        await self.node.die()
        if left := [key for rows in self.store.partitions.values() for key in rows.tasks]:
            self.fail(f"left in the schedule: {left[:5]}")
        for key in set(self.appended) - self.dropped:
            if not self.good_runs[key]:
                self.fail(f"{key} is completed, but never ran to its end")
        if too_often := [key for key, runs in self.good_runs.items() if runs > 2 * len(self.lives)]:
            self.fail(f"ran too often: {too_often[:5]}")

    def over(self) -> set[TaskKey]:
        return {key for rows in self.store.partitions.values() for key in rows.completed}

    def check(self) -> None:
        for node in self.lives:
            if (
                node.task.done()
                and not node.task.cancelled()
                and (error := node.task.exception()) is not None
            ):
                raise Broken(f"seed {self.seed}: a node broke") from error
        if len(self.lives) == 1 and not self.share and self.lives[0].ordered.reloads():
            self.fail("a refusal has ended a tenure")
        for rows in self.store.partitions.values():
            below = [key for key in rows.tasks if key <= rows.record.low_water_mark]
            if below:
                self.fail(f"below the low-water mark {rows.record.low_water_mark}: {below[:3]}")
            both = rows.tasks.keys() & rows.completed.keys()
            if both:
                self.fail(f"completed and in the schedule: {sorted(both)[:3]}")


def simulate(seed: int) -> None:
    """Run one schedule. Raises Broken."""

    async def main() -> None:
        await Simulation(seed).go()

    asyncio.run(main())
