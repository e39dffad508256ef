"""The membership: send heartbeats, and read what people and other nodes changed."""

from __future__ import annotations

import asyncio
import logging
import platform
import uuid
from collections.abc import Sequence

from fairlead.clock import MICROS, StoreClock
from fairlead.core import values
from fairlead.core.sharding.shares import Members
from fairlead.engine import liveness
from fairlead.engine.claimers import TaskClaimer
from fairlead.engine.context import NodeContext, View
from fairlead.engine.controls import SettingsReader
from fairlead.engine.lifecycle import SimplePart
from fairlead.engine.runs import Runs
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.model import INCIDENT_REPORTED, IncidentKind, IncidentReport
from fairlead.pauses import event_or_pause
from fairlead.ports.cluster import ClusterState, NodeFacts, NodeRecord
from fairlead.version import VERSION

log = logging.getLogger("fairlead.membership")

CLOCK_OFF_SECONDS = 1.0
"""Difference between the clock of a machine and that of the store from which on it is reported."""

MOST_RESUMED = 1000
"""Tasks that one statement resumes, at most."""

_MARK = "#"

_Nodes = tuple[list[tuple[str, list[str]]], frozenset[str]]
"""Name and queues of each living node; nodes that will restart."""


def name_of(identity: str) -> str:
    """Return a name for one start of a process that keeps its identity over restarts. Raise
    ConfigurationError for an identity that cannot be used."""
    values.name("worker name", identity)
    if _MARK in identity:
        raise ConfigurationError(f"worker name {identity!r}: use a text without {_MARK}")
    return f"{identity}{_MARK}{uuid.uuid4().hex[:8]}"


def identity_of(node: str) -> str:
    """Return the identity of a node, the same for all its starts; without one, the node's name."""
    return node.partition(_MARK)[0]


class Membership(SimplePart):
    """Send heartbeats, find nodes that are silent, and claimed tasks that this node has lost."""

    def __init__(self, context: NodeContext, claimer: TaskClaimer, runs: Runs) -> None:
        self._context = context
        self._node = context.name
        self._claimer = claimer
        self._runs = runs
        self._settings = SettingsReader(context)
        self._facts = NodeFacts(context.settings.concurrency, VERSION, platform.python_version())
        self._poked = asyncio.Event()
        self._silence = liveness.Silence(context.clock)
        self.is_store_reachable = True
        """Whether the last heartbeat reached the store."""
        self._members: tuple[_Nodes, Members] | None = None
        """Members computed last, with the nodes that they were computed from."""
        self._registered: list[str] | None = None
        """Queues in the store's record of this node; None before the first registration."""
        self._is_leaving = False
        self._report_clock_at = float("-inf")
        """Monotonic seconds of the next report of a clock that is off."""
        self._has_begun = False
        """Whether this node has registered."""

    def poke(self) -> None:
        """Send a heartbeat now, because a person or another node changed something."""
        self._poked.set()

    def learn_partitions(self, queue: str, partitions: int) -> None:
        """Register a number of partitions that a submitter uses and this node does not know, so
        that no task waits in a partition that nobody reads."""
        if self._settings.learn_partitions(queue, partitions):
            self.poke()

    async def keep_alive(self) -> None:
        """Send only the heartbeat, from any event loop. Raises StoreUnavailable."""
        began = self._context.heartbeats.now()
        await self._context.cluster.heartbeat(self._node, self._context.clock.now())
        self._context.heartbeats.extend(began, liveness.SILENT_SECONDS)

    async def leave(self) -> None:
        """Serve no queue from now on, so that other nodes take the partitions, unless the node will
        restart. Raise StoreUnavailable."""
        self._is_leaving = True
        await self._send_heartbeat()

    async def begin(self) -> None:
        """Register this node, and drop its earlier starts. Raise StoreUnavailable, and what the
        checks raise that its start has left out."""
        if (check_store := self._context.served.check_store) is not None:
            await asyncio.to_thread(check_store)
        await self.beat()
        await self._drop_earlier_starts()
        if self._context.ports.is_alone:
            await self._resume_earlier_worker()
        self._has_begun = True

    async def _resume_earlier_worker(self) -> None:
        """Resume the tasks that a worker of the same name held when it died. Raise
        StoreUnavailable."""
        store, now = self._context.claims, self._context.clock.now()
        while (await store.resume_lost([self._node], now, MOST_RESUMED)).moved:
            pass

    def begin_later(self) -> None:
        """Begin in `run`, when the store responds."""
        self.is_store_reachable = False

    async def _drop_earlier_starts(self) -> None:
        """Drop earlier starts of this node that hold no task. Raise StoreUnavailable."""
        if _MARK not in self._node:
            return
        store, identity = self._context.cluster, identity_of(self._node)
        for record in await store.database.read(store.nodes()):
            is_earlier = record.node != self._node and identity_of(record.node) == identity
            if is_earlier and not await self._holds_tasks(record.node):
                self._context.channel.announce(await store.drop_node(record.node))

    async def _holds_tasks(self, node: str) -> bool:
        tasks = self._context.ports.tasks
        return tasks is not None and bool(await tasks.held(node))

    async def _send_heartbeat(self) -> ClusterState:
        """Send a heartbeat, register first where needed, and return what the store has then."""
        context = self._context
        queues, now = self._settings.queues, context.clock.now()
        if self._is_leaving and context.settings.restart_seconds:
            now += round(context.settings.restart_seconds * MICROS)
        elif self._is_leaving:
            queues = []
        store, node = context.cluster, self._node
        if self._registered != queues or not (seen := await store.heartbeat(node, now)):
            names = sorted(context.served.handlers)
            joined = await store.register_node(node, queues, names, now, self._facts)
            context.channel.announce(joined)
            self._registered = queues
            if not (seen := await store.heartbeat(node, now)):
                raise StoreUnavailable("another node has dropped this node just now")
        return seen

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            self._poked.clear()
            try:
                async with asyncio.timeout(liveness.SILENT_SECONDS):
                    await (self.beat() if self._has_begun else self.begin())
                if not self.is_store_reachable:
                    self._silence.doubt()
                    log.info("heartbeats reach the store again")
                self.is_store_reachable = True
            except (StoreUnavailable, TimeoutError) as error:
                if self.is_store_reachable:
                    fields = {"error": str(error)}
                    log.warning("no heartbeat: the store is unavailable", extra=fields)
                self.is_store_reachable = False
                self._settings.read_again()  # a server that comes back may have lost changes
            is_well = self.is_store_reachable
            pause = liveness.HEARTBEAT_SECONDS if is_well else liveness.RETRY_SECONDS
            await event_or_pause(self._poked, pause)

    def _members_of(self, living: Sequence[NodeRecord], restarting: frozenset[str]) -> Members:
        """Return the nodes of each served queue; the same object until a node changes."""
        nodes = ([(record.node, record.queues) for record in living], restarting)
        if self._members is not None and self._members[0] == nodes:
            return self._members[1]
        by_queue: dict[str, set[str]] = {queue: set() for queue in self._settings.queues}
        for record in living:
            for queue in by_queue.keys() & record.queues:
                by_queue[queue].add(identity_of(record.node))
        sets: dict[frozenset[str], frozenset[str]] = {}
        members = Members(
            {
                queue: sets.setdefault(each := frozenset(identities), each)
                for queue, identities in by_queue.items()
            },
            frozenset(map(identity_of, restarting)),
        )
        self._members = (nodes, members)
        return members

    async def silent_nodes(self) -> Sequence[str]:
        """Return the nodes that have been silent for so long that they count as dead, by a new
        heartbeat if the last one has seen such nodes. Raises StoreUnavailable."""
        began = self._context.clock.monotonic()
        if not self._silence.has_begun:
            return []
        return self._dead_among((await self._beat()).nodes, began)

    def _dead_among(self, nodes: Sequence[NodeRecord], began: float) -> Sequence[str]:
        """Return which nodes count as dead. `nodes`: read with the heartbeat of this node that
        began at `began` (monotonic seconds)."""
        silent = self._silence.among(nodes, self._node)
        # A node that will restart sets its heartbeat ahead.
        can_judge = self.is_store_reachable and not self._is_leaving
        return silent if can_judge and self._silence.can_judge(began) else []

    async def _beat(self) -> ClusterState:
        """Send a heartbeat, and return what the store has then."""
        clock = self._context.clock
        began, began_at = clock.monotonic(), clock.now()
        seen = await self._send_heartbeat()
        if not self._is_leaving:  # a node that will restart sets its heartbeat ahead
            for record in seen.nodes:
                if record.node == self._node:
                    self._silence.observe(record.heartbeat_at, began)
                    if isinstance(clock, StoreClock):
                        clock.observe(record.heartbeat_at, began_at)
                        self._report_clock(clock.ahead / MICROS)
        return seen

    def _report_clock(self, ahead: float) -> None:
        """Log once, and report while it lasts, that the machine's clock is ahead, or behind."""
        now = self._context.clock.monotonic()
        if abs(ahead) < CLOCK_OFF_SECONDS or now < self._report_clock_at:
            return
        side = "ahead of" if ahead > 0 else "behind"
        what = f"its clock is {abs(ahead):.1f} s {side} that of the store, which the worker uses"
        if self._report_clock_at == float("-inf"):
            log.warning("the clock of the machine is wrong", extra={"details": what})
        self._report_clock_at = now + INCIDENT_REPORTED
        report = IncidentReport(
            kind=IncidentKind.CLOCK_OFF,
            subject=self._node,
            details=f"worker {self._node}: {what}; see the time server of its machine",
            since=self._context.clock.now(),
        )
        self._context.events.on_incidents([report])

    async def beat(self) -> None:
        """Send one heartbeat, and read what changed."""
        began, sent_at = self._context.clock.monotonic(), self._context.heartbeats.now()
        nodes, mark = await self._beat()
        now = self._context.clock.now()
        dead = self._dead_among(nodes, began)
        await self._claimer.drop_ended()
        await self._settings.register_queues()
        living = [each for each in nodes if each.node not in dead]
        # A node that will restart has set its heartbeat ahead.
        ahead = now + round(liveness.AHEAD_SECONDS * MICROS)
        restarting = frozenset(each.node for each in living if each.heartbeat_at > ahead)
        members = self._members_of(living, restarting)
        present = frozenset(each.node for each in nodes) - restarting
        changes = await self._settings.read(mark)
        self._context.events.on_view(View(*changes, members, present))
        if held := self._claimer.held():
            ids = [run.claimed.id for run in held]
            kept = await self._context.claims.still_held(self._node, ids, noted=True)
            if lost := [each for each in held if each.claimed.id not in kept]:
                # This node ended some of these itself, and may run their tasks again already.
                self._runs.taken_away(lost)
        # Not before: no run of a task that was lost meanwhile may start.
        self._context.heartbeats.extend(sent_at, liveness.SILENT_SECONDS)
