"""The permits of one node: acquired when a task waits for them, renewed while in use, released when
other nodes wait.

`fairlead.core.limits.permits` and `sharded_permits` have the rules,
docs/explanation/cluster-limits.md the guarantees.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec

from fairlead.core.limits.cluster_limits import AnyLimit, ClusterWide, OnNode, needs_permits
from fairlead.core.limits.limits import ConcurrencyPolicy, PerNode
from fairlead.core.limits.permits import STOP_AT
from fairlead.core.limits.sharded_permits import (
    READ_EVERY,
    LedgerFull,
    LedgerSteps,
    Permits,
    ReadShard,
    WriteShard,
)
from fairlead.declare.handler import Handler
from fairlead.declare.queue import Queue
from fairlead.engine.context import NodeContext
from fairlead.engine.liveness.watchdog import Watchdog
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.pauses import event_or_pause
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.presence import Presence

log = logging.getLogger("fairlead.cluster_limits")

T = TypeVar("T")

URGENT_ROUND_EVERY = 0.2
"""Seconds between two rounds while a task waits for a permit."""

_SHARDS_AT_ONCE = 4
"""Shards of a limit with a request to the coordinator under way, so that a round of many shards
takes less time."""


def limit_name(handler: Handler) -> str:
    """Return the default name of the limit of a task. The default name of the limit of a queue is
    the name of the queue."""
    return f"{handler.queue}/{handler.name}"


def cluster_wide(queues: Iterable[Queue], handlers: Iterable[Handler]) -> list[str]:
    """Return the names of the cluster-wide limits of these queues and handlers, sorted."""
    declared = [*((queue.name, queue.concurrency) for queue in queues)]
    declared += [(limit_name(handler), handler.concurrency) for handler in handlers]
    return sorted({limit.name or name for name, limit in declared if needs_permits(limit)})


async def follow(
    coordinator: Coordinator,
    limit: str,
    steps: LedgerSteps[T],
    presence: Presence | None = None,
    dead: Collection[str] = (),
) -> T:
    """Carry out steps on the ledger of a limit, and return their result. `presence`, `dead`: show
    which processes have surely ended. Raises StoreUnavailable."""
    result: Any = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration as end:
            return cast(T, end.value)
        if isinstance(step, WriteShard):
            result = await coordinator.write_ledger(limit, *step)
        elif isinstance(step, ReadShard):
            result = await coordinator.read_ledger(limit, step.shard)
        else:
            result = step.nodes.intersection(dead)
            if presence is not None:
                result |= await presence.released(step.nodes)


@dataclass
class _Limit:
    """One cluster-wide limit and the permits that this node holds of it."""

    name: str
    declared: ClusterWide
    declared_by: str
    permits: Permits
    policy: OnNode
    round_requested: asyncio.Event = field(default_factory=asyncio.Event)
    in_round: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a round may write."""
    failing: set[str] = field(default_factory=set)
    """Shards whose last round failed."""
    stopped_for: float = float("-inf")
    """Expiry, in monotonic seconds, of the permits whose runs were stopped last."""

    def log_once(self, shard: str, what: str, error: Exception) -> None:
        """Log a failure of a shard, once until a round succeeds."""
        if shard not in self.failing:
            self.failing.add(shard)
            is_outage = isinstance(error, StoreUnavailable | TimeoutError)
            fields = {"limit": self.name, "shard": shard, "error": str(error)}
            log.log(logging.WARNING if is_outage else logging.ERROR, what, extra=fields)


class ClusterLimits:
    """Cluster-wide limits of a node: call `on_node` before the start, `run` while the node serves,
    and `leave` after the last run."""

    def __init__(
        self, context: NodeContext, children: Callable[[], Collection[int]] | None = None
    ) -> None:
        """`children`: returns the ids of the processes that run handlers for this process; None if
        there are none."""
        self._context = context
        self._clock = context.clock
        self._ttl = context.settings.permit_seconds
        self._children = children
        presence = context.ports.presence
        is_certain = presence is not None and not presence.confirm_seconds
        self._ends_at_once = is_certain and children is None
        """Whether a free lock of this node proves that its runs have ended."""
        self._dead: set[str] = set()
        self._limits: dict[str, _Limit] = {}
        self._per_node: dict[int, ConcurrencyPolicy] = {}
        """Policies of this node by the identity of the declared limit."""
        self._watchdog: Watchdog | None = None
        self._is_leaving = False

    def on_node(self, declared: AnyLimit | None, declared_by: str) -> ConcurrencyPolicy | None:
        """Return the policy from which this node acquires slots for a limit: one for each limit,
        however many queues and tasks declare it. A policy of the user's own is returned as it is.

        declared_by: name of the queue or task that declares the limit.

        Raise ConfigurationError for one unnamed limit of two owners, and for two limits with one
        name.
        """
        if not needs_permits(declared):
            policy = cast(ConcurrencyPolicy | None, declared)
            if not isinstance(policy, PerNode):
                return policy
            if id(policy) not in self._per_node:
                self._per_node[id(policy)] = policy.fresh()
            return self._per_node[id(policy)]
        for limit in self._limits.values():
            if limit.declared is declared:
                if declared.name is None:
                    raise ConfigurationError(
                        f"{declared!r} belongs to {limit.declared_by} and to {declared_by}; give it"
                        " a name= to share it, or declare two limits"
                    )
                return limit.policy
        name = declared.name or declared_by
        if name in self._limits:
            raise ConfigurationError(
                f"two cluster-wide limits are named {name!r}: choose another name= for one of them"
            )
        permits = Permits(
            self._context.name,
            self._ttl,
            declared.linger,
            busy=lambda is_busy: self.guard(),
            ends_at_once=self._ends_at_once or not declared.ends_runs,
        )
        limit = self._limits[name] = _Limit(
            name, declared, declared_by, permits, declared.on_node(permits, lambda: request_round())
        )
        request_round = limit.round_requested.set
        return limit.policy

    async def run(self) -> None:
        """Keep the permits until cancelled."""
        if not self._limits:
            return
        try:
            async with asyncio.TaskGroup() as group:
                if self._limits_that_end_runs:
                    # Start the watchdog before any slot can be acquired.
                    self._watchdog = await Watchdog.start()
                    group.create_task(self._restart_watchdog(self._watchdog))
                    group.create_task(self._watch())
                for limit in self._limits.values():
                    group.create_task(self._serve(limit))
        finally:
            if self._watchdog is not None:
                await self._watchdog.stop()

    def on_dead(self, nodes: Collection[str]) -> None:
        """Note nodes that this node has found dead; the store forgets them."""
        self._dead.update(nodes)

    async def stop(self) -> None:
        """Let the rounds under way end, because a cancelled write could still land after `leave`,
        which releases the permits when nothing runs."""
        self._is_leaving = True
        for limit in self._limits.values():
            async with limit.in_round:
                pass

    async def leave(self) -> None:
        """Release all permits, so that other nodes need not wait for them to expire."""
        for limit in self._limits.values():
            for shard in limit.permits.shards:
                try:
                    await self._follow(limit, limit.permits.leave(shard, self._clock.monotonic))
                except (StoreUnavailable, msgspec.DecodeError) as error:
                    log.warning(
                        "could not release the permits of this node; they expire by themselves",
                        extra={"limit": limit.name, "shard": shard, "error": str(error)},
                    )
                    if isinstance(error, StoreUnavailable):
                        break

    # rounds ---------------------------------------------------------------------------------------

    async def _serve(self, limit: _Limit) -> None:
        """Do a round soon when a task waits for a permit, and otherwise often enough to renew the
        permits."""
        while not self._is_leaving:
            limit.round_requested.clear()
            now = self._clock.monotonic()
            shards = iter(limit.permits.due(now))
            async with limit.in_round, asyncio.TaskGroup() as group:
                for _ in range(_SHARDS_AT_ONCE):
                    group.create_task(self._rounds(limit, shards))
            await self._clock.sleep(URGENT_ROUND_EVERY)
            if limit.permits.due(self._clock.monotonic()):
                continue
            pause = READ_EVERY if limit.permits.holds else math.inf
            await event_or_pause(limit.round_requested, pause)

    async def _rounds(self, limit: _Limit, shards: Iterator[str]) -> None:
        """Do a round in each shard, until the coordinator is unavailable or the node leaves."""
        for shard in shards:
            if self._is_leaving:
                return
            try:
                async with asyncio.timeout(self._ttl / 3):
                    await self._round(limit, shard)
                limit.failing.discard(shard)
            except (StoreUnavailable, TimeoutError) as error:
                limit.log_once(shard, "no permits while the coordinator is unavailable", error)
                return
            except LedgerFull as error:
                limit.log_once(shard, "the permit ledger of a cluster-wide limit is full", error)
            except msgspec.DecodeError as error:
                what = "the permit ledger of a cluster-wide limit cannot be read"
                limit.log_once(shard, what, error)

    async def _round(self, limit: _Limit, shard: str) -> None:
        steps = limit.permits.round(shard, self._clock.monotonic)
        with_room = await self._follow(limit, steps)
        self.guard()
        if with_room:
            self._context.events.on_freed(limit.policy.limits_of(with_room))

    async def keep_alive(self) -> None:
        """Only renew the permits in use, from any event loop. Raises StoreUnavailable."""
        for limit in self._limits.values():
            for shard in limit.permits.shards_in_use:
                with contextlib.suppress(msgspec.DecodeError):  # logged in the rounds
                    steps = limit.permits.renew(shard, self._clock.monotonic)
                    if await self._follow(limit, steps):
                        self.guard()

    async def _follow(self, limit: _Limit, steps: LedgerSteps[T]) -> T:
        ports = self._context.ports
        return await follow(ports.coordinator, limit.name, steps, ports.presence, self._dead)

    # when permits end -----------------------------------------------------------------------------

    @property
    def _limits_that_end_runs(self) -> list[_Limit]:
        """Return the limits whose runs must end with their permits."""
        return [limit for limit in self._limits.values() if limit.declared.ends_runs]

    async def _watch(self) -> None:
        """Stop runs shortly before their permits expire."""
        while True:
            now = self._clock.monotonic()
            for limit in self._limits_that_end_runs:
                until = limit.permits.until
                if until is not None and now >= until - (1 - STOP_AT) * self._ttl:
                    if limit.stopped_for != until:
                        limit.stopped_for = until
                        fields = {"limit": limit.name, "runs": limit.permits.running}
                        log.error("runs are stopped because their permits expire", extra=fields)
                    self._context.events.on_permits_lost(limit.policy)
            await self._clock.sleep(self._ttl / 60)

    async def _restart_watchdog(self, watchdog: Watchdog) -> None:
        """Start the watchdog again when it ends: without a watchdog, the runs of a hanging worker
        would continue after their permits expire."""
        while True:
            await watchdog.ended()
            log.error("the watchdog of this worker has ended; a new one is started")
            watchdog = self._watchdog = await Watchdog.start()
            self.guard()

    def guard(self) -> None:
        """Give the watchdog the deadline of this worker, and the processes that run handlers."""
        if self._watchdog is not None:
            ends = [limit.permits.until for limit in self._limits_that_end_runs]
            first = min((until for until in ends if until is not None), default=None)
            self._watchdog.set_deadline(first, self._children() if self._children else ())
