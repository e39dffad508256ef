"""Claimers: how the triggers of one kind of queue become runs, and how their ends are written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeVar

from fairlead.clock import MICROS
from fairlead.engine.completion import Completion
from fairlead.engine.context import NodeContext
from fairlead.engine.execution import Execution
from fairlead.engine.intake import Intake
from fairlead.engine.ordering import Ordering
from fairlead.errors import StoreUnavailable
from fairlead.model import Finish, Trigger
from fairlead.ordered.queues import OrderedQueues
from fairlead.ports.task_store import Claim

log = logging.getLogger("fairlead.dispatcher")

_PAUSE_AFTER_TROUBLE = 1.0  # seconds
_NEVER_STUCK = 1 << 62

T = TypeVar("T")


class Claimer(Protocol):
    """Claims the tasks of one kind of queue."""

    async def claim(self, triggers: Sequence[Trigger], holds_slots: bool) -> list[Execution]:
        """Claim the tasks of triggers that have left the table; return those that are this node's
        now. Slots of the others are released, where slots are held."""

    def end(self, execution: Execution, finish: Finish) -> None:
        """Have the end of a run written."""

    def settle(self, executions: Sequence[Execution]) -> None:
        """Forget runs whose ends are written, or needed by nobody."""

    async def hand_back(self, executions: Sequence[Execution]) -> None:
        """Give back tasks that were claimed and will not begin here."""


class TaskClaimer:
    """Claims rows of the task store, hundreds in one statement, each a compare-and-set on its
    version."""

    def __init__(
        self, context: NodeContext, intake: Intake, ordering: Ordering, completion: Completion
    ) -> None:
        self._context = context
        self._intake = intake
        self._ordering = ordering
        self._completion = completion
        self._batches: set[int] = set()
        self._asked: Sequence[Trigger] = ()

    def asked(self) -> set[str]:
        """Return the tasks of the claim that is on its way: the store may say already that this
        node holds them."""
        return {trigger.id for trigger in self._asked}

    async def claim(self, triggers: Sequence[Trigger], holds_slots: bool) -> list[Execution]:
        context, clock = self._context, self._context.clock
        self._intake.taken(triggers)
        now = clock.now()
        wanted = [Claim(t.id, t.version, t.path, self._stuck_at(t.name, now)) for t in triggers]
        self._asked = triggers
        try:
            claimed = await context.store.claim(context.name, wanted, now)
        except StoreUnavailable as error:
            self._asked = ()
            log.warning(
                "nothing can be claimed while the store is away", extra={"error": str(error)}
            )
            self._release_slots(triggers, holds_slots)
            self._intake.returned(triggers)
            await clock.sleep(_PAUSE_AFTER_TROUBLE)
            context.events.on_claim_unknown()
            return []
        self._asked = ()
        wanted_by = {(trigger.id, trigger.version): trigger for trigger in triggers}
        if len(wanted_by) < len(triggers):
            # A trigger that came twice was taken twice: one of the two is enough.
            kept = set(map(id, wanted_by.values()))
            doubles = [trigger for trigger in triggers if id(trigger) not in kept]
            self._release_slots(doubles, holds_slots)
        executions = []
        handlers, in_flight = context.served.handlers, context.in_flight
        for task in claimed:
            trigger = wanted_by.pop((task.id, task.version - 1))
            execution = Execution(trigger, task, handlers.get(trigger.name), holds_slots)
            in_flight[task.id] = execution
            executions.append(execution)
        self._batches.update(task.batch for task in claimed)
        if wanted_by:
            context.observer.counted("lost_claims", len(wanted_by))
            self._release_slots(list(wanted_by.values()), holds_slots)
            self._intake.refused(wanted_by.values())
        self._intake.answered(triggers)
        context.observer.claimed([(one.trigger, one.claimed) for one in executions])
        return executions

    def end(self, execution: Execution, finish: Finish) -> None:
        self._completion.add(execution, finish)

    def settle(self, executions: Sequence[Execution]) -> None:
        for execution in executions:
            self._context.in_flight.pop(execution.claimed.id, None)
            if execution.trigger.ordering_key is not None and execution.holds_slot:
                self._ordering.ended(execution.trigger, execution.is_done)
        self._intake.forget([execution.trigger for execution in executions])

    async def hand_back(self, executions: Sequence[Execution]) -> None:
        held = [(execution.claimed.id, execution.claimed.version) for execution in executions]
        try:
            notification = await self._context.store.hand_back(self._context.name, held)
        except StoreUnavailable as error:
            log.warning(
                "could not hand back; others will resume",
                extra={"tasks": len(held), "error": str(error)},
            )
            self._context.events.on_claim_unknown()
            return
        finally:
            self._context.events.on_settled(executions)
        if notification is not None:
            self._context.channel.announce(notification)

    def held(self) -> list[str]:
        """Return the ids of the tasks that this node holds in the task store."""
        ordered = self._context.kinds.ordered
        return [
            task_id
            for task_id, execution in self._context.in_flight.items()
            if execution.trigger.queue not in ordered
        ]

    def ended_batches(self) -> list[int]:
        """Return the claims of which nothing is in flight any more, each once."""
        in_flight = self._context.in_flight.values()
        ended = self._batches - {execution.claimed.batch for execution in in_flight}
        self._batches -= ended
        return sorted(ended)

    def _stuck_at(self, name: str, now: int) -> int:
        handler = self._context.served.handlers.get(name)
        if handler is None or handler.processing.max_stuck is None:
            return _NEVER_STUCK
        return now + round(handler.processing.max_stuck * MICROS)

    def _release_slots(self, triggers: Sequence[Trigger], holds_slots: bool) -> None:
        if holds_slots:
            release_slots(self._context, triggers)
            for trigger in triggers:
                if trigger.ordering_key is not None:
                    self._ordering.refused(trigger)
        self._context.events.on_ready()


class OrderedClaimer:
    """Claims tasks of ordered queues from the memory of the partition that loaded them: nothing is
    asked of a store."""

    def __init__(self, context: NodeContext, queues: OrderedQueues) -> None:
        self._context = context
        self._queues = queues

    async def claim(self, triggers: Sequence[Trigger], holds_slots: bool) -> list[Execution]:
        context, executions = self._context, []
        now = context.clock.now()
        for trigger in triggers:
            if (task := self._queues.claim(trigger, now)) is None:
                if holds_slots:
                    release_slots(context, [trigger])
                context.events.on_ready()
                continue
            handler = context.served.handlers.get(trigger.name)
            execution = Execution(trigger, task, handler, holds_slots)
            context.in_flight[task.id] = execution
            executions.append(execution)
        if executions and holds_slots:
            context.observer.claimed([(one.trigger, one.claimed) for one in executions])
        return executions

    def end(self, execution: Execution, finish: Finish) -> None:
        self._context.observer.finished([(execution.trigger, execution.claimed, finish)])
        self._queues.ended(execution.trigger, finish)

    def settle(self, executions: Sequence[Execution]) -> None:
        in_flight = self._context.in_flight
        known = [
            execution
            for execution in executions
            if in_flight.get(execution.claimed.id) is execution
        ]
        self._queues.let_go([execution.trigger for execution in known])
        for execution in known:
            in_flight.pop(execution.claimed.id, None)

    async def hand_back(self, executions: Sequence[Execution]) -> None:
        self._context.events.on_settled(executions)


class Claimers:
    """The claimer of each queue."""

    def __init__(self, tasks: Claimer, ordered: Claimer, ordered_queues: Collection[str]) -> None:
        self._tasks = tasks
        self._others = dict.fromkeys(ordered_queues, ordered)

    def of(self, queue: str) -> Claimer:
        """Return the claimer of a queue."""
        return self._others.get(queue, self._tasks)

    def split(
        self, items: Sequence[T], queue_of: Callable[[T], str]
    ) -> Iterable[tuple[Claimer, Sequence[T]]]:
        """Return the items by claimer, in their order. Rows of the task store come last: nothing
        that is claimed from memory waits for the store."""
        if not self._others:
            return [(self._tasks, items)]
        found: dict[Claimer, list[T]] = {}
        for item in items:
            found.setdefault(self.of(queue_of(item)), []).append(item)
        return sorted(found.items(), key=lambda each: each[0] is self._tasks)


def release_slots(context: NodeContext, triggers: Iterable[Trigger]) -> None:
    """Give back the slots of triggers whose tasks were not claimed."""
    now = context.clock.monotonic()
    for trigger in triggers:
        context.table.freed(context.ledger.cancel(trigger, now))
