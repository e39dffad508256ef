"""Granting: the owner of partitions gives triggers that it has no slots for to other nodes.

The owner decides what runs next; any node may run it. A granted trigger leaves the table like one
that this node claims itself. The other node claims the task, by the same compare-and-set on its
version, and reports. A grant that is lost, or whose node dies, comes back after `GRANT_SECONDS`;
if its task was claimed meanwhile, the store refuses the second claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from fairlead.core.grants.credits import Credits
from fairlead.core.limits.slot_ledger import OrderingKey
from fairlead.engine.context import NodeContext
from fairlead.engine.intake import Intake
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.membership import identity_of
from fairlead.engine.ordering import Ordering
from fairlead.errors import StoreUnavailable
from fairlead.model import PartitionKey, Trigger, TriggerPath
from fairlead.model.peer import Call, Grant, Offer, Report

GRANT_SECONDS = 3.0
"""Seconds after which a granted trigger that was not reported comes back to its owner."""

MOST_AT_ONCE = 500
"""Maximum number of triggers in one round of grants."""

MOST_NAMES = 50
"""Maximum number of task names in one call; the next call has the next names."""

MOST_BYTES = 3600
"""Maximum number of bytes of a granted trigger in JSON. A message between nodes has at most 4096
(`fairlead.backends.sqlite.notifier`)."""

CHECK_SECONDS = 15.0
"""Seconds between two looks at runs on other nodes whose end was not reported."""

SEARCH_SECONDS = 0.05
"""Seconds between two searches for triggers that other nodes might take."""

CALL_PAUSES = (0.25, 0.5, 1.0, 2.0, 5.0)
"""Seconds between calls that no node responds to; the last one repeats."""


_encode = msgspec.json.Encoder().encode


class _OpenGrant(NamedTuple):
    trigger: Trigger
    node: str
    until: float
    """Monotonic seconds at which the trigger comes back."""


class Granting(SimplePart):
    """Grant triggers to nodes that offer to take them; without offers, call for some."""

    def __init__(self, context: NodeContext, intake: Intake, ordering: Ordering) -> None:
        self._context = context
        self._intake = intake
        self._ordering = ordering
        self._credits = Credits()
        self._open: dict[str, _OpenGrant] = {}
        """Grants that were not reported, by task id, the oldest first."""
        self._running: dict[str, tuple[Trigger, str]] = {}
        """Trigger and node, by task id, of runs that the node reports when they end."""
        self._checked: frozenset[str] = frozenset()
        """Task ids in `_running` at the last check."""
        self._check_at = 0.0
        """Monotonic seconds of the next check."""
        self._is_alone = True
        """Whether no other node shares a queue with this one."""
        self._call_at = 0.0
        """Monotonic seconds before which no further call is made."""
        self._calls = 0
        """Calls since the last offer."""
        self._names_called = 0
        """Names in the calls so far, of the waiting names in their order."""
        self._poked = asyncio.Event()

    # events ---------------------------------------------------------------------------------------

    def on_spare(self) -> None:
        """Note that triggers may wait for which this node has no slots."""
        self._poked.set()

    def on_nodes_changed(self, identities: Collection[str]) -> None:
        """Note the living nodes that share a queue with this one. Call again: new nodes have
        received no call. End the runs of dead nodes, which report nothing."""
        self._is_alone = len(identities) <= 1
        self._calls, self._call_at = 0, 0.0
        for task_id, (trigger, node) in list(self._running.items()):
            if identity_of(node) not in identities:
                del self._running[task_id]
                self._ended(trigger, 0)
        self._poked.set()

    def on_offer(self, offer: Offer) -> None:
        """Note that a node offers to take triggers."""
        now = self._now()
        self._credits.offered(offer, now)
        self._calls, self._call_at = 0, now + CALL_PAUSES[0]
        self._poked.set()

    def on_report(self, report: Report) -> None:
        """Note the results of granted triggers."""
        versions = iter(report.versions)
        claimed = self._close(zip(report.claimed, versions, strict=False))
        if claimed:
            triggers = [grant.trigger for grant in claimed]
            self._intake.claim_ended(triggers)
            self._intake.drop(triggers)
            for trigger in triggers:
                self._note_running(trigger, report.node)
        self._take_back(self._close(zip(report.returned, versions, strict=False)))
        for (task_id, run_us), version in zip(report.ended, versions, strict=False):
            running = self._running.get(task_id)
            if running and running[1] == report.node and running[0].version == version:
                del self._running[task_id]
                self._ended(running[0], run_us)
        if report.returned:
            self._poked.set()

    def drop(self, partitions: Collection[PartitionKey]) -> None:
        """Drop the grants of partitions that another node owns now."""
        if not self._open and not self._running:
            return
        lost = set(partitions)
        dropped = [
            grant.trigger
            for grant in self._open.values()
            if PartitionKey(grant.trigger.queue, grant.trigger.partition) in lost
        ]
        for trigger in dropped:
            del self._open[trigger.id]
        self._intake.drop(dropped)
        self._running = {
            task_id: (trigger, node)
            for task_id, (trigger, node) in self._running.items()
            if PartitionKey(trigger.queue, trigger.partition) not in lost
        }

    def is_granted(self, task_id: str) -> bool:
        """Return whether another node has the trigger of this task and has not reported."""
        return task_id in self._open

    # rounds ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Grant and call until cancelled."""
        while True:
            self._poked.clear()
            self._round()
            if self._running and self._now() >= self._check_at:
                await self._check_running()
            await asyncio.sleep(0)  # one cycle of the event loop gathers several reports
            await self._wait()

    async def _wait(self) -> None:
        now = self._now()
        ends = []
        if not self._is_alone and self._call_at > now and len(self._context.table):
            ends.append(self._call_at)
        if self._open:
            ends.append(next(iter(self._open.values())).until)
        if self._running:
            ends.append(self._check_at)
        try:
            async with asyncio.timeout(max(0.001, min(ends) - now) if ends else None):
                await self._poked.wait()
        except TimeoutError:
            pass

    def _round(self) -> None:
        now = self._now()
        self._expire(now)
        if self._is_alone:
            return
        self._credits.expire(now)
        if self._grant(now):
            self._poked.set()
        if now >= self._call_at:
            self._call(now)

    def _call(self, now: float) -> None:
        """Call for offers if triggers wait for which this node has no slots and no node offers
        any."""
        names = self._context.table.spare_names()
        if not names:
            return  # `on_spare` comes when there are some
        if all(self._credits.covers(*name) for name in names):
            self._call_at = now + SEARCH_SECONDS
            return
        first = self._names_called % len(names)
        called = [*names[first:], *names[:first]][:MOST_NAMES]
        # Names without a worker may come first at each call, so the next call has the others.
        self._names_called = first + len(called)
        self._context.channel.send(Call(self._context.name, called))
        self._call_at = now + CALL_PAUSES[min(self._calls, len(CALL_PAUSES) - 1)]
        self._calls += 1

    def _grant(self, now: float) -> bool:
        """Grant one batch; return whether there may be more."""
        if self._credits.are_spent:
            return False
        nodes: dict[str, str] = {}
        """Node by task id."""

        def is_wanted(trigger: Trigger) -> bool:
            # A report names only the task: further triggers of a task wait until the first has
            # come back.
            if trigger.id in nodes or trigger.id in self._open or _is_long(trigger):
                return False
            node = self._credits.spend(trigger.queue, trigger.name)
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
            self._open[trigger.id] = _OpenGrant(trigger, node, now + GRANT_SECONDS)
            if trigger.ordering_key is not None:
                self._ordering.granted(trigger)
            sent = msgspec.structs.replace(trigger, path=TriggerPath.GRANT, level=None)
            by_node.setdefault(node, []).append(sent)
        name, has_more = self._context.name, self._context.table.has_spare
        for node, triggers in by_node.items():
            session, held = self._credits.session(node, now)
            self._context.channel.send(Grant(node, name, session, held, has_more, triggers))
        if not has_more:
            self._call_at = 0.0  # these nodes offer nothing more until the next call
        self._context.observer.counted("granted_tasks", len(lent))
        return len(lent) == MOST_AT_ONCE

    async def _check_running(self) -> None:
        """End the runs that their nodes no longer hold: the report of their end was lost."""
        by_node: dict[str, list[str]] = {}
        for task_id, (_, node) in self._running.items():
            if task_id in self._checked:
                by_node.setdefault(node, []).append(task_id)
        self._checked = frozenset(self._running)
        self._check_at = self._now() + CHECK_SECONDS
        for node, task_ids in by_node.items():
            try:
                held = await self._context.store.still_held(node, task_ids)
            except StoreUnavailable:
                return  # the next check looks again
            for task_id in task_ids:
                if task_id not in held and (running := self._running.pop(task_id, None)):
                    self._ended(running[0], 0)

    def _expire(self, now: float) -> None:
        expired = []
        for task_id, grant in self._open.items():
            if grant.until > now:
                break  # the oldest comes first
            expired.append(task_id)
        if expired:
            self._context.observer.counted("expired_grants", len(expired))
            self._take_back([self._open.pop(task_id) for task_id in expired])

    def _close(self, named: Iterable[tuple[str, int]]) -> list[_OpenGrant]:
        """Remove and return the grants of these task ids and versions."""
        closed = []
        for task_id, version in named:
            grant = self._open.get(task_id)
            if grant is not None and grant.trigger.version == version:
                closed.append(self._open.pop(task_id))
        return closed

    def _take_back(self, grants: Collection[_OpenGrant]) -> None:
        if not grants:
            return
        self._intake.returned([grant.trigger for grant in grants])
        for grant in grants:
            if grant.trigger.ordering_key is not None:
                # An earlier task of the key, which has ended elsewhere, may have come back before
                # this one: only the store shows which of them runs next.
                self._ordering.refused(grant.trigger)
        self._context.events.on_ready()

    def _note_running(self, trigger: Trigger, node: str) -> None:
        if trigger.ordering_key is not None:
            self._ordering.refused(trigger)  # its task runs on another node: read until it ends
        elif trigger.queue not in self._context.kinds.timed:
            return
        before = self._running.get(trigger.id, (trigger, node))
        # The report of the end of the earlier run was lost, or an outdated trigger was granted.
        ended, running = sorted([before, (trigger, node)], key=lambda run: run[0].version)
        self._running[trigger.id] = running
        if ended[0].version != running[0].version:
            self._intake.lanes.ended(ended[0], None, self._context.clock.now())

    def _ended(self, trigger: Trigger, run_us: int) -> None:
        if trigger.ordering_key is not None:
            self._ordering.read_now(OrderingKey(trigger.queue, trigger.ordering_key))
        now = self._context.clock.now()
        self._intake.lanes.ended(trigger, now - run_us if run_us else None, now)

    def _now(self) -> float:
        return self._context.clock.monotonic()


def _is_long(trigger: Trigger) -> bool:
    """Return whether the trigger fits into no message."""
    texts = len(trigger.name) + len(trigger.fairness_key) + len(trigger.ordering_key or "")
    # A character has at most six bytes in JSON.
    return texts > MOST_BYTES // 12 and len(_encode(trigger)) > MOST_BYTES
