"""Reservations of ordering keys: the tasks of a key run one at a time, in the order of `run_at` and
submission.

The store refuses a task while an earlier one of its key is unfinished. This node reads the next
task of a key from the store when memory does not show it: after a refusal, after a run that did not
end its task, and when more tasks of the key wait than are in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence

from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import SimplePart
from fairlead.errors import StoreUnavailable
from fairlead.model import PartitionKey, State, Trigger

log = logging.getLogger("fairlead.ordering")

MOST_OF_KEY = 20
"""Maximum number of triggers of one ordering key in memory, so that they leave room for other
keys."""

_READ_SECONDS = 1.0
"""Seconds between two reads of a key whose next task is on another node."""

_HEAL_SECONDS = 15.0
"""Seconds between two reads of a key whose next task waits for a retry or for a person. A
notification announces the change; this read makes up for a lost one."""


class Ordering(SimplePart):
    """Admit triggers of ordering keys to the table, and hold reservations for tasks that must
    wait."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._table = context.table
        self._ledger = context.ledger
        self._partitions: dict[OrderingKey, int] = {}
        """Partition of each key in the collections below."""
        self._to_read: set[OrderingKey] = set()
        """Reserved keys to read now."""
        self._overflown: set[OrderingKey] = set()
        """Keys with more waiting tasks than are in memory."""
        self._read_at: dict[OrderingKey, float] = {}
        """When to read each reserved key again, in monotonic seconds."""
        self._poked = asyncio.Event()

    def admits(self, trigger: Trigger) -> bool:
        """Return True if the trigger may go into the table. Any other trigger is read from the
        store when its task may run next."""
        if trigger.ordering_key is None:
            return True
        key = OrderingKey(trigger.queue, trigger.ordering_key)
        if self._ledger.has_reservation(trigger) or len(self._table.waiting(key)) < MOST_OF_KEY:
            return True
        self._partitions[key] = trigger.partition
        self._overflown.add(key)
        return False

    def refused(self, trigger: Trigger) -> None:
        """Note a lost claim: an earlier task of the key is unfinished, or the version changed."""
        self._reserve(trigger)

    def granted(self, trigger: Trigger) -> None:
        """Note that another node has the trigger: its key is reserved, and not read, until the
        grant ends."""
        assert trigger.ordering_key is not None
        key = OrderingKey(trigger.queue, trigger.ordering_key)
        self._partitions[key] = trigger.partition
        self._read_at.pop(key, None)
        self._to_read.discard(key)

    def read_now(self, key: OrderingKey) -> None:
        """Read a reserved key now, because its run on another node has ended."""
        if key in self._read_at:
            self._to_read.add(key)
            self._poked.set()

    def ended(self, trigger: Trigger, is_done: bool) -> None:
        """Release the ordering key of a run whose task is DONE.

        Keep the key reserved, and read it from the store, if the task is not DONE or if the waiting
        tasks of the key are not in memory.
        """
        assert trigger.ordering_key is not None
        key = OrderingKey(trigger.queue, trigger.ordering_key)
        if is_done and not (key in self._overflown and not self._table.waiting(key)):
            self._release(key)
        else:
            self._reserve(trigger)

    def poke(self) -> None:
        """Read all reserved keys again, because a person or node changed something."""
        self._to_read.update(self._read_at)
        self._poked.set()

    def drop(self, partitions: Collection[PartitionKey]) -> None:
        """Drop the keys of partitions that another node owns now."""
        for key in [
            key
            for key, number in self._partitions.items()
            if PartitionKey(key.queue, number) in partitions
        ]:
            self._to_read.discard(key)
            self._overflown.discard(key)
            self._read_at.pop(key, None)
            if self._ledger.is_reserved(key):
                self._ledger.release_reservation(key)
            del self._partitions[key]

    async def run(self) -> None:
        """Read reserved keys until cancelled."""
        while True:
            self._poked.clear()
            now = self._context.clock.monotonic()
            self._to_read.update(key for key, at in self._read_at.items() if at <= now)
            if self._to_read:
                keys, self._to_read = self._to_read, set()
                try:
                    await self._read(keys)
                except StoreUnavailable as error:
                    log.warning(
                        "ordering keys wait while the store is unavailable",
                        extra={"error": str(error)},
                    )
                    self._to_read |= keys
                    await self._context.clock.sleep(_READ_SECONDS)
                continue
            next_read = min(self._read_at.values(), default=None)
            try:
                async with asyncio.timeout(
                    None if next_read is None else max(0.0, next_read - now)
                ):
                    await self._poked.wait()
            except TimeoutError:
                pass

    async def _read(self, keys: Collection[OrderingKey]) -> None:
        waiting: dict[OrderingKey, list[tuple[Trigger, State]]] = {key: [] for key in keys}
        before = {
            key: self._table.waiting(key) for key in keys
        }  # a task that comes meanwhile may be newer than the result
        for trigger, state in await self._context.store.database.read(
            self._context.store.ordered(sorted(keys), MOST_OF_KEY)
        ):
            waiting[OrderingKey(trigger.queue, trigger.ordering_key or "")].append((trigger, state))
        for key, tasks in waiting.items():
            if key in self._read_at:  # else the key was dropped meanwhile
                self._apply(key, tasks, before[key])
        self._context.events.on_ready()

    def _apply(
        self, key: OrderingKey, tasks: Sequence[tuple[Trigger, State]], before: Collection[Trigger]
    ) -> None:
        ready = {(t.id, t.version, t.order_at) for t, state in tasks if state == State.SUBMITTED}
        last = None if len(tasks) < MOST_OF_KEY else (tasks[-1][0].order_at, tasks[-1][0].id)
        were_waiting = {(t.id, t.version, t.order_at) for t in before}
        stale = [
            t
            for t in self._table.waiting(key)
            if (t.id, t.version, t.order_at) in were_waiting
            and (t.id, t.version, t.order_at) not in ready
            and (last is None or (t.order_at, t.id) <= last)
        ]
        if stale:
            self._table.remove(stale)
            self._context.events.on_outdated(stale)
        if not tasks:
            self._overflown.discard(key)
            self._release(key)
            return
        if last is None:
            self._overflown.discard(key)
        head, state = tasks[0]
        if head.id in self._context.in_flight:
            self._read_at.pop(key)  # the end of its run releases the key
            return
        self._ledger.reserve(key, head.id)
        waiting = {t.id for t in self._table.waiting(key)}
        self._context.events.on_runnable(
            [t for t, state in tasks if state == State.SUBMITTED and t.id not in waiting]
        )
        self._table.try_again(key)
        soon = state in (State.PROCESSING, State.SUBMITTED)
        self._read_at[key] = self._context.clock.monotonic() + (
            _READ_SECONDS if soon else _HEAL_SECONDS
        )

    def _reserve(self, trigger: Trigger) -> None:
        assert trigger.ordering_key is not None
        key = OrderingKey(trigger.queue, trigger.ordering_key)
        self._ledger.reserve(key, trigger.id)
        self._partitions[key] = trigger.partition
        self._read_at[key] = self._context.clock.monotonic()
        self._to_read.add(key)
        self._poked.set()

    def _release(self, key: OrderingKey) -> None:
        self._read_at.pop(key, None)
        if key not in self._overflown:
            self._partitions.pop(key, None)
        self._table.freed(self._ledger.release_reservation(key))
