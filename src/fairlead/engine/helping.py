"""Helping: a node with free slots takes triggers from the owners of partitions, and claims them.

The node asks owners that have announced spare triggers for as many as it has free slots
(`fairlead.core.grants.owners`). Granted triggers go into the table beside those of the node's own
partitions. A granted trigger without a slot in time goes back to its owner.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from fairlead.core.grants.owners import Owners
from fairlead.core.grants.wants import TaskName
from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.engine.context import NodeContext
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.run import Run
from fairlead.model import Trigger
from fairlead.model.peer import Grant, Result, Spare, Want
from fairlead.pauses import event_or_pause

PATIENCE = 0.25
"""Seconds for which a granted trigger may wait for a slot."""

PERMIT_SECONDS = 1.0
"""Additional seconds that a trigger may wait for a permit of a cluster-wide limit."""

PAUSE_SECONDS = 0.5
"""Seconds for which a node wants no triggers of a task name after it returned one."""

CLAIMED_SECONDS = 0.5
"""Seconds for which a claim waits for another message to its owner."""


class _Granted(NamedTuple):
    trigger: Trigger
    owner: str
    until: float
    """Monotonic seconds at which the trigger goes back if it has found no slot."""


class Helping(SimplePart):
    """Ask owners for triggers, take granted ones into the table, and report their results."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._owners = Owners(context.settings.concurrency)
        self._waiting: dict[str, _Granted] = {}
        """Granted triggers in the table, by task id."""
        self._owner_of: dict[tuple[str, int], str] = {}
        """Owner of granted triggers that left the table to be claimed and have not ended, by task
        id and version."""
        self._pauses: dict[TaskName, float] = {}
        """Monotonic seconds until which no triggers are wanted, by name."""
        self._results: dict[str, list[Result]] = {}
        """Results that are not sent yet, by owner."""
        self._send_at = math.inf
        """Monotonic seconds by which they must be sent."""
        self._wants = 0
        """Number of the last want."""
        self._poked = asyncio.Event()
        self._is_stopping = False

    # messages -------------------------------------------------------------------------------------

    def on_spare(self, spare: Spare) -> None:
        """Note that an owner has triggers and no slots for them."""
        handlers, queues = self._context.served.handlers, self._context.kinds.shared
        names = [name for name in spare.names if name[0] in queues and name[1] in handlers]
        if names and not self._is_stopping:
            self._owners.on_spare(spare.owner, names, self._now())
            self._poked.set()

    def on_grant(self, grant: Grant) -> None:
        """Take granted triggers into the table. The second grant of a trigger expires."""
        now, table = self._now(), self._context.table
        if grant.is_last:
            self._owners.on_grant(grant.owner)
        for trigger in grant.triggers:
            if self._is_stopping:
                self._report(grant.owner, Result(trigger.id, trigger.version, "returned"))
            elif trigger.id not in self._waiting:
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
            if (granted := self._waiting.pop(trigger.id, None)) is not None:
                self._owner_of[_identity(trigger)] = granted.owner

    def claim_ended(self, triggers: Collection[Trigger]) -> None:
        """Report triggers whose claim ended, won or lost."""
        for trigger in triggers:
            if (owner := self._owner_of.get(_identity(trigger))) is not None:
                self._report(owner, Result(trigger.id, trigger.version, "claimed"))
        self._owners.started(len(triggers))

    def refused(self, triggers: Collection[Trigger]) -> None:
        """Drop triggers whose claim was lost, and report that no run of them will end."""
        for trigger in triggers:
            run = self._context.in_flight.get(trigger.id)
            # A task whose claim was not reported in time is granted again while this node runs it.
            if run is None or run.trigger.version != trigger.version:
                self._report_end(trigger, 0)

    def returned(self, triggers: Collection[Trigger]) -> None:
        """Give back triggers whose claim has an unknown result; their owner puts them back."""
        for trigger in triggers:
            if (owner := self._owner_of.pop(_identity(trigger), None)) is not None:
                self._report(owner, Result(trigger.id, trigger.version, "returned"))

    def ended(self, run: Run) -> None:
        """Note that the store has recorded or refused the end of a granted run."""
        trigger = run.trigger
        if trigger.ordering_key is not None:
            self.release_key(trigger)
        began = run.started_at
        self._report_end(trigger, 0 if began is None else max(1, self._context.clock.now() - began))

    def _report_end(self, trigger: Trigger, run_us: int) -> None:
        """Report the end of a run of `run_us` microseconds, or (0) of one that never began, if the
        owner counts it."""
        owner = self._owner_of.pop(_identity(trigger), None)
        timed = self._context.kinds.timed
        if owner is not None and (trigger.ordering_key is not None or trigger.queue in timed):
            self._report(owner, Result(trigger.id, trigger.version, "ended", run_us))

    def release_key(self, trigger: Trigger) -> None:
        """Release the ordering key of a granted trigger; its owner decides what comes next."""
        assert trigger.ordering_key is not None
        key = OrderingKey(trigger.queue, trigger.ordering_key)
        self._context.table.freed(self._context.ledger.release_reservation(key))

    # rounds ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask, return and report until cancelled."""
        while True:
            self._poked.clear()
            now = self._now()
            self._return([each for each in self._waiting.values() if each.until <= now])
            self._ask(now)
            if self._send_at <= now:
                self._send_results()
            # Wait one cycle of the event loop, so that one message reports several runs.
            await asyncio.sleep(0)
            await self._wait()

    async def stop(self) -> None:
        """Take no more triggers, and give back those that have not started."""
        self._is_stopping = True
        self._return([*self._waiting.values()])
        self._send_results()

    async def _wait(self) -> None:
        times = (granted.until for granted in self._waiting.values())
        until = min([self._owners.check_at, self._send_at, *times])
        await event_or_pause(self._poked, until - self._now())

    def _ask(self, now: float) -> None:
        """Ask owners for as many triggers as this node has room for."""
        ledger, table, ahead = self._context.ledger, self._context.table, self._owners.ahead(now)
        waiting = Counter(
            (each.trigger.queue, each.trigger.name) for each in self._waiting.values()
        )
        own = len(table) - len(self._waiting)
        room = ledger.room - len(self._waiting) + ahead
        if self._is_stopping or (own and (ledger.room <= 0 or table.has_ready)):
            room = 0  # this node's own triggers come first

        def takes(name: TaskName) -> int:
            if self._pauses.get(name, 0.0) > now:
                return 0
            return int(min(ledger.room_of(*name), ledger.room)) - waiting[name] + ahead

        for owner, (count, names) in self._owners.ask(room, takes, now).items():
            self._wants += 1
            taken = [(*name, most) for name in names if (most := takes(name)) > 0]
            self._send(owner, self._wants, count, taken)

    def _send_results(self) -> None:
        for owner in [*self._results]:
            self._send(owner, 0, 0, [])

    def _send(self, owner: str, number: int, count: int, names: list[tuple[str, str, int]]) -> None:
        """Send a want, with the results for its owner."""
        results = self._results.pop(owner, [])
        if not self._results:
            self._send_at = math.inf
        self._context.channel.send(Want(owner, self._context.name, number, count, names, results))

    def _report(self, owner: str, result: Result) -> None:
        """Note a result for the next message to an owner."""
        self._results.setdefault(owner, []).append(result)
        seconds = CLAIMED_SECONDS if result.kind == "claimed" else 0.0
        self._send_at = min(self._send_at, self._now() + seconds)
        self._poked.set()

    def _patience(self, trigger: Trigger) -> float:
        needs_permits = self._context.ledger.needs_permits(trigger.queue, trigger.name)
        return PATIENCE + (PERMIT_SECONDS if needs_permits else 0.0)

    def _return(self, granted: Collection[_Granted]) -> None:
        if granted:
            self._context.table.remove([each.trigger for each in granted])
        for trigger, owner, _ in granted:
            del self._waiting[trigger.id]
            self._report(owner, Result(trigger.id, trigger.version, "returned"))
            self._pauses[trigger.queue, trigger.name] = self._now() + PAUSE_SECONDS

    def _now(self) -> float:
        return self._context.clock.monotonic()


def _identity(trigger: Trigger) -> tuple[str, int]:
    return trigger.id, trigger.version
