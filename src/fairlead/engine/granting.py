"""Granting: the owner of partitions gives triggers that it has no slots for to other nodes.

The owner decides what runs next; any node may run it. A granted trigger leaves the table like one
that this node claims itself. The other node claims the task, by the same compare-and-set on its
version, and reports the result. A grant that is lost, or whose node dies, comes back after
`GRANT_SECONDS`; if its task was claimed meanwhile, the store refuses the second claim.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import NamedTuple

import msgspec

from fairlead.core.grants.wants import Wants
from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.engine.context import NodeContext
from fairlead.engine.intake import Intake
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.membership import identity_of
from fairlead.engine.ordering import Ordering
from fairlead.errors import StoreUnavailable
from fairlead.model import PartitionKey, Trigger, TriggerPath
from fairlead.model.peer import Grant, Spare, Want
from fairlead.pauses import event_or_pause

GRANT_SECONDS = 3.0
"""Seconds after which a granted trigger without a result comes back to its owner."""

MOST_AT_ONCE = 500
"""Maximum number of triggers in one round of grants."""

MOST_NAMES = 50
"""Maximum number of task names in one announcement; the next one has the next names."""

MOST_TEXT = 600
"""Maximum number of characters in the name and the keys of a granted trigger. A character has at
most six bytes in JSON, and a message between nodes at most 4096."""

CHECK_SECONDS = 15.0
"""Seconds between two checks of runs on other nodes whose end was not reported."""

SPARE_PAUSES = (0.25, 0.5, 1.0, 2.0, 5.0)
"""Seconds between announcements that no node responds to; the last one repeats."""


class _Granted(NamedTuple):
    trigger: Trigger
    node: str
    until: float
    """Monotonic seconds at which the trigger comes back, or the store is asked for its run."""


class Granting(SimplePart):
    """Grant triggers to nodes that want some; while none does, announce spare triggers."""

    def __init__(self, context: NodeContext, intake: Intake, ordering: Ordering) -> None:
        self._context = context
        self._intake = intake
        self._ordering = ordering
        self._wants = Wants()
        self._open: dict[str, _Granted] = {}
        """Grants without a result, by task id, the oldest first."""
        self._running: dict[str, _Granted] = {}
        """Claimed grants whose end is the next result, by task id, the first to check first."""
        self._is_alone = True
        """Whether no other node shares a queue with this one."""
        self._is_spare = False
        """Whether triggers may wait that no announcement has considered."""
        self._check_spare_at = 0.0
        """Monotonic seconds before which waiting triggers are not considered again."""
        self._announce_at = 0.0
        """Monotonic seconds before which no announcement of the same names is made."""
        self._announcements = 0
        """Announcements since the last want."""
        self._names_announced = 0
        """Names in the announcements so far, of the waiting names in their order."""
        self._announced = frozenset[tuple[str, str]]()
        """Waiting names of which an announcement was made."""
        self._poked = asyncio.Event()

    # events ---------------------------------------------------------------------------------------

    def on_spare(self) -> None:
        """Note that triggers may wait for which this node has no slots."""
        self._is_spare = True
        self._poked.set()

    def on_nodes_changed(self, identities: Collection[str]) -> None:
        """Note the living nodes that share a queue with this one. Announce again, for new nodes.
        Take back what dead nodes have not claimed, and end their runs: they report nothing."""
        self._is_alone = len(identities) <= 1
        self._announced, self._is_spare = frozenset(), True
        for granted in list(self._running.values()):
            if identity_of(granted.node) not in identities:
                self._end(granted, 0)
        dead = [each for each in self._open.values() if identity_of(each.node) not in identities]
        self._take_back([self._close(granted) for granted in dead])
        self._poked.set()

    def on_want(self, want: Want) -> None:
        """Note the results of granted triggers, and how many more their node takes."""
        claimed, returned = list[Trigger](), list[Trigger]()
        for result in want.results:
            grants = self._running if result.kind == "ended" else self._open
            granted = grants.get(result.task_id)
            if granted is None or granted.trigger.version != result.version:
                continue
            if result.kind == "claimed":
                claimed.append(self._close(granted))
                self._note_running(granted._replace(node=want.node))
            elif result.kind == "returned":
                self._close(granted)
                returned.append(granted.trigger)
            elif granted.node == want.node:
                self._end(granted, result.run_us)
        self._intake.claim_ended(claimed)
        self._intake.drop(claimed)
        self._take_back(returned)
        now = self._now()
        if self._wants.on_want(want, now):
            self._announcements = 0
            self._announce_at = min(self._announce_at, now + SPARE_PAUSES[0])
        self._poked.set()

    def drop(self, partitions: Collection[PartitionKey]) -> None:
        """Drop the grants of partitions that another node owns now."""
        lost = set(partitions)
        opened, running = (
            [each for each in grants.values() if _partition(each.trigger) in lost]
            for grants in (self._open, self._running)
        )
        self._intake.drop([self._close(granted) for granted in opened])
        for granted in running:
            del self._running[granted.trigger.id]

    # rounds ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Grant and announce until cancelled."""
        while True:
            self._poked.clear()
            now = self._now()
            if expired := _due(self._open, now):
                self._context.observer.counted("expired_grants", len(expired))
                for granted in expired:
                    self._close(granted)
                self._take_back([granted.trigger for granted in expired])
            if not self._is_alone:
                self._wants.expire(now)
                if self._grant(now):
                    self._poked.set()
                if now >= (self._check_spare_at if self._is_spare else self._announce_at):
                    self._announce(now)
            await self._check_running(_due(self._running, now), now)
            await asyncio.sleep(0)  # one cycle of the event loop gathers several wants
            await self._wait()

    async def _wait(self) -> None:
        ends = [next(iter(each.values())).until for each in (self._open, self._running) if each]
        if not self._is_alone and len(self._context.table):
            ends.append(self._check_spare_at if self._is_spare else self._announce_at)
        await event_or_pause(self._poked, min(ends, default=math.inf) - self._now())

    def _announce(self, now: float) -> None:
        """Announce triggers for which this node has no slots: new names at once, the same names
        after a pause."""
        names, self._is_spare = self._context.table.spare_names(), False
        if not names:  # `on_spare` comes when there are some
            self._announced, self._announce_at = frozenset(), math.inf
            return
        self._check_spare_at = now + SPARE_PAUSES[0]
        if not self._announced.issuperset(names):
            self._announcements, self._announce_at = 0, now
        if now < self._announce_at:
            return
        first = self._names_announced % len(names)
        announced = [*names[first:], *names[:first]][:MOST_NAMES]
        # Names without a worker may always come first, so the next announcement has the others.
        self._names_announced = first + len(announced)
        self._announced = self._announced.intersection(names).union(announced)
        self._context.channel.send(Spare(self._context.name, announced))
        pause = min(self._announcements, len(SPARE_PAUSES) - 1)
        self._announce_at = now + SPARE_PAUSES[pause]
        self._announcements += 1

    def _grant(self, now: float) -> bool:
        """Grant one batch; return whether there may be more."""
        if self._wants.are_met:
            return False
        nodes: dict[str, str] = {}
        """Node by task id."""

        def is_wanted(trigger: Trigger) -> bool:
            # Nodes take one trigger of a task at a time: further ones wait until it has come back.
            if trigger.id in nodes or trigger.id in self._open or _is_long(trigger):
                return False
            node = self._wants.choose((trigger.queue, trigger.name))
            if node is None:
                return False
            nodes[trigger.id] = node
            return True

        lent = self._context.table.lend(MOST_AT_ONCE, is_wanted)
        if not lent:
            return False
        self._intake.taken(lent)
        self._context.events.on_ready()  # this may have brought the next triggers of their keys
        by_node: dict[str, list[Trigger]] = {}
        for trigger in lent:
            node = nodes[trigger.id]
            self._open[trigger.id] = _Granted(trigger, node, now + GRANT_SECONDS)
            if trigger.ordering_key is not None:
                self._ordering.granted(trigger)
            sent = msgspec.structs.replace(trigger, path=TriggerPath.GRANT, level=None)
            by_node.setdefault(node, []).append(sent)
        for node, triggers in by_node.items():
            self._wants.used(node)
            self._context.channel.send(Grant(node, self._context.name, triggers))
        self._context.observer.counted("granted_tasks", len(lent))
        return len(lent) == MOST_AT_ONCE

    async def _check_running(self, due: Sequence[_Granted], now: float) -> None:
        """End the runs among these that their nodes no longer hold: their results were lost."""
        by_node: dict[str, list[_Granted]] = {}
        for granted in due:
            later = granted._replace(until=now + CHECK_SECONDS)
            del self._running[granted.trigger.id]
            self._running[granted.trigger.id] = later
            by_node.setdefault(granted.node, []).append(later)
        for node, checked in by_node.items():
            task_ids = [granted.trigger.id for granted in checked]
            try:
                held = await self._context.claims.still_held(node, task_ids)
            except StoreUnavailable:
                return  # the next check asks again
            for granted in checked:
                task_id = granted.trigger.id
                if task_id not in held and self._running.get(task_id) is granted:
                    self._end(granted, 0)

    # grants come back -----------------------------------------------------------------------------

    def _close(self, granted: _Granted) -> Trigger:
        """Remove an open grant; return its trigger."""
        return self._open.pop(granted.trigger.id).trigger

    def _take_back(self, lent: Collection[Trigger]) -> None:
        if not lent:
            return
        self._intake.returned([*lent])
        for trigger in lent:
            if trigger.ordering_key is not None:
                # An earlier task of the key, which has ended elsewhere, may have come back before
                # this one: only the store shows which of them runs next.
                self._ordering.refused(trigger)
        self._context.events.on_ready()

    def _note_running(self, granted: _Granted) -> None:
        trigger = granted.trigger
        if trigger.ordering_key is not None:
            self._ordering.refused(trigger)  # its task runs on another node: read until it ends
        elif trigger.queue not in self._context.kinds.timed:
            return
        # The end of the earlier run was lost, or an outdated trigger was granted.
        before = self._running.pop(trigger.id, granted)
        ended, running = sorted([before, granted], key=lambda each: each.trigger.version)
        self._running[trigger.id] = running._replace(until=self._now() + CHECK_SECONDS)
        if ended.trigger.version != running.trigger.version:
            self._intake.lanes.ended(ended.trigger, None, self._context.clock.now())

    def _end(self, granted: _Granted, run_us: int) -> None:
        """Note the end of a run of `run_us` microseconds; 0 if it never began, or took unknown
        time."""
        trigger = granted.trigger
        del self._running[trigger.id]
        if trigger.ordering_key is not None:
            self._ordering.read_now(OrderingKey(trigger.queue, trigger.ordering_key))
        now = self._context.clock.now()
        self._intake.lanes.ended(trigger, now - run_us if run_us else None, now)

    def _now(self) -> float:
        return self._context.clock.monotonic()


def _due(grants: dict[str, _Granted], now: float) -> list[_Granted]:
    """Return the grants whose time has come, the first of them all."""
    return list(takewhile(lambda granted: granted.until <= now, grants.values()))


def _partition(trigger: Trigger) -> PartitionKey:
    return PartitionKey(trigger.queue, trigger.partition)


def _is_long(trigger: Trigger) -> bool:
    """Return whether the trigger may fit into no message."""
    keys = trigger.fairness_key, trigger.ordering_key or ""
    return len(trigger.name) + sum(map(len, keys)) > MOST_TEXT
