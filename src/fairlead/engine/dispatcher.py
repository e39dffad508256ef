"""Takes triggers out of the table, books their slots, grabs the tasks and has them run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from fairlead.clock import MICROS, Clock
from fairlead.core.limits.slot_ledger import PolicyFailed, SlotLedger
from fairlead.core.triggers.table import TriggerTable
from fairlead.declare.handler import Handler
from fairlead.engine.completion import MOST_WAITING
from fairlead.engine.execution import Execution
from fairlead.engine.intake import Intake
from fairlead.engine.ordering import Ordering
from fairlead.engine.runs import Runs
from fairlead.errors import StoreUnavailable
from fairlead.model import Trigger
from fairlead.ordered.queues import OrderedQueues
from fairlead.ports.observer import Observer
from fairlead.ports.task_store import Grab, TaskStore

log = logging.getLogger("fairlead.dispatcher")

MOST_AT_ONCE = 500
"""Tasks in one grab."""

_PAUSE_AFTER_TROUBLE = 1.0  # seconds
_NEVER_STUCK = 1 << 62


class Dispatcher:
    """One grab is on its way at a time; what its tasks and those before them free meanwhile goes
    into the next."""

    def __init__(
        self,
        node: str,
        store: TaskStore,
        table: TriggerTable,
        booking: SlotLedger,
        intake: Intake,
        ordering: Ordering,
        ordered: OrderedQueues,
        runs: Runs,
        handlers: Mapping[str, Handler],
        failed: Callable[[], None],
        observer: Observer,
        clock: Clock,
    ) -> None:
        self._node = node
        self._store = store
        self._table = table
        self._booking = booking
        self._intake = intake
        self._ordering = ordering
        self._ordered = ordered
        self._runs = runs
        self._handlers = handlers
        self._failed = failed
        self._observer = observer
        self._clock = clock
        self._wanted = asyncio.Event()
        self._is_stopping = False
        self._batches: set[int] = set()
        self._asked: Sequence[Trigger] = ()

    def asked(self) -> set[str]:
        """Tasks of the grab that is on its way: the store may say already that this node holds
        them."""
        return {trigger.id for trigger in self._asked}

    def wake(self) -> None:
        """There may be something to dispatch: a trigger came, a slot was freed."""
        self._wanted.set()

    def stop(self) -> None:
        """Begin no further grab. One on its way is waited for: cut off, it would leave tasks that
        nobody knows of."""
        self._is_stopping = True
        self._wanted.set()

    async def run(self) -> None:
        """Dispatch until `stop`."""
        while not self._is_stopping:
            if not await self._dispatch():
                await self._wait()

    async def _wait(self) -> None:
        if self._is_stopping:
            return
        retry_at = self._table.next_retry()
        try:
            async with asyncio.timeout(
                None if retry_at is None else max(0.0, retry_at - self._clock.monotonic())
            ):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def _dispatch(self) -> bool:
        """One batch; False when there is nothing that may run now."""
        if self._is_stopping:
            return False
        self._wanted.clear()
        if len(self._runs.in_flight) - self._booking.booked >= MOST_WAITING:
            return False
        triggers, broken = self._table.take(MOST_AT_ONCE, self._clock.monotonic())
        if not triggers and not broken:
            self._intake.blocked(self._booking.room > 0 and len(self._table) > 0)
            return False
        self._intake.blocked(False)
        triggers = self._start_ordered(triggers)
        self._intake.taken(triggers)
        if triggers and (executions := await self._grab(triggers, are_booked=True)):
            self._runs.start(executions)
        if broken:
            await self._record_broken(broken)
        return True

    async def _record_broken(self, broken: Sequence[PolicyFailed]) -> None:
        """Tasks whose policy raised hold no booking; they are grabbed only so that their attempt
        can be failed."""
        errors = {failure.trigger.id: failure.error for failure in broken}
        triggers = [failure.trigger for failure in broken]
        for execution in self._grab_ordered(triggers, are_booked=False):
            self._runs.policy_failed(execution, errors[execution.grabbed.id])
        triggers = [trigger for trigger in triggers if trigger.queue not in self._ordered]
        self._intake.taken(triggers)
        for execution in await self._grab(triggers, are_booked=False):
            self._runs.policy_failed(execution, errors[execution.grabbed.id])

    def _start_ordered(self, triggers: list[Trigger]) -> list[Trigger]:
        """Start those of ordered queues, which are in no task store; answers the others."""
        if not self._ordered:
            return triggers
        ordered = [trigger for trigger in triggers if trigger.queue in self._ordered]
        if executions := self._grab_ordered(ordered, are_booked=True):
            self._observer.grabbed(
                [(execution.trigger, execution.grabbed) for execution in executions]
            )
            self._runs.start(executions)
        return [trigger for trigger in triggers if trigger.queue not in self._ordered]

    def _grab_ordered(self, triggers: Sequence[Trigger], are_booked: bool) -> list[Execution]:
        executions = []
        now = self._clock.now()
        for trigger in triggers:
            if trigger.queue not in self._ordered:
                continue
            if (task := self._ordered.grab(trigger, now)) is None:
                self._unbook([trigger], are_booked)
                continue
            execution = Execution(trigger, task, self._handlers.get(trigger.name), are_booked)
            self._runs.in_flight[task.id] = execution
            executions.append(execution)
        return executions

    async def _grab(self, triggers: Sequence[Trigger], are_booked: bool) -> list[Execution]:
        now = self._clock.now()
        wanted = [Grab(t.id, t.version, t.path, self._stuck_at(t.name, now)) for t in triggers]
        self._asked = triggers
        try:
            grabbed = await self._store.grab(self._node, wanted, now)
        except StoreUnavailable as error:
            self._asked = ()
            log.warning(
                "nothing can be grabbed while the store is away", extra={"error": str(error)}
            )
            self._unbook(triggers, are_booked)
            self._intake.returned(triggers)
            await self._clock.sleep(_PAUSE_AFTER_TROUBLE)
            self._failed()
            return []
        self._asked = ()
        wanted_by = {(trigger.id, trigger.version): trigger for trigger in triggers}
        if len(wanted_by) < len(
            triggers
        ):  # one that came twice and was taken twice: one of them is enough
            kept = set(map(id, wanted_by.values()))
            self._unbook([trigger for trigger in triggers if id(trigger) not in kept], are_booked)
        executions = []
        handlers, in_flight = self._handlers, self._runs.in_flight
        for task in grabbed:
            trigger = wanted_by.pop((task.id, task.version - 1))
            execution = Execution(trigger, task, handlers.get(trigger.name), are_booked)
            in_flight[task.id] = execution
            executions.append(execution)
        self._batches.update(task.batch for task in grabbed)
        if wanted_by:
            self._observer.counted("lost_grabs", len(wanted_by))
            self._unbook(list(wanted_by.values()), are_booked)
            self._intake.refused(wanted_by.values())
        self._intake.answered(triggers)
        self._observer.grabbed([(execution.trigger, execution.grabbed) for execution in executions])
        return executions

    def ended_batches(self) -> list[int]:
        """Grabs of which nothing is in flight any more; each is told once."""
        ended = self._batches - {
            execution.grabbed.batch for execution in self._runs.in_flight.values()
        }
        self._batches -= ended
        return sorted(ended)

    def _stuck_at(self, name: str, now: int) -> int:
        handler = self._handlers.get(name)
        if handler is None or handler.processing.max_stuck is None:
            return _NEVER_STUCK
        return now + round(handler.processing.max_stuck * MICROS)

    def _unbook(self, triggers: Sequence[Trigger], are_booked: bool) -> None:
        if are_booked:
            now = self._clock.monotonic()
            for trigger in triggers:
                self._table.freed(self._booking.unbook(trigger, now))
                if trigger.ordering_key is not None:
                    self._ordering.refused(trigger)
        self._wanted.set()
