"""A node: everything that runs in one worker process, started in order and stopped in reverse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fairlead.clock import Clock
from fairlead.declare.current import enable_loggers
from fairlead.engine.context import NodePorts, Served
from fairlead.engine.executors.handler_tasks import apart_from_handlers
from fairlead.engine.executors.run_log import collecting
from fairlead.engine.lifecycle import opened, serve
from fairlead.engine.liveness import RETRY_SECONDS
from fairlead.engine.settings import NodeSettings
from fairlead.engine.wiring import NodeParts
from fairlead.errors import StoreRefused, StoreUnavailable
from fairlead.pauses import event_or_pause
from fairlead.ports.observer import Observer

log = logging.getLogger("fairlead.node")


class Node:
    """A node of one application: `run` serves until `stop`, or raises the exception that ended
    it."""

    def __init__(
        self,
        settings: NodeSettings,
        served: Served,
        ports: NodePorts,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.settings = settings
        self.parts = NodeParts(settings, served, ports, clock, observer)
        self.ready = asyncio.Event()
        """Set when the node has registered and has asked for its partitions."""
        self.unstoppable = 0
        """Number of asynchronous handlers that ignored their cancellation; only the end of the
        process ends them."""
        self.waits_for: str | None = None
        """Error of a server for which the start of this node waits; None if it waits for none."""
        self._context = self.parts.context
        self._stopping = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Number of tasks claimed and not yet completed."""
        return len(self._context.in_flight)

    @property
    def not_ready(self) -> str | None:
        """Reason why this node does not serve now: it starts, drains or cannot reach its store;
        None while it serves."""
        if self._stopping.is_set():
            return "draining"
        if not self.ready.is_set():
            return "starting" if self.waits_for is None else f"waits: {self.waits_for}"
        return None if self.parts.membership.is_store_reachable else "the store is unavailable"

    @property
    def queues(self) -> list[str]:
        """Names of the served queues, sorted."""
        return sorted(self.parts.ownership.partitions)

    async def unfinished(self) -> tuple[int, int]:
        """Return how many tasks of the served queues are left to run or retry, and how many are in
        ERROR."""
        left, in_error = 0, 0
        if (store := self._context.ports.tasks) is not None:
            left, in_error = await store.database.read(store.unfinished(self.queues))
        return left + await self.parts.ordered.unfinished(), in_error

    async def has_unfinished(self) -> bool:
        """Return whether a task of the served queues is left to run or retry, without a count. May
        miss one that changes its state meanwhile."""
        if (tables := self._context.ports.tables) is not None:
            left: bool = await tables.database.read(tables.has_unfinished(self.queues))
            if left:
                return True
        return await self.parts.ordered.has_unfinished()

    async def run(self) -> None:
        """Open the lifespan, start, serve until `stop`, drain, leave, close. Raise the exception of
        a part that failed, or LifespanFailed."""
        await apart_from_handlers(self._run())

    async def _run(self) -> None:
        served = self._context.served
        keeps_log = any(handler.kept.log for handler in served.handlers.values())
        async with opened(served.lifespan):
            enable_loggers()
            with collecting(keeps_log):
                await self._run_parts()

    async def _run_parts(self) -> None:
        parts, channel = self.parts, self._context.channel
        await parts.ordered.prepare()
        await parts.deaths.hold_lock(parts.membership.poke)
        if not await self._reached(self._begin):
            return
        await channel.open(parts.on_notification, self._context.name)
        try:
            if await self._reached(parts.ownership.renew):
                parts.partitions.join()
                self.ready.set()
                await self._serve()
        finally:
            await channel.close()
            await parts.ordered.close()
        log.info("node stopped", extra={"node": self.settings.name})

    async def _begin(self) -> None:
        try:
            await self.parts.membership.begin()
        except StoreUnavailable as error:
            if not self._context.served.serves_without_store:
                raise
            log.warning(
                "the task store is away: ordered queues are served, all else waits for it",
                extra={"store": self._context.cluster.database.location, "error": str(error)},
            )
            self.parts.begin_without_store()

    async def _reached(self, call: Callable[[], Awaitable[None]]) -> bool:
        """Make the call, again and again while its server is away. Return False if the node is to
        stop. Raise StoreRefused and other errors than StoreUnavailable."""
        while not self._stopping.is_set():
            try:
                await call()
                self.waits_for = None
                return True
            except StoreRefused:
                raise
            except StoreUnavailable as error:
                if self.waits_for != str(error):
                    self.waits_for = str(error)
                    log.warning("the node waits for a server", extra={"error": self.waits_for})
            await event_or_pause(self._stopping, RETRY_SECONDS)
        return False

    def stop(self) -> None:
        """Claim no more tasks, let runs end, hand back the rest, then leave. Safe to call twice."""
        self._stopping.set()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as executors:
            self.parts.runs.open(executors)
            log.info("node started", extra={"node": self.settings.name, "queues": self.queues})
            await serve(self.parts.in_order, self._stopping)
            await self.parts.limits.leave()
            await self._leave()

    async def _leave(self) -> None:
        self.unstoppable = await self.parts.runs.close()
        if self.unstoppable:
            log.warning("handlers ignored their cancellation", extra={"handlers": self.unstoppable})
        try:
            # A node that may still hold tasks stays registered: its lock or its heartbeats end, and
            # other nodes then resume its tasks. A node that will restart stays registered too:
            # other nodes treat it as alive until then.
            is_final = not self.settings.restart_seconds
            if is_final and not self.in_flight and not self.parts.reconciler.is_requested:
                notification = await self._context.cluster.drop_node(self.settings.name)
                await self.parts.deaths.release_lock()
                self._context.channel.announce(notification)
        except StoreUnavailable as error:
            log.warning(
                "node left without deregistering: the store is unavailable",
                extra={"error": str(error)},
            )
