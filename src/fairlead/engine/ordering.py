"""Reservations of ordering keys: the tasks of a key run one at a time, in the order of `run_at` and
submission.

The store refuses a task while an earlier one of its key is unfinished. This node reads the next
task of a key from the store when memory does not show it: after a refusal, after a run that did not
end its task, and when more tasks of the key wait than are in memory.

A key whose first task (its head) waits for a retry, for a person or for another node is held: the
tasks behind the head leave memory, and the key is read again once its head changes. Notifications
announce such changes. A check of the versions of all heads finds changes whose notification was
lost; the check goes through the keys in small batches and returns changed heads only.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from fairlead.core.limits.held_keys import HEAL_SECONDS, SOON_SECONDS, Head, HeldKeys
from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import SimplePart
from fairlead.errors import StoreUnavailable
from fairlead.model import PartitionKey, State, Trigger, TriggerPath
from fairlead.pauses import event_or_pause

log = logging.getLogger("fairlead.ordering")

MOST_OF_KEY = 20
"""Maximum number of triggers of one ordering key in memory, so that they leave room for other
keys."""

MOST_READ = 500
"""Maximum number of tasks that one read returns."""

MOST_CHECKED = 1000
"""Maximum number of heads in one check."""

CHECK_SECONDS = 0.5
"""Seconds between two rounds of checks, so that heads that are due soon share one statement."""

CHECK_SHARE = 0.1
"""Greatest share of the time that checks take. The checks of very many heads are spread over more
time, and so are those of a slow store."""


class Ordering(SimplePart):
    """Admit triggers of ordering keys to the table, and hold reservations for tasks that must
    wait."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._table = context.table
        self._ledger = context.ledger
        self._partitions: dict[OrderingKey, int] = {}
        """Partition of each key in the collections below."""
        self._held = HeldKeys()
        """Reserved keys whose task does not run here."""
        self._to_read: dict[OrderingKey, None] = {}
        """Keys whose head to read now, the oldest wish first."""
        self._to_fill: dict[OrderingKey, None] = {}
        """Keys whose next tasks to read into memory now, the oldest wish first."""
        self._overflown: set[OrderingKey] = set()
        """Keys with more waiting tasks than are in memory."""
        self._complete_at: dict[PartitionKey, float] = {}
        """Monotonic seconds from which memory shows the tasks that an earlier owner of a partition
        had kept out: the channel has delivered all waiting tasks again by then."""
        self._check_at = 0.0
        """Monotonic seconds before which no check begins."""
        self._poked = asyncio.Event()

    def admits(self, trigger: Trigger) -> bool:
        """Return True if the trigger may go into the table. Any other trigger is read from the
        store when its task may run next."""
        if (
            trigger.ordering_key is None
            or _is_unordered(trigger)
            or self._ledger.has_reservation(trigger)
        ):
            return True
        key = OrderingKey(trigger.queue, trigger.ordering_key)
        partition = PartitionKey(trigger.queue, trigger.partition)
        if partition not in self._complete_at:
            self._complete_at[partition] = self._now() + HEAL_SECONDS
        head = self._held.head(key)
        if head is not None and _position(trigger) < (head.order_at, head.id):
            self._want(key)  # the trigger is newer than the head, or outdated and in its way
        is_held = head is not None and head.holds
        if not is_held and key not in self._overflown:
            if len(self._table.waiting(key)) < MOST_OF_KEY:
                return True
        elif not is_held and self._ledger.may_have_key(trigger) and not self._table.waiting(key):
            return True  # any other task of the key comes from the store, in its order
        self._partitions[key] = trigger.partition
        self._overflown.add(key)
        return False

    def refused(self, trigger: Trigger) -> None:
        """Note a lost claim: an earlier task of the key is unfinished, or the version changed."""
        key = self._reserve(trigger)
        self._overflown.add(key)  # the refused task may still wait, and is no longer in memory
        self._want(key)

    def granted(self, trigger: Trigger) -> None:
        """Note that another node has the trigger: its key is reserved, and not read, until the
        grant ends."""
        assert trigger.ordering_key is not None
        key = OrderingKey(trigger.queue, trigger.ordering_key)
        self._partitions[key] = trigger.partition
        self._held.drop(key)

    def read_now(self, key: OrderingKey) -> None:
        """Read a reserved key now, because its run on another node has ended."""
        if key in self._held:
            self._want(key)

    def ended(self, trigger: Trigger, is_done: bool) -> None:
        """Release the ordering key of a run whose task is DONE.

        Keep the key reserved, and read it from the store, if the task is not DONE or if the waiting
        tasks of the key are not in memory.
        """
        assert trigger.ordering_key is not None
        key = OrderingKey(trigger.queue, trigger.ordering_key)
        if not is_done:
            self._want(self._reserve(trigger))
        elif self._may_have_more(key, trigger.partition) and not self._table.waiting(key):
            self._to_fill[self._reserve(trigger)] = None
            self._poked.set()
        else:
            self._release(key)

    def _may_have_more(self, key: OrderingKey, partition: int) -> bool:
        """Return whether the store may have tasks of the key that are not in memory."""
        complete_at = self._complete_at.get(PartitionKey(key.queue, partition), 0.0)
        return key in self._overflown or self._now() < complete_at

    def on_finished(self, task_ids: Iterable[str]) -> None:
        """Read the keys that wait for these tasks, because somebody ended them."""
        for task_id in task_ids:
            if (key := self._held.key_of(task_id)) is not None:
                self._want(key)

    def poke(self) -> None:
        """Check all heads again, because notifications may have been lost."""
        self._held.check_all(self._now())
        self._poked.set()

    def drop(self, partitions: Collection[PartitionKey]) -> None:
        """Drop the keys of partitions that another node owns now."""
        for partition in partitions:
            self._complete_at.pop(partition, None)
        for key in [
            key
            for key, number in self._partitions.items()
            if PartitionKey(key.queue, number) in partitions
        ]:
            self._overflown.discard(key)
            self._held.drop(key)
            if self._ledger.is_reserved(key):
                self._ledger.release_reservation(key)
            del self._partitions[key]

    # rounds ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read and check reserved keys until cancelled."""
        while True:
            self._poked.clear()
            try:
                if await self._round():
                    await asyncio.sleep(0)  # a read may not wait, and other parts have work too
                    continue
            except StoreUnavailable as error:
                log.warning(
                    "ordering keys wait while the store is unavailable",
                    extra={"error": str(error)},
                )
                await self._context.clock.sleep(SOON_SECONDS)
                continue
            check_at = self._held.next_check()
            until = math.inf if check_at is None else max(check_at, self._check_at)
            await event_or_pause(self._poked, until - self._now())

    async def _round(self) -> bool:
        """Do the next read or check; return False if there was none to do."""
        for wanted, most in ((self._to_fill, MOST_OF_KEY), (self._to_read, 1)):
            if keys := [*islice(wanted, MOST_READ // most)]:
                for key in keys:
                    del wanted[key]
                try:
                    if held := [key for key in keys if key in self._held]:
                        await self._read(held, most)
                except StoreUnavailable:
                    wanted.update(dict.fromkeys(keys))
                    raise
                return True
        return await self._check()

    async def _read(self, keys: Sequence[OrderingKey], most: int) -> None:
        """Read the first `most` tasks of each key."""
        tasks: dict[OrderingKey, list[tuple[Trigger, State]]] = {key: [] for key in keys}
        before = {
            key: {_identity(t) for t in self._table.waiting(key)} for key in keys
        }  # a task that comes meanwhile may be newer than the result
        store = self._context.lane_reads
        for trigger, state in await store.database.read(store.ordered(sorted(keys), most)):
            tasks[OrderingKey(trigger.queue, trigger.ordering_key or "")].append((trigger, state))
        for key, first in tasks.items():
            if key in self._held:  # else the key was dropped meanwhile
                self._remove_stale(key, first, most, before[key])
                if first and self._has_before(key, first[0][0]):
                    self._want(key)  # newer or outdated triggers came during the read
                else:
                    self._apply(key, first)
        self._context.events.on_ready()

    async def _check(self) -> bool:
        """Look for changed heads among those that are due; return False if none is due."""
        now = self._now()
        if now < self._check_at or not (due := self._held.due(now, MOST_CHECKED)):
            return False
        heads = [(head.id, head.version) for _, head in due]
        store = self._context.lane_reads
        changed = await store.database.read(store.changed(heads))
        found, ended = set(changed), self._now()
        pause = 0.0 if len(due) == MOST_CHECKED else CHECK_SECONDS
        self._check_at = max(now + pause, ended + (ended - now) / CHECK_SHARE)
        for key, head in due:
            if self._held.head(key) is not head:
                continue  # read or dropped meanwhile
            if head.id in self._context.in_flight:
                self._held.drop(key)  # the end of its run releases the key
                continue
            self._held.check_later(key, now)
            if head.id in found:
                self._want(key)
            elif head.state == State.PROCESSING:
                self.leave_to_store(key)  # its run takes long
        return True

    def _remove_stale(
        self,
        key: OrderingKey,
        first: Sequence[tuple[Trigger, State]],
        most: int,
        before: Collection[_Identity],
    ) -> None:
        """Remove triggers that the read of the first tasks shows to be outdated."""
        ready = {_identity(t) for t, state in first if state == State.SUBMITTED}
        last = None if len(first) < most else _position(first[-1][0])
        stale = [
            t
            for t in self._table.waiting(key)
            if _identity(t) in before
            and _identity(t) not in ready
            and not _is_unordered(t)
            and (last is None or _position(t) <= last)
        ]
        if stale:
            self._table.remove(stale)
            self._context.events.on_outdated(stale)
            self._held.drop(key)
            self._held.add(key)  # the store did not refuse the head: a stale trigger was in its way
        if last is None:
            self._overflown.discard(key)

    def _has_before(self, key: OrderingKey, head: Trigger) -> bool:
        """Return whether triggers in the table come before the head of their key."""
        return any(
            _position(t) < _position(head) and not _is_unordered(t)
            for t in self._table.waiting(key)
        )

    def _apply(self, key: OrderingKey, first: Sequence[tuple[Trigger, State]]) -> None:
        """Reserve a key for its first task, and let the task run or hold the key."""
        if not first:
            self._release(key)
            return
        trigger, state = first[0]
        if trigger.id in self._context.in_flight:
            self._held.drop(key)  # the end of its run releases the key
            return
        self._ledger.reserve(key, trigger.id)
        head = Head(trigger.id, trigger.version, trigger.order_at, state)
        if head == self._held.head(key) and not head.holds:
            # The store refuses the head although it is the first: a later task that this node does
            # not show runs. Offer the head again after a pause.
            head = Head(trigger.id, 0, trigger.order_at, State.PROCESSING)
        self._held.set_head(key, head, self._now())
        if head.holds:
            if len(first) > 1:
                self._overflown.add(key)
            if head.state != State.PROCESSING:
                self.leave_to_store(key)
            return
        waiting = {t.id for t in self._table.waiting(key)}
        self._context.events.on_runnable(
            [t for t, state in first if state == State.SUBMITTED and t.id not in waiting]
        )
        self._table.try_again(key)

    def leave_to_store(self, key: OrderingKey) -> None:
        """Drop the triggers that wait for a busy key from memory. Its end makes this node read them
        again."""
        behind = [
            t
            for t in self._table.waiting(key)
            if t.path != TriggerPath.GRANT
            and not _is_unordered(t)
            and not self._ledger.has_reservation(t)
        ]
        if behind:
            self._overflown.add(key)
            self._context.events.on_kept_out(behind)

    def _want(self, key: OrderingKey) -> None:
        self._to_read[key] = None
        self._poked.set()

    def _reserve(self, trigger: Trigger) -> OrderingKey:
        assert trigger.ordering_key is not None
        key = OrderingKey(trigger.queue, trigger.ordering_key)
        self._ledger.reserve(key, trigger.id)
        self._partitions[key] = trigger.partition
        self._held.add(key)
        return key

    def _release(self, key: OrderingKey) -> None:
        self._held.drop(key)
        if key not in self._overflown:
            self._partitions.pop(key, None)
        self._table.freed(self._ledger.release_reservation(key))

    def _now(self) -> float:
        return self._context.clock.monotonic()


_Identity = tuple[str, int, int]


def _identity(trigger: Trigger) -> _Identity:
    return trigger.id, trigger.version, trigger.order_at


def _is_unordered(trigger: Trigger) -> bool:
    """Return whether the order of its key does not bind the task: it was skipped in ERROR, and a
    person resumed it. No read of the key returns such a task."""
    return trigger.order_at == 0


def _position(trigger: Trigger) -> tuple[int, str]:
    """Return the position of a task among those of its ordering key."""
    return trigger.order_at, trigger.id
