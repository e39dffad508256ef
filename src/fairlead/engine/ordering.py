"""Whose turn it is of each ordering key: its tasks run one at a time, in (run_at, submission)
order.

The store refuses a task before its turn, and is asked whose it is when this node cannot know: after
a refusal, after a run that did not end its task, when more tasks of a key wait than are kept in
memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence

from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import Running
from fairlead.errors import StoreUnavailable
from fairlead.model import PartitionKey, State, Trigger

log = logging.getLogger("fairlead.ordering")

MOST_OF_KEY = 20
"""Triggers of one ordering key in memory: more of them would only take the place of other keys'."""

_LOOK_SECONDS = 1.0
"""How often the store is asked about a key whose turn is with another node."""

_HEAL_SECONDS = 15.0
"""How often about one that waits for a next try or for a person; changes are told, this is for what
was not heard."""


class Ordering(Running):
    """Decides which trigger of an ordering key may stand in the table, and keeps the turn of those
    that must wait."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._table = context.table
        self._ledger = context.ledger
        self._partitions: dict[OrderingKey, int] = {}
        """Of every key below."""
        self._ask: set[OrderingKey] = set()
        self._overflown: set[OrderingKey] = set()
        """More tasks of it wait than are in memory."""
        self._look_at: dict[OrderingKey, float] = {}
        """Of the keys whose turn is kept: when to ask again (monotonic seconds)."""
        self._asked = asyncio.Event()

    def admits(self, trigger: Trigger) -> bool:
        """True if the trigger may go into the table; else the store will be asked for it when its
        turn is near."""
        if trigger.ordering_key is None:
            return True
        key = OrderingKey(trigger.queue, trigger.ordering_key)
        if self._ledger.has_reservation(trigger) or len(self._table.waiting(key)) < MOST_OF_KEY:
            return True
        self._partitions[key] = trigger.partition
        self._overflown.add(key)
        return False

    def refused(self, trigger: Trigger) -> None:
        """The store did not let it run: it is another one's turn, or its task has moved on."""
        self._keep(trigger)

    def ended(self, trigger: Trigger, is_done: bool) -> None:
        """Its run has ended, and the store knows. `is_done`: so has the task."""
        assert trigger.ordering_key is not None
        key = OrderingKey(trigger.queue, trigger.ordering_key)
        if is_done and not (key in self._overflown and not self._table.waiting(key)):
            self._give(key)
        else:
            self._keep(trigger)

    def look(self) -> None:
        """Somebody changed something: ask about all that is kept."""
        self._ask.update(self._look_at)
        self._asked.set()

    def drop(self, partitions: Collection[PartitionKey]) -> None:
        """These partitions are another node's now."""
        for key in [
            key
            for key, number in self._partitions.items()
            if PartitionKey(key.queue, number) in partitions
        ]:
            self._ask.discard(key)
            self._overflown.discard(key)
            if self._look_at.pop(key, None) is not None:
                self._ledger.release_reservation(key)
            del self._partitions[key]

    async def run(self) -> None:
        """Ask for as long as the node lives."""
        while True:
            self._asked.clear()
            now = self._context.clock.monotonic()
            self._ask.update(key for key, at in self._look_at.items() if at <= now)
            if self._ask:
                asked, self._ask = self._ask, set()
                try:
                    await self._look_up(asked)
                except StoreUnavailable as error:
                    log.warning(
                        "ordering keys wait while the store is away", extra={"error": str(error)}
                    )
                    self._ask |= asked
                    await self._context.clock.sleep(_LOOK_SECONDS)
                continue
            next_look = min(self._look_at.values(), default=None)
            try:
                async with asyncio.timeout(
                    None if next_look is None else max(0.0, next_look - now)
                ):
                    await self._asked.wait()
            except TimeoutError:
                pass

    async def _look_up(self, keys: Collection[OrderingKey]) -> None:
        waiting: dict[OrderingKey, list[tuple[Trigger, State]]] = {key: [] for key in keys}
        before = {
            key: self._table.waiting(key) for key in keys
        }  # what comes meanwhile may be younger than the answer
        for trigger, state in await self._context.store.database.read(
            self._context.store.ordered(sorted(keys), MOST_OF_KEY)
        ):
            waiting[OrderingKey(trigger.queue, trigger.ordering_key or "")].append((trigger, state))
        for key, tasks in waiting.items():
            if key in self._look_at:  # else it was dropped meanwhile
                self._settle(key, tasks, before[key])
        self._context.events.on_ready()

    def _settle(
        self, key: OrderingKey, tasks: Sequence[tuple[Trigger, State]], before: Collection[Trigger]
    ) -> None:
        ready = {(t.id, t.version, t.order_at) for t, state in tasks if state == State.SUBMITTED}
        last = None if len(tasks) < MOST_OF_KEY else (tasks[-1][0].order_at, tasks[-1][0].id)
        were_here = {(t.id, t.version, t.order_at) for t in before}
        stale = [
            t
            for t in self._table.waiting(key)
            if (t.id, t.version, t.order_at) in were_here
            and (t.id, t.version, t.order_at) not in ready
            and (last is None or (t.order_at, t.id) <= last)
        ]
        if stale:
            self._table.remove(stale)
            self._context.events.on_gone(stale)
        if not tasks:
            self._overflown.discard(key)
            self._give(key)
            return
        if last is None:
            self._overflown.discard(key)
        head, state = tasks[0]
        if head.id in self._context.in_flight:
            self._look_at.pop(key)  # its end will tell
            return
        self._ledger.reserve(key, head.id)
        here = {t.id for t in self._table.waiting(key)}
        self._context.events.on_found(
            [t for t, state in tasks if state == State.SUBMITTED and t.id not in here]
        )
        self._table.try_again(key)
        soon = state in (State.PROCESSING, State.SUBMITTED)
        self._look_at[key] = self._context.clock.monotonic() + (
            _LOOK_SECONDS if soon else _HEAL_SECONDS
        )

    def _keep(self, trigger: Trigger) -> None:
        assert trigger.ordering_key is not None
        key = OrderingKey(trigger.queue, trigger.ordering_key)
        self._ledger.reserve(key, trigger.id)
        self._partitions[key] = trigger.partition
        self._look_at[key] = self._context.clock.monotonic()
        self._ask.add(key)
        self._asked.set()

    def _give(self, key: OrderingKey) -> None:
        self._look_at.pop(key, None)
        if key not in self._overflown:
            self._partitions.pop(key, None)
        self._table.freed(self._ledger.release_reservation(key))
