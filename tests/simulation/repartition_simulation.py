"""Moves of an ordered queue to other numbers of partitions under faults, on a virtual clock.

Adds to the ordered simulation: moves up and down that are cut off between any two calls, two moves
at once, submitters that still use the old number, and workers that start too early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from fairlead.core.sharding.partitions import partition_of
from fairlead.engine.leases import lease_of
from fairlead.errors import ConfigurationError, FairleadError
from fairlead.model import PartitionKey, TaskKey
from fairlead.ordered.layout import LAYOUT_SECONDS, OtherLayout, moved_entry
from fairlead.ordered.repartition import MoveContext, Repartition
from fairlead.ports.task_log import Submit
from tests.memory_task_log import MemoryTaskLog
from tests.simulation import ordered_simulation
from tests.simulation.ordered_simulation import HOUR, QUEUE, Faults, Faulty, Node, Simulation
from tests.simulation.virtual_clock import VirtualClock

LEASE_SECONDS = 10.0
COUNTS = (1, 2, 3, 5, 8)


class Leases:
    """A coordinator in memory; the leases of a live node do not expire."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._held: dict[str, tuple[str, float]] = {}

    async def acquire(self, names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
        now = self._clock.monotonic()
        won = [name for name in names if self._held.get(name, ("", 0.0))[1] <= now]
        self._held |= dict.fromkeys(won, (owner, now + ttl))
        return dict.fromkeys(won, 1)

    async def renew(self, owner: str, ttl: float) -> dict[str, int]:
        now = self._clock.monotonic()
        mine = [name for name, held in self._held.items() if held[0] == owner and held[1] > now]
        self._held |= dict.fromkeys(mine, (owner, now + ttl))
        return dict.fromkeys(mine, 1)

    async def release(self, names: Sequence[str], owner: str) -> None:
        for name in names:
            if self._held.get(name, ("", 0.0))[0] == owner:
                del self._held[name]

    async def owners(self, *, at_renewal: bool = False) -> dict[str, str]:
        now = self._clock.monotonic()
        return {name: owner for name, (owner, until) in self._held.items() if until > now}


@dataclass
class Submitter:
    """A process that submits, with the number of partitions that it has read last."""

    is_deaf: bool
    """Whether the process never reads the number again: its task store is away."""
    partitions: int
    read_at: float = field(default=0.0)


class MovingSimulation(Simulation):
    """One schedule with moves. Raises Broken as soon as a promise is broken."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.partitions = self.chance.choice(COUNTS)
        self.queue = self._queue_of(self.partitions)
        self.stored = self.partitions
        """Number of partitions in the task store."""
        self.version = 1
        """Version of the queue's settings in the task store."""
        self.store.share = 0.0  # a refused entry ends a move, until a person has cured it
        self.leases = Leases(self.clock)
        has_deaf = self.chance.random() < 0.3
        self.submitters = [Submitter(has_deaf and n == 0, self.partitions) for n in range(3)]
        self.submitter = self.submitters[0]
        self.is_switched = False
        """Whether the move under way may have moved rows."""
        self.settled: set[TaskKey] = set()
        """Unfinished keys in the schedule at the end of the last move."""
        self.over_before: set[TaskKey] = set()
        """Keys completed at the end of the last move."""
        self.old: list[Submit] = []
        """Entries that a submitter may append again."""
        self.moves = self.early = 0

    def _queue_of(self, partitions: int) -> Any:
        return type(self.queue)(QUEUE, partitions=partitions, look_ahead=self.queue.look_ahead)

    @property
    def has_deaf(self) -> bool:
        return any(each.is_deaf for each in self.submitters)

    # handlers -------------------------------------------------------------------------------------

    def started(self, node: Node, task_id: str, key: TaskKey) -> None:
        if self.is_switched and node.number_of_partitions is not None:
            self._check_early(node.number_of_partitions, key)
        super().started(node, task_id, key)
        if node is not self.node:
            return
        if key in self.over_before:
            self.fail(f"{key} runs again after the move")
        rows = self.store.partitions[PartitionKey(QUEUE, super().of(key.ordering_key))].tasks
        for other in self.settled:
            if other.ordering_key == key.ordering_key and other < key and other in rows:
                self.fail(f"{key} overtakes {other}, which was there before the move ended")

    def _check_early(self, partitions: int, key: TaskKey) -> None:
        """Check a run by a worker that has started before the end of a move: the move must have
        moved everything, and have opened this partition."""
        number = partition_of(key.ordering_key, 0, partitions)
        record = self.store.partitions[PartitionKey(QUEUE, number)].record
        if record.is_moving or record.partitions != partitions:
            self.fail(f"{key} runs while its partition is sealed")
        for (_, number), rows in self.store.partitions.items():
            if any(partition_of(k.ordering_key, 0, partitions) != number for k in rows.tasks):
                self.fail(f"{key} runs while the queue is being moved")

    # submits --------------------------------------------------------------------------------------

    def of(self, ordering_key: str) -> int:
        if self._is_submitting:
            return partition_of(ordering_key, 0, self.submitter.partitions)
        return partition_of(ordering_key, 0, self.partitions)

    _is_submitting = False

    def submit(self) -> None:
        self.submitter = one = self.chance.choice(self.submitters)
        now = self.clock.monotonic()
        if not one.is_deaf and now >= one.read_at + LAYOUT_SECONDS:
            one.partitions, one.read_at = self.stored, now
        self._is_submitting = True
        super().submit()
        self._is_submitting = False
        for entries in self.log.entries.values():
            self.old += [each for each in entries[-2:] if isinstance(each, Submit)]
        if self.old and self.chance.random() < 0.3:
            again = moved_entry(self.chance.choice(self.old), one.partitions)
            self.log.append([again])

    # nodes ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        super().begin()
        assert self.node is not None
        self._lend(self.node, f"node-{len(self.lives)}", self.partitions)

    def _lend(self, node: Node, name: str, partitions: int) -> None:
        node.name = name
        for number in range(partitions):
            lease = lease_of(PartitionKey(QUEUE, number))
            self.leases._held[lease] = (name, float("inf"))

    def _expire(self, node: Node) -> None:
        until = self.clock.monotonic() + LEASE_SECONDS
        for lease, (owner, _) in list(self.leases._held.items()):
            if owner == node.name:
                self.leases._held[lease] = (owner, until)

    async def _stop_node(self) -> None:
        node, self.node = self.node, None
        if node is None:
            return
        numbers = [PartitionKey(QUEUE, n) for n in range(self.partitions)]
        if not node.faults.is_dead and self.chance.random() < 0.6:
            leaving = asyncio.create_task(node.ordered.release(numbers))
            if not await self.clock.run(leaving.done, 600):
                leaving.cancel()
            await node.die()
            await self.leases.release([lease_of(key) for key in numbers], node.name)
        else:
            await node.die()
            self._expire(node)

    async def start_too_early(self, partitions: int) -> None:
        """Start a worker during a move that was cut off. The worker must end with an error if it
        meets a sealed partition, and must run nothing after the switch."""
        names = [lease_of(PartitionKey(QUEUE, n)) for n in range(partitions)]
        if (await self.leases.owners()).keys() & set(names):
            return
        self.early += 1
        kept, self.queue = self.queue, self._queue_of(partitions)
        node = Node(self, Faults(self.chance, self.clock, 0.0))
        node.number_of_partitions = partitions
        self.queue = kept
        self._lend(node, f"early-{self.early}", partitions)
        node.ordered.assign([PartitionKey(QUEUE, n) for n in range(partitions)])
        await self.clock.run(node.task.done, 30)
        if node.task.done() and (error := node.task.exception()) is not None:
            if not _is_refusal(error):
                raise error
        elif any(
            self.store.partitions[PartitionKey(QUEUE, number)].record.is_moving
            for number in range(partitions)
            if PartitionKey(QUEUE, number) in self.store.partitions
        ):
            self.fail("a worker was not refused while the queue is being moved")
        await node.die()
        self._expire(node)

    # moves ----------------------------------------------------------------------------------------

    def _mover(self, target: int, share: float, crash_in: int | None) -> Mover:
        faults = Faults(self.chance, self.clock, share, crash_in=crash_in)
        self.moves += 1

        hangs = self.chance.random() < 0.15

        async def version() -> int:
            return self.version

        async def resize(version: int) -> bool:
            if hangs:
                await self.clock.sleep(40)  # another move may end meanwhile
            if version != self.version:
                return False
            self.stored, self.version, self.is_switched = target, version + 1, True
            return True

        context = MoveContext(
            name=f"move-{self.moves}",
            log=Faulty(MemoryTaskLog(self.clock, self.log), faults),
            store=Faulty(self.store, faults),
            coordinator=Faulty(self.leases, faults),
            clock=self.clock,
            lease_of=lease_of,
            version=lambda: faults.wrap(version),
            resize=lambda read: faults.wrap(lambda: resize(read)),
        )
        move = Repartition(QUEUE, target, context)
        return Mover(faults, asyncio.create_task(move.run()))

    async def move(self) -> None:
        """Move the queue until a move has ended."""
        if self.node is not None and not self.node.faults.is_dead and self.chance.random() < 0.3:
            await self._move_beside_a_worker()
        await self._stop_node()
        while True:
            target = self.chance.choice(COUNTS)
            crash_in = self.chance.choice((None, 3, 10, 30, 60, 100, 200))
            movers = [self._mover(target, self.share, crash_in)]
            if self.chance.random() < 0.2:
                movers.append(self._mover(self.chance.choice(COUNTS), 0.0, None))
            while not all(mover.is_over for mover in movers):
                if self.chance.random() < 0.3:
                    self.submit()
                await self.clock.run(lambda: all(mover.is_over for mover in movers), 5)
            done = [await mover.end() for mover in movers]
            records = [rows.record for rows in self.store.partitions.values()]
            opened = {record.partitions for record in records if not record.is_moving}
            if any(done) and not opened <= {0, self.stored}:
                self.fail(f"partitions by {opened}, but the task store has {self.stored}")
            if any(done) and all(
                not record.is_moving and record.partitions == self.stored for record in records
            ):
                self._open(self.stored)
                return
            if self.chance.random() < 0.4:
                await self.clock.run(lambda: False, LEASE_SECONDS + 1)
                await self.start_too_early(self.chance.choice((self.partitions, target)))

    async def _move_beside_a_worker(self) -> None:
        mover = self._mover(self.chance.choice(COUNTS), 0.0, None)
        await self.clock.run(lambda: mover.is_over, 100)
        try:
            await mover.task
        except ConfigurationError as error:
            assert "stop all workers" in str(error), error
        else:
            self.fail("a move went on beside a worker")
        if any(rows.record.is_moving for rows in self.store.partitions.values()):
            self.fail("a refused move has sealed a partition")

    def _open(self, partitions: int) -> None:
        self.partitions, self.queue = partitions, self._queue_of(partitions)
        self.is_switched = False
        self.settled = {key for rows in self.store.partitions.values() for key in rows.tasks}
        self.over_before = self.over()
        for (_, number), rows in self.store.partitions.items():
            for key in rows.tasks.keys() | rows.completed.keys():
                if partition_of(key.ordering_key, 0, partitions) != number:
                    self.fail(f"{key} is in partition {number} after the move")
        if self.has_deaf:
            return
        for (_, number), entries in self.log.entries.items():
            if any(moved_entry(entry, partitions) is not entry for entry in entries):
                self.fail(f"the log of partition {number} has entries of others after the move")

    async def go(self) -> None:
        self.begin()
        for _ in range(self.chance.choice((6, 20))):
            what = self.chance.random()
            if what < 0.5:
                self.submit()
            elif what < 0.6:
                await self.follow()
            elif what < 0.8:
                await self.move()
                self.begin()
            seconds = self.chance.choice((0.0, 0.5, 10.0, 300.0, HOUR if what > 0.97 else 1.0))
            await self.clock.run(
                lambda: self.node is None or self.node.faults.crashed.is_set(), seconds
            )
            self.check()
        self.share = 0.0
        for expiring in self.expiring:
            expiring.cancel()
        for old in self.lives:
            await old.die()
            self._expire(old)
        await self.move()
        self.failing = 0.0
        await self.run_all(lambda: 2 * (len(self.lives) + self.early))

    def check(self) -> None:
        # A node that does not know that its leases have expired may meet a sealed partition.
        for node in [each for each in self.lives if each is not self.node]:
            is_over = node.task.done() and not node.task.cancelled()
            if is_over and (error := node.task.exception()) is not None and _is_refusal(error):
                self.lives.remove(node)
                self.early += 1
        super().check()

    async def _expire_leases(self, node: Node) -> None:
        await super()._expire_leases(node)
        await node.die()


@dataclass
class Mover:
    """A move under way."""

    faults: Faults
    task: asyncio.Task[Any]

    @property
    def is_over(self) -> bool:
        return self.task.done() or self.faults.crashed.is_set()

    async def end(self) -> Any:
        """Return the result of the move; None if it was cut off or refused."""
        while not self.task.done():
            self.task.cancel()  # its calls stay where they are: no lease is released
            await asyncio.sleep(0)
        if self.task.cancelled():
            return None
        error = self.task.exception()
        if error is not None and not isinstance(error, FairleadError):
            raise error
        return None if error is not None else self.task.result()


def _is_refusal(error: BaseException) -> bool:
    """Return whether a node has ended because its queue was moved."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return isinstance(error, OtherLayout) and "fairlead ordered repartition" in str(error)


async def _inline(call: Callable[..., Any], *rest: Any) -> Any:
    result = call(*rest)
    return await result if asyncio.iscoroutine(result) else result


async def _unwrapped(future: Any) -> Any:
    return None


def simulate(seed: int) -> None:
    """Run one schedule. Raises Broken."""
    # A simulation has no threads: appends end at once.
    with mock.patch("asyncio.to_thread", _inline), mock.patch("asyncio.wrap_future", _unwrapped):
        ordered_simulation.simulate(seed, MovingSimulation)
