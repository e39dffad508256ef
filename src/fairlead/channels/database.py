"""The trigger channel over the task store itself: wakes say where to look, the rows of the lane are the triggers.

A lane is one priority of one partition. Its reader remembers the highest ready_seq it has read and reads on from there, so
it never passes dead rows again. A row that commits late (a lower ready_seq, a later commit) is announced by its own
wake, which sets the reader back; a wake that was lost is made up for by a sweep of the whole lane every `heal_every` seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec

from fairlead.clock import Clock
from fairlead.model import PRIORITIES, PartitionKey, Trigger, TriggerPath
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import Bell, Room
from fairlead.ports.wake import Wake

PAGE = 1000
"""Triggers read at once."""

SWEEP_SHARE = 0.05
"""A sweep may take at most this share of the time: on a slow store sweeps grow rarer instead of eating it."""


@dataclass(slots=True)
class _Lane:
    queue: str
    partition: int
    priority: int
    read_seq: int = 0
    """Everything at or below has been read since the last sweep began."""
    highest_seq: int = 0
    """The highest ever read: what a sweep finds below it had lost its wake."""
    is_behind: bool = True
    """The store may hold more above read_seq."""


class DatabaseChannel:
    """See `fairlead.ports.trigger_channel.TriggerChannel`."""

    def __init__(self, store: TaskStore, bell: Bell, clock: Clock, heal_every: float = 15.0) -> None:
        self._store = store
        self._bell = bell
        self._clock = clock
        self._heal_every = heal_every
        self._lanes: dict[tuple[str, int, int], _Lane] = {}
        self._changed = asyncio.Event()
        self._sweep_at = clock.monotonic() + heal_every
        self._on_wake: Callable[[Wake], None] = lambda wake: None

    def announce(self, wake: Wake) -> None:
        self._bell.ring(wake)

    async def open(self, on_wake: Callable[[Wake], None]) -> None:
        self._on_wake = on_wake
        await self._bell.listen(self._heard)

    def assign(self, partitions: Collection[PartitionKey]) -> None:
        wanted = {(queue, partition, priority) for queue, partition in partitions for priority in PRIORITIES}
        for gone in self._lanes.keys() - wanted:
            del self._lanes[gone]
        for new in sorted(wanted - self._lanes.keys(), key=lambda lane: (lane[2], lane)):
            self._lanes[new] = _Lane(*new)
        self._changed.set()

    def room_freed(self) -> None:
        self._changed.set()

    def look_again(self) -> None:
        self._begin_sweep()
        self._changed.set()

    async def receive(self, room: Room) -> Sequence[Trigger]:
        while True:
            self._changed.clear()
            if self._clock.monotonic() >= self._sweep_at:
                self._begin_sweep()
            behind = [lane for lane in self._lanes.values() if lane.is_behind]
            for lane in sorted(behind, key=lambda lane: lane.priority):
                space = room(lane.queue, lane.priority)
                if space > 0 and (triggers := await self._read(lane, min(space, PAGE))):
                    return triggers
            await self._wait()

    async def close(self) -> None:
        await self._bell.close()

    async def _read(self, lane: _Lane, limit: int) -> Sequence[Trigger]:
        began = self._clock.monotonic()
        lane.is_behind = False  # before the read: a wake that comes meanwhile sets it again
        above = lane.read_seq
        try:
            rows = await self._store.database.read(
                self._store.ready(lane.queue, lane.partition, lane.priority, above, limit)
            )
        except BaseException:
            lane.is_behind = True
            raise
        self._sweep_at = max(self._sweep_at, began + (self._clock.monotonic() - began) / SWEEP_SHARE)
        if not rows:
            return ()
        if len(rows) == limit:
            lane.is_behind = True
        if lane.read_seq == above:  # not set back meanwhile
            lane.read_seq = rows[-1][0]
        known, lane.highest_seq = lane.highest_seq, max(lane.highest_seq, rows[-1][0])
        if rows[0][0] > known:
            return [trigger for _, trigger in rows]
        return [
            trigger if seq > known else msgspec.structs.replace(trigger, path=TriggerPath.HEAL) for seq, trigger in rows
        ]

    def _begin_sweep(self) -> None:
        for lane in self._lanes.values():
            lane.read_seq = 0
            lane.is_behind = True
        self._sweep_at = self._clock.monotonic() + self._heal_every

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(max(0.0, self._sweep_at - self._clock.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _heard(self, wake: Wake) -> None:
        if wake.is_empty:
            for lane in self._lanes.values():
                lane.is_behind = True
        for queue, partition, priority, first_seq in (
            (r.queue, r.partition, r.priority, r.first_seq) for r in wake.ready
        ):
            found = self._lanes.get((queue, partition, priority))
            if found is not None:
                found.is_behind = True
                found.read_seq = min(found.read_seq, first_seq - 1)
                found.highest_seq = min(found.highest_seq, first_seq - 1)
        self._changed.set()
        self._on_wake(wake)
