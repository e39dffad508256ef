"""Helping: a node with free slots takes triggers from the owners of partitions, and claims them.

The node offers its free slots to owners that have called (`fairlead.core.grants.promises`). Granted
triggers go into the table beside those of the node's own partitions. A granted trigger without a
slot in time goes back to its owner.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from fairlead.core.grants.promises import Promises
from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.engine.context import NodeContext
from fairlead.engine.execution import Execution
from fairlead.engine.lifecycle import SimplePart
from fairlead.model import Trigger, TriggerPath
from fairlead.model.peer import Call, Grant, Report

PAUSE_SECONDS = 0.5
"""Seconds for which a node offers no slots for a task name after it returned a trigger of it."""

LOOK_SECONDS = 0.05
"""Seconds until another look at offers that were held back."""

PERMIT_SECONDS = 1.0
"""Additional seconds that a trigger may wait for a permit of a cluster-wide limit."""


class _Granted(NamedTuple):
    trigger: Trigger
    owner: str
    until: float
    """Monotonic seconds at which the trigger goes back if it has found no slot."""


class _Unreported:
    """Results of granted triggers that are not reported yet."""

    def __init__(self) -> None:
        self.claimed: list[Trigger] = []
        self.returned: list[Trigger] = []
        self.ended: list[tuple[Trigger, int]] = []
        """Triggers with their run times."""

    def report(self, owner: str, node: str) -> Report:
        """Return the message to the owner."""
        triggers = [*self.claimed, *self.returned, *(trigger for trigger, _ in self.ended)]
        return Report(
            owner,
            node,
            [trigger.id for trigger in self.claimed],
            [trigger.id for trigger in self.returned],
            [(trigger.id, run_us) for trigger, run_us in self.ended],
            [trigger.version for trigger in triggers],
        )


class Helping(SimplePart):
    """Offer free slots, take granted triggers into the table, and report their results."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._promises = Promises(context.name)
        self._waiting: dict[str, _Granted] = {}
        """Granted triggers in the table, by task id."""
        self._owner_of: dict[tuple[str, int], str] = {}
        """Owner by task id and version of granted triggers that were claimed and have not ended."""
        self._pauses: dict[tuple[str, str], float] = {}
        """Monotonic seconds until which no slot is offered, by queue and task name."""
        self._unreported: dict[str, _Unreported] = {}
        self._poked = asyncio.Event()
        self._is_stopping = False

    # messages -------------------------------------------------------------------------------------

    def on_call(self, call: Call) -> None:
        """Note that an owner has triggers and no slots for them."""
        handlers, queues = self._context.served.handlers, self._context.kinds.shared
        names = [(queue, name) for queue, name in call.names if queue in queues]
        names = [each for each in names if each[1] in handlers]
        if names and not self._is_stopping:
            self._promises.called(Call(call.owner, names), self._now())
            self._poked.set()

    def on_grant(self, grant: Grant) -> None:
        """Take granted triggers into the table."""
        now, table = self._now(), self._context.table
        self._promises.granted(grant, now)
        for trigger in grant.triggers:
            if self._is_stopping or trigger.id in self._waiting:
                self._unreported_to(grant.owner).returned.append(trigger)
                # Else two owners of one trigger could grant it again and again without a pause.
                self._pauses[trigger.queue, trigger.name] = now + PAUSE_SECONDS
            else:
                until = now + self._patience(trigger)
                self._waiting[trigger.id] = _Granted(trigger, grant.owner, until)
                table.push(trigger)
        self._poked.set()
        self._context.events.on_ready()

    # events ---------------------------------------------------------------------------------------

    def on_free_slots(self) -> None:
        """Note that this node has free slots that its table does not fill."""
        self._poked.set()

    def taken(self, triggers: Iterable[Trigger]) -> None:
        """Note that granted triggers left the table, to be claimed."""
        for trigger in triggers:
            granted = self._waiting.pop(trigger.id, None)
            if granted is not None:
                self._owner_of[_identity(trigger)] = granted.owner

    def claim_ended(self, triggers: Collection[Trigger]) -> None:
        """Report triggers whose claim ended, won or lost."""
        for trigger in triggers:
            if (owner := self._owner_of.get(_identity(trigger))) is not None:
                self._unreported_to(owner).claimed.append(trigger)
        self._promises.started(len(triggers))
        self._poked.set()

    def refused(self, triggers: Collection[Trigger]) -> None:
        """Drop triggers whose claim was lost, and report that no run of them will end."""
        for trigger in triggers:
            execution = self._context.in_flight.get(trigger.id)
            running = None if execution is None else execution.trigger
            # A task whose first report was lost is granted again while this node runs it.
            is_running = running is not None and _identity(running) == _identity(trigger)
            if running is None or running.path != TriggerPath.GRANT or not is_running:
                self._report_end(trigger, 0)

    def returned(self, triggers: Collection[Trigger]) -> None:
        """Give back triggers whose claim has an unknown result; their owner puts them back."""
        for trigger in triggers:
            if (owner := self._owner_of.pop(_identity(trigger), None)) is not None:
                self._unreported_to(owner).returned.append(trigger)
        self._poked.set()

    def ended(self, execution: Execution) -> None:
        """Note that the store has recorded or refused the end of a granted run."""
        trigger = execution.trigger
        if trigger.ordering_key is not None:
            self.release_key(trigger)
        began = execution.started_at
        self._report_end(trigger, 0 if began is None else max(1, self._context.clock.now() - began))

    def _report_end(self, trigger: Trigger, run_us: int) -> None:
        """Report the end of a run of `run_us` microseconds, or (0) of one that never began, if the
        owner counts it."""
        owner = self._owner_of.pop(_identity(trigger), None)
        timed = self._context.kinds.timed
        if owner is not None and (trigger.ordering_key is not None or trigger.queue in timed):
            self._unreported_to(owner).ended.append((trigger, run_us))
            self._poked.set()

    def release_key(self, trigger: Trigger) -> None:
        """Release the ordering key of a granted trigger; its owner decides what comes next."""
        assert trigger.ordering_key is not None
        key = OrderingKey(trigger.queue, trigger.ordering_key)
        self._context.table.freed(self._context.ledger.release_reservation(key))

    # rounds ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Offer, return and report until cancelled."""
        while True:
            self._poked.clear()
            self._return_overdue()
            self._report()
            is_holding_back = self._offer()
            # Wait one cycle of the event loop, so that one message reports several runs.
            await asyncio.sleep(0)
            await self._wait(LOOK_SECONDS if is_holding_back else math.inf)

    async def stop(self) -> None:
        """Take no more triggers, and give back those that have not started."""
        self._is_stopping = True
        self._return([*self._waiting.values()])
        self._report()

    async def _wait(self, seconds: float) -> None:
        """Wait until there is something to do, at most `seconds`."""
        if self._waiting:
            first = min(granted.until for granted in self._waiting.values())
            seconds = min(seconds, max(0.001, first - self._now()))
        try:
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                await self._poked.wait()
        except TimeoutError:
            pass

    def _offer(self) -> bool:
        """Offer free slots; return whether offers were held back, and are due soon."""
        if self._is_stopping:
            return False
        now, ledger = self._now(), self._context.ledger
        own = len(self._context.table) - len(self._waiting)
        room = ledger.room - len(self._waiting)
        if own and (ledger.room <= 0 or self._context.table.has_ready):
            return False  # this node's own triggers come first
        room += self._promises.ahead(now)
        for offer in self._promises.offers(room, self._room_of, now):
            self._context.channel.send(offer)
        return self._promises.is_holding_back

    def _room_of(self, queue: str, name: str) -> int:
        if self._pauses.get((queue, name), 0.0) > self._now():
            return 0
        ledger = self._context.ledger
        ahead = self._promises.ahead(self._now())
        return int(min(ledger.room_of(queue, name), ledger.room)) + ahead

    def _return_overdue(self) -> None:
        now = self._now()
        self._return([granted for granted in self._waiting.values() if granted.until <= now])

    def _patience(self, trigger: Trigger) -> float:
        """Return the seconds for which a granted trigger may wait for its slots."""
        needs_permits = self._context.ledger.needs_permits(trigger.queue, trigger.name)
        return self._promises.patience + (PERMIT_SECONDS if needs_permits else 0.0)

    def _return(self, granted: Collection[_Granted]) -> None:
        if not granted:
            return
        self._context.table.remove([each.trigger for each in granted])
        until = self._now() + PAUSE_SECONDS
        for trigger, owner, _ in granted:
            del self._waiting[trigger.id]
            self._unreported_to(owner).returned.append(trigger)
            self._pauses[trigger.queue, trigger.name] = until

    def _report(self) -> None:
        reports, self._unreported = self._unreported, {}
        for owner, each in reports.items():
            self._context.channel.send(each.report(owner, self._context.name))

    def _unreported_to(self, owner: str) -> _Unreported:
        return self._unreported.setdefault(owner, _Unreported())

    def _now(self) -> float:
        return self._context.clock.monotonic()


def _identity(trigger: Trigger) -> tuple[str, int]:
    return trigger.id, trigger.version
