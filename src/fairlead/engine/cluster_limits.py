"""The permits of one node: acquired when a task waits for them, renewed while in use, released when
other nodes wait.

`fairlead.core.limits.permits` has the rules, docs/explanation/cluster-limits.md the guarantees.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import cast

import msgspec

from fairlead.clock import Clock
from fairlead.core.limits.cluster_limits import AnyLimit, ClusterWide, OnNode, needs_permits
from fairlead.core.limits.limits import ConcurrencyPolicy
from fairlead.core.limits.permits import Permits, decode, encode
from fairlead.declare.handler import Handler
from fairlead.declare.queue import Queue
from fairlead.engine.settings import PERMIT_SECONDS
from fairlead.engine.watchdog import Watchdog
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.ports.coordinator import Coordinator

log = logging.getLogger("fairlead.cluster_limits")

URGENT_ROUND_EVERY = 0.2
"""Seconds between two rounds while a task waits for a permit."""

LEDGER_READ_EVERY = 1.0
"""Seconds between two reads of the permit ledger by a node that holds permits."""

_TRIES_TO_LEAVE = 20


def limit_name(handler: Handler) -> str:
    """Return the default name of the limit of a task. The default name of the limit of a queue is
    the name of the queue."""
    return f"{handler.queue}/{handler.name}"


def cluster_wide(queues: Iterable[Queue], handlers: Iterable[Handler]) -> list[str]:
    """Return the names of the cluster-wide limits of these queues and handlers, sorted."""
    declared = [*((queue.name, queue.concurrency) for queue in queues)]
    declared += [(limit_name(handler), handler.concurrency) for handler in handlers]
    return sorted({limit.name or name for name, limit in declared if needs_permits(limit)})


@dataclass
class _Limit:
    """One cluster-wide limit and the permits that this node holds of it."""

    name: str
    declared: ClusterWide
    declared_by: str
    permits: Permits
    policy: OnNode
    round_requested: asyncio.Event = field(default_factory=asyncio.Event)
    renew_at: float = float("-inf")
    stopped_for: float = float("-inf")
    """Expiry, in monotonic seconds, of the permits whose runs were stopped last."""


class ClusterLimits:
    """Cluster-wide limits of a node: call `on_node` before the start, `run` while the node serves,
    and `leave` after the last run."""

    def __init__(
        self,
        node: str,
        coordinator: Coordinator,
        freed: Callable[[Iterable[Hashable]], None],
        stop_runs: Callable[[ConcurrencyPolicy], None],
        children: Callable[[], Collection[int]],
        clock: Clock,
        ttl: float = PERMIT_SECONDS,
    ) -> None:
        """`freed`: called with the limits that have free slots again. `stop_runs`: called with a
        policy whose runs must end. `children`: returns the ids of the processes that run handlers
        for this process. `ttl`: seconds until permits expire."""
        self._node = node
        self._coordinator = coordinator
        self._freed = freed
        self._stop_runs = stop_runs
        self._children = children
        self._clock = clock
        self._ttl = ttl
        self._limits: dict[str, _Limit] = {}
        self._watchdog: Watchdog | None = None

    def on_node(self, declared: AnyLimit | None, declared_by: str) -> ConcurrencyPolicy | None:
        """Return the policy from which this node acquires slots for a limit. Return a limit
        that is not cluster-wide as it is.

        declared_by: name of the queue or task that declares the limit.

        Raise ConfigurationError for one unnamed limit of two owners, and for two limits with one
        name.
        """
        if not needs_permits(declared):
            return cast(ConcurrencyPolicy | None, declared)
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
        permits = Permits(self._node, self._ttl, declared.linger, lambda is_busy: self.guard())
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

    async def stop(self) -> None:
        """Do nothing: `leave` releases the permits when nothing runs."""

    async def leave(self) -> None:
        """Release all permits, so that other nodes need not wait for them to expire."""
        for limit in self._limits.values():
            try:
                for _ in range(_TRIES_TO_LEAVE):
                    data, version = await self._coordinator.read_ledger(limit.name)
                    ledger = decode(data)
                    if self._node not in ledger.nodes:
                        break
                    if await self._coordinator.write_ledger(
                        limit.name, encode(limit.permits.leave(ledger)), version
                    ):
                        break
            except (StoreUnavailable, msgspec.DecodeError) as error:
                log.warning(
                    "could not release the permits of this node; they expire by themselves",
                    extra={"limit": limit.name, "error": str(error)},
                )

    # rounds ---------------------------------------------------------------------------------------

    async def _serve(self, limit: _Limit) -> None:
        """Do a round soon when a task waits for a permit, and otherwise often enough to renew the
        permits."""
        while True:
            limit.round_requested.clear()
            try:
                async with asyncio.timeout(self._ttl / 3):
                    await self._round(limit)
            except (StoreUnavailable, TimeoutError) as error:
                log.warning(
                    "no permits while the coordinator is unavailable",
                    extra={"limit": limit.name, "error": str(error)},
                )
            except msgspec.DecodeError as error:
                log.error(
                    "the permit ledger of a cluster-wide limit cannot be read",
                    extra={"limit": limit.name, "error": str(error)},
                )
            await self._clock.sleep(URGENT_ROUND_EVERY)
            if limit.permits.needs_round:
                continue
            try:
                async with asyncio.timeout(LEDGER_READ_EVERY if limit.permits.holds else None):
                    await limit.round_requested.wait()
            except TimeoutError:
                pass

    async def _round(self, limit: _Limit) -> None:
        data, version = await self._coordinator.read_ledger(limit.name)
        now = self._clock.monotonic()
        limit.policy.pass_time(now)
        proposal = limit.permits.propose(decode(data), now)
        if not proposal.is_change and proposal.began < limit.renew_at:
            return
        if await self._coordinator.write_ledger(limit.name, encode(proposal.ledger), version):
            with_room = limit.permits.written(proposal)
            limit.renew_at = proposal.began + self._ttl / 3
            self.guard()
            if with_room:
                self._freed(limit.policy.limits_of(with_room))
        else:
            limit.round_requested.set()  # another node wrote the ledger first

    async def keep_alive(self) -> None:
        """Only renew the permits in use, from any event loop. Raises StoreUnavailable."""
        for limit in self._limits.values():
            if not limit.permits.running:
                continue
            data, version = await self._coordinator.read_ledger(limit.name)
            now = self._clock.monotonic()
            ledger = limit.permits.renewal(decode(data))
            if ledger is not None and await self._coordinator.write_ledger(
                limit.name, encode(ledger), version
            ):
                limit.permits.renewed(now)
                self.guard()

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
                if limit.permits.running and now >= limit.permits.usable_until:
                    if limit.stopped_for != until:
                        limit.stopped_for = until
                        fields = {"limit": limit.name, "runs": limit.permits.running}
                        log.error("runs are stopped because their permits expire", extra=fields)
                    self._stop_runs(limit.policy)
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
            ends = [
                limit.permits.until for limit in self._limits_that_end_runs if limit.permits.running
            ]
            self._watchdog.set_deadline(min(ends, default=None), self._children())
