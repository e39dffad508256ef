"""Claimers: turn triggers of one kind of queue into runs, and complete them."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from fairlead.batch_writer import is_outage
from fairlead.clock import MICROS
from fairlead.core.batches import BatchSize
from fairlead.engine.completion import Completion
from fairlead.engine.context import NodeContext
from fairlead.engine.intake import Intake
from fairlead.engine.run import Run
from fairlead.errors import BatchTooLarge, FairleadError, StoreUnavailable, WriteRefused
from fairlead.model import ClaimedTask, Trigger, TriggerPath
from fairlead.ordered.queues import OrderedQueues
from fairlead.pauses import outage_pause
from fairlead.ports.task_records import TaskVersion
from fairlead.ports.task_store import (
    IGNORE_STUCK,
    PLAIN_TERMS,
    RESUME_STUCK,
    SKIP_FAILED,
    ClaimTerms,
)
from fairlead.refused_writes import RefusedWrites, error_line

log = logging.getLogger("fairlead.dispatcher")

MOST_AT_ONCE = 10_000
"""Maximum number of tasks in one claim."""

RETRY_CLAIM = 10.0
"""Seconds until a refused claim is tried again."""

_WHEN_STUCK = {"resume": RESUME_STUCK, "error": 0, "ignore": IGNORE_STUCK}

T = TypeVar("T", Trigger, Run)


class Claimer(Protocol):
    """Claims the tasks of one kind of queue."""

    async def claim(self, triggers: Sequence[Trigger], holds_slots: bool) -> list[Run]:
        """Claim the tasks of triggers taken from the table; return the won claims as runs.

        Release the slots of lost claims if `holds_slots`. Raise RuntimeError if the store claimed
        a task at a version that was not named.
        """

    def complete(self, run: Run) -> None:
        """Queue the end of a run for its completion."""

    def settle(self, runs: Sequence[Run]) -> None:
        """Drop runs whose ends the store has recorded or refused."""

    async def hand_back(self, runs: Sequence[Run]) -> None:
        """Hand back tasks that were claimed but have not started."""


class _Deferred(NamedTuple):
    """Triggers of one batch whose claims the store refuses."""

    retry_at: float
    """Monotonic seconds."""
    triggers: Sequence[Trigger]
    holds_slots: bool


class TaskClaimer:
    """Claim rows of the task store in batches, each row by compare-and-set on its version.

    A claim that the store refuses alone is tried again after RETRY_CLAIM seconds, and all others of
    its batch are made. Meanwhile the trigger has no slot and is not in the table; its ordering key
    stays reserved.
    """

    def __init__(self, context: NodeContext, intake: Intake, completion: Completion) -> None:
        self._context = context
        self._intake = intake
        self._completion = completion
        self._batches: set[int] = set()
        """Batches of claims that were not dropped."""
        self._being_claimed: Sequence[Trigger] = ()
        self._size = BatchSize(MOST_AT_ONCE)
        self._deferred = deque[_Deferred]()
        self._log_refused = RefusedWrites("claim", log, context.clock, context.events.on_incidents)

    def known(self) -> set[TaskVersion]:
        """Return the claims that this node knows of: of tasks in flight, and those in progress,
        which the store may show already. An earlier run of a task is another claim."""
        in_flight = self._context.in_flight.values()
        return {
            *((each.claimed.id, each.claimed.version) for each in in_flight),
            *((trigger.id, trigger.version + 1) for trigger in self._being_claimed),
        }

    async def claim(self, triggers: Sequence[Trigger], holds_slots: bool) -> list[Run]:
        context, clock = self._context, self._context.clock
        self._intake.taken(triggers)
        now = clock.now()
        self._being_claimed = triggers
        try:
            claimed, refused = await self._claim(triggers, now)
        except StoreUnavailable as error:
            self._being_claimed = ()
            log.warning(
                "cannot claim tasks while the store is unavailable", extra={"error": str(error)}
            )
            self._release_slots(triggers, holds_slots)
            self._intake.returned(triggers)
            await clock.sleep(outage_pause())
            context.events.on_claim_unknown()
            return []
        self._being_claimed = ()
        if refused:
            triggers = self._defer(triggers, refused, holds_slots)
        wanted_by: dict[tuple[str, int], Trigger] = {}
        for trigger in triggers:
            wanted_by.setdefault((trigger.id, trigger.version), trigger)
        if len(wanted_by) < len(triggers):
            # A trigger delivered twice was taken twice: release the slot of the second.
            kept = set(map(id, wanted_by.values()))
            doubles = [trigger for trigger in triggers if id(trigger) not in kept]
            self._release_slots(doubles, holds_slots)
        runs = []
        handlers, in_flight = context.served.handlers, context.in_flight
        notes = context.notes
        found = {(task.id, task.version - 1): task for task in claimed}
        lost = []
        for key, trigger in wanted_by.items():  # in the order of dispatch
            if (task := found.get(key)) is None:
                lost.append(trigger)
                continue
            handler = handlers.get(trigger.name)
            run = Run(trigger, task, handler, holds_slots, notes, context.heartbeats.is_ahead)
            in_flight[task.id] = run
            runs.append(run)
        if len(runs) < len(claimed):
            raise RuntimeError("the store claimed tasks at versions that this node did not name")
        self._batches.update(task.batch for task in claimed)
        if lost:
            context.observer.counted("lost_claims", len(lost))
            self._release_slots(lost, holds_slots)
        self._intake.claim_ended(triggers)
        if lost:
            self._intake.refused(lost)
        context.observer.claimed(runs)
        return runs

    async def _claim(
        self, triggers: Sequence[Trigger], now: int
    ) -> tuple[list[ClaimedTask], dict[str, Exception]]:
        """Claim tasks, in smaller batches if the store refuses some. Return the claimed tasks, and
        the error of each refused claim by the id of its task. Raise StoreUnavailable; the store may
        then have made some of the claims."""
        if not self._context.heartbeats.is_ahead():
            raise StoreUnavailable("no heartbeat of this node has reached the store")
        claimed: list[ClaimedTask] = []
        refused: dict[str, Exception] = {}
        terms = {name: self._terms(name, now) for name in {t.name for t in triggers}}
        pieces = [triggers]  # the next one last
        while pieces:
            piece = pieces.pop()
            if len(piece) > self._size.allowed:
                pieces.append(piece[self._size.allowed :])
                piece = piece[: self._size.allowed]
            try:
                claimed += await self._context.claims.claim(self._context.name, piece, now, terms)
            except Exception as error:
                is_ours = isinstance(error, FairleadError) and not isinstance(error, WriteRefused)
                if is_ours or is_outage(error):
                    raise
                if isinstance(error, BatchTooLarge):
                    self._size.refused(len(piece))
                if len(piece) == 1:
                    refused[piece[0].id] = error
                else:
                    half = len(piece) // 2
                    pieces += [piece[half:], piece[:half]]
            else:
                self._size.accepted(len(piece))
        return claimed, refused

    # refused claims -------------------------------------------------------------------------------

    def _defer(
        self, triggers: Sequence[Trigger], refused: dict[str, Exception], holds_slots: bool
    ) -> Sequence[Trigger]:
        """Release the slots of triggers whose claims the store refuses, and return the others."""
        unwanted = [trigger for trigger in triggers if trigger.id in refused]
        if holds_slots:
            release_slots(self._context, unwanted)
        for trigger in unwanted:
            self._context.table.ended(trigger, 0)  # it is charged again when it starts
            self._log_refused.on_refused(
                refused[trigger.id], refused, trigger.id, trigger.queue, trigger.name
            )
        retry_at = self._context.clock.monotonic() + RETRY_CLAIM
        self._deferred.append(_Deferred(retry_at, unwanted, holds_slots))
        self._context.events.on_ready()
        return [trigger for trigger in triggers if trigger.id not in refused]

    def retry(self) -> float:
        """Put back the triggers whose refused claims are due. Return the time of the next ones, in
        monotonic seconds."""
        while self._deferred and self._deferred[0].retry_at <= self._context.clock.monotonic():
            self._put_back(self._deferred.popleft())
        return self._deferred[0].retry_at if self._deferred else math.inf

    def _put_back(self, deferred: _Deferred) -> None:
        for trigger in deferred.triggers:
            # A lost partition has taken its reservations along.
            is_granted = trigger.path == TriggerPath.GRANT
            is_reserved = is_granted or self._context.ledger.has_reservation(trigger)
            if trigger.ordering_key is not None and deferred.holds_slots and is_reserved:
                self._intake.key_refused(trigger)
        self._intake.returned(deferred.triggers)
        self._context.events.on_ready()

    def complete(self, run: Run) -> None:
        self._completion.add(run)

    def settle(self, runs: Sequence[Run]) -> None:
        in_flight = self._context.in_flight
        for run in runs:
            # This node may run the task again already: the end was recorded, but not the response.
            if in_flight.get(run.claimed.id) is run:
                del in_flight[run.claimed.id]
        self._intake.settled(runs)

    async def hand_back(self, runs: Sequence[Run]) -> None:
        held = [(run.claimed.id, run.claimed.version) for run in runs]
        try:
            notification = await self._context.claims.hand_back(self._context.name, held)
        except Exception as error:  # the node stops, whatever the store refuses
            log.warning(
                "could not hand back tasks; other nodes will resume them",
                extra={"tasks": len(held), "error": error_line(error)},
            )
            self._context.events.on_claim_unknown()
            return
        finally:
            self._context.events.on_settled(runs)
        if notification is not None:
            self._context.channel.announce(notification)

    def held(self) -> list[Run]:
        """Return the runs of the tasks this node holds in the task store."""
        ordered = self._context.kinds.ordered
        in_flight = self._context.in_flight.values()
        return [each for each in in_flight if each.trigger.queue not in ordered]

    async def drop_ended(self) -> None:
        """Let the store drop its records of claims whose tasks have all ended. Raise
        StoreUnavailable."""
        kept = {run.claimed.batch for run in self._context.in_flight.values()}
        if (tables := self._context.ports.tables) is not None and self._batches - kept:
            self._batches &= kept
            await tables.drop_claims(self._context.name, sorted(kept))

    def _terms(self, name: str, now: int) -> ClaimTerms:
        """Return the terms of a claim of tasks with this name."""
        handler = self._context.served.handlers.get(name)
        if handler is None:
            return PLAIN_TERMS
        processing, policy = handler.processing, SKIP_FAILED if handler.skips_failed else 0
        if processing.max_stuck is None:
            return ClaimTerms(policy=policy)
        policy |= _WHEN_STUCK[processing.when_stuck]
        return ClaimTerms(now + round(processing.max_stuck * MICROS), policy)

    def _release_slots(self, triggers: Sequence[Trigger], holds_slots: bool) -> None:
        if holds_slots:
            release_slots(self._context, triggers)
            for trigger in triggers:
                if trigger.ordering_key is not None:
                    self._intake.key_refused(trigger)
        self._context.events.on_ready()


class OrderedClaimer:
    """Claim tasks of ordered queues from the memory of their partition, without a store call."""

    def __init__(self, context: NodeContext, queues: OrderedQueues) -> None:
        self._context = context
        self._queues = queues

    async def claim(self, triggers: Sequence[Trigger], holds_slots: bool) -> list[Run]:
        context, runs = self._context, []
        now = context.clock.now()
        for trigger in triggers:
            if (task := self._queues.claim(trigger, now)) is None:
                if holds_slots:
                    release_slots(context, [trigger])
                context.events.on_ready()
                continue
            handler = context.served.handlers.get(trigger.name)
            is_held = context.leases.is_ahead
            run = Run(trigger, task, handler, holds_slots, is_held=is_held)
            context.in_flight[task.id] = run
            runs.append(run)
        if runs and holds_slots:
            context.observer.claimed(runs)
        return runs

    def complete(self, run: Run) -> None:
        self._context.observer.finished([run])
        self._queues.ended(run.trigger, run.finish)

    def settle(self, runs: Sequence[Run]) -> None:
        in_flight = self._context.in_flight
        known = [run for run in runs if in_flight.get(run.claimed.id) is run]
        self._queues.drop_ended([run.trigger for run in known])
        for run in known:
            in_flight.pop(run.claimed.id, None)

    async def hand_back(self, runs: Sequence[Run]) -> None:
        self._context.events.on_settled(runs)


class Claimers:
    """Claimers by queue."""

    def __init__(
        self, tasks: TaskClaimer, ordered: Claimer, ordered_queues: Collection[str]
    ) -> None:
        self._tasks = tasks
        self._others = dict.fromkeys(ordered_queues, ordered)

    def retry(self) -> float:
        """Put back the triggers whose refused claims are due. Return the time of the next ones, in
        monotonic seconds."""
        return self._tasks.retry()

    def of(self, queue: str) -> Claimer:
        """Return the claimer of a queue."""
        return self._others.get(queue, self._tasks)

    def split(self, items: Sequence[T]) -> Iterable[tuple[Claimer, Sequence[T]]]:
        """Return the items by claimer, in their order. The task store comes last, so that no claim
        from memory waits for it."""
        if not self._others:
            return [(self._tasks, items)]
        found: dict[Claimer, list[T]] = {}
        for item in items:
            found.setdefault(self.of(item.queue), []).append(item)
        return sorted(found.items(), key=lambda each: each[0] is self._tasks)


def release_slots(context: NodeContext, triggers: Iterable[Trigger]) -> None:
    """Release the slots of triggers whose tasks were not claimed."""
    now = context.clock.monotonic()
    for trigger in triggers:
        context.table.freed(context.ledger.cancel(trigger, now))
