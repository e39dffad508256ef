"""Regular work that no trigger starts: pollers, each on one elected node, and the gauges of every
node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from fairlead.clock import MICROS
from fairlead.core.batches import BatchSize
from fairlead.engine import liveness
from fairlead.engine.context import NodeContext
from fairlead.engine.leases import Elections
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.poller import Poller
from fairlead.errors import BatchTooLarge
from fairlead.model import INCIDENT_ENDS, IncidentKind, IncidentReport
from fairlead.ordered.queues import OrderedQueues
from fairlead.ports.task_store import Claims, Stuck, Woken

T = TypeVar("T")

log = logging.getLogger("fairlead.pollers")

BATCH = 1000

UNSERVED_SECONDS = 60.0
"""Seconds for which a ready task may wait in a queue that no node serves, before the queue is
reported as an incident. A deployment may take as long."""


class Gauges(SimplePart):
    """Report the gauges to the observer once a second."""

    def __init__(self, context: NodeContext, ordered: OrderedQueues) -> None:
        self._context = context
        self._ordered = ordered

    async def run(self) -> None:
        """Measure until cancelled."""
        context = self._context
        while True:
            context.observer.gauges(len(context.table), len(context.in_flight))
            budget = context.look_ahead.budget
            context.observer.memory(budget.granted, budget.size)
            if gauges := self._ordered.gauges():
                context.observer.ordered(gauges)
            await context.clock.sleep(1.0)


class ElectedPollers(SimplePart):
    """Pollers of a node, each active while this node is elected for it."""

    def __init__(self, pollers: Mapping[str, Poller], elections: Elections) -> None:
        self.by_name = pollers
        self.elections = elections

    def poke(self, name: str) -> None:
        """Begin the next round of a poller now, if this node has it."""
        if (poller := self.by_name.get(name)) is not None:
            poller.poke()

    async def run(self) -> None:
        """Poll until cancelled."""
        changed, is_elected = self.elections.changed, self.elections.is_elected
        elected: set[str] = set()
        async with asyncio.TaskGroup() as group:
            for poller in self.by_name.values():
                group.create_task(poller.run(is_elected))
            while True:
                changed.clear()
                before, elected = elected, {*filter(is_elected, self.by_name)}
                for name in elected - before:
                    # Tasks may have waited since the death of the node elected before.
                    self.poke(name)
                await changed.wait()


class Pollers:
    """Rounds of the engine's own pollers."""

    def __init__(
        self, context: NodeContext, silent_nodes: Callable[[], Awaitable[Sequence[str]]]
    ) -> None:
        """`silent_nodes`: see `Membership.silent_nodes`."""
        self._context = context
        self._tasks: Claims | None = context.ports.tasks
        self._tables = context.ports.tables
        self._clock = context.clock
        self._silent_nodes = silent_nodes
        self._sizes = {name: BatchSize(BATCH) for name in ("due", "lost", "clean")}
        """Numbers of rows in one statement, by the name of the poller."""
        self._swept = 0
        """Highest id of an incident that the sweep has checked."""

    def all(self) -> list[Poller]:
        """Return a poller for each kind of round."""
        intervals = self._context.settings.intervals
        found = [
            Poller("lost", intervals.lost, self.lost),
            Poller("gauges", intervals.gauges, self.gauges, self.drop_gauges),
        ]
        if self._tasks is not None:
            found += [
                Poller("due", intervals.due, self.due),
                Poller("stuck", intervals.stuck, self.stuck),
            ]
        if self._tables is not None:
            found.append(Poller("clean", intervals.clean, self.clean))
        return found

    async def due(self) -> float | None:
        """Move due tasks from WAITING to SUBMITTED; return the seconds until the next one is
        due."""
        store = self._context.claims
        now, next_due = self._clock.now(), await store.next_due()
        is_full = next_due is not None and next_due <= now
        while is_full:
            woken, most = await self._write("due", lambda most: store.wake_due(now, most))
            self._announce_woken(woken)
            if not (is_full := woken.moved == most):
                next_due = await store.next_due()
        return None if next_due is None else (next_due - self._clock.now()) / MICROS

    async def lost(self) -> None:
        """Move tasks that dead nodes had claimed back to SUBMITTED."""
        await self.resume(await self._silent_nodes())

    async def resume(self, dead: Sequence[str]) -> None:
        """Move the tasks that these nodes had claimed back to SUBMITTED, and drop the nodes."""
        if not dead:
            return
        until = self._clock.monotonic() + liveness.FRESH_SECONDS
        total = await self._resume_and_drop(dead, until)
        # A node that only hung may have claimed more meanwhile; after the drop it claims nothing.
        while more := await self._resume_and_drop(dead, until):
            total += more
        log.warning(
            "nodes stopped; their tasks were resumed", extra={"nodes": dead, "resumed": total}
        )
        self._context.observer.counted("resumed_tasks", total)

    async def _resume_and_drop(self, dead: Sequence[str], until: float) -> int:
        """Return the number of resumed tasks. After `until` (monotonic seconds), do nothing: if
        this process paused for long, the nodes may be back."""
        now, total = self._clock.now(), 0
        while self._tasks is not None and self._clock.monotonic() < until:
            woken, _ = await self._write(
                "lost", lambda most: self._context.claims.resume_lost(dead, now, most)
            )
            if not woken.moved:
                break
            self._announce_woken(woken)
            total += woken.moved
        for node in dead:
            if self._clock.monotonic() < until:
                self._context.channel.announce(await self._context.cluster.drop_node(node))
        return total

    async def stuck(self) -> float | None:
        """Resume tasks in PROCESSING past their `max_stuck`, or move them to ERROR, by their
        policy."""
        store, now = self._context.claims, self._clock.now()
        for task in await store.stuck(now, BATCH):
            reason = f"stuck: claimed by {task.node} and not finished within its max_stuck"
            notification = await store.release_stuck(task.id, task.version, task.to, now, reason)
            if notification is not None:
                self._context.channel.announce(notification)
                self._context.observer.counted("stuck_tasks")
                self._context.events.on_incidents([_stuck(task, reason, now)])
                log.warning(
                    "stuck task released",
                    extra={"task_id": task.id, "queue": task.queue, "to": task.to.value},
                )
        return None

    async def clean(self) -> float | None:
        """Delete a batch of old history; return a short pause while there may be more."""
        tables = self._tables
        assert tables is not None
        before = self._clock.now() - round(self._context.settings.intervals.keep_history * MICROS)
        deleted, most = await self._write("clean", lambda most: tables.clean(before, most))
        return 0.05 if deleted >= most else None

    async def gauges(self) -> float | None:
        """Drop a page of incidents that are over. Observe the numbers of open ones and the waits of
        the oldest ready tasks. Report queues that no node serves."""
        cluster = self._context.cluster
        incidents = cluster.incidents
        self._swept = await incidents.sweep(self._swept, self._clock.now(), BATCH)
        open_since = self._clock.now() - round(INCIDENT_ENDS * MICROS)
        self._context.observer.incidents(await incidents.counts(open_since))
        if self._tables is None:
            return None
        queues = await cluster.database.read(cluster.queue_settings())
        oldest = await cluster.database.read(self._tables.oldest_ready())
        now = self._clock.now()
        self._context.observer.oldest_ready(
            {
                queue: max(0.0, (now - oldest[queue]) / MICROS) if queue in oldest else 0.0
                for queue in queues
            }
        )
        nodes = await cluster.database.read(cluster.nodes())
        silent = await self._silent_nodes()
        served = {queue for each in nodes if each.node not in silent for queue in each.queues}
        unserved = {queue: since for queue, since in oldest.items() if queue not in served}
        late = now - round(UNSERVED_SECONDS * MICROS)
        reports = [_unserved(queue, since) for queue, since in unserved.items() if since < late]
        self._context.events.on_incidents(reports)
        return None

    async def _write(self, name: str, write: Callable[[int], Awaitable[T]]) -> tuple[T, int]:
        """Write at most so many rows as the limits of the server allow; return the result and that
        number. Raise the error of the store."""
        size = self._sizes[name]
        while True:
            most = size.allowed
            try:
                result = await write(most)
            except BatchTooLarge:
                size.refused(most)
                if most == 1:
                    raise
            else:
                size.accepted(most)
                return result, most

    def drop_gauges(self) -> None:
        """Observe no incidents and no waits: another node observes them now."""
        self._context.observer.incidents({})
        self._context.observer.oldest_ready({})

    def _announce_woken(self, woken: Woken) -> None:
        if woken.notification is not None:
            self._context.channel.announce(woken.notification)


def _unserved(queue: str, since: int) -> IncidentReport:
    return IncidentReport(
        kind=IncidentKind.UNSERVED_QUEUE,
        subject=queue,
        details=f"no worker serves queue {queue!r}, which has ready tasks; start one with --queues"
        f" {queue}, or without --queues from an application that declares it",
        since=since,
        queue=queue,
    )


def _stuck(task: Stuck, reason: str, now: int) -> IncidentReport:
    return IncidentReport(
        kind=IncidentKind.STUCK,
        subject=task.id,
        details=reason,
        since=task.claimed_at or now,
        queue=task.queue,
        name=task.name,
        version=task.version,
    )
