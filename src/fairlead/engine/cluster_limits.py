"""The permits of one node: fetched when something waits for them, renewed while they are used,
given back when others wait.

See core/permits.py for the rules, and docs/explanation/cluster-limits.md for what they promise.
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

PRESSING = 0.2
"""Seconds between two rounds while something waits."""

LOOK = 1.0
"""Seconds between two looks at the book by a node that has permits: others may want them."""

_TRIES_TO_LEAVE = 20


def place_of(handler: Handler) -> str:
    """What a limit of a task is called in the cluster, unless it has a name; one of a queue is
    called as the queue."""
    return f"{handler.queue}/{handler.name}"


def cluster_wide(queues: Iterable[Queue], handlers: Iterable[Handler]) -> list[str]:
    """The names, in the cluster, of the cluster-wide limits that these declare."""
    places = [*((queue.name, queue.concurrency) for queue in queues)]
    places += [(place_of(handler), handler.concurrency) for handler in handlers]
    return sorted({limit.name or place for place, limit in places if needs_permits(limit)})


@dataclass
class _Kept:
    """A limit on this node."""

    name: str
    declared: ClusterWide
    place: str
    permits: Permits
    policy: OnNode
    pressed: asyncio.Event = field(default_factory=asyncio.Event)
    renew_at: float = float("-inf")
    stopped_for: float = float("-inf")
    """The end of the permits for which its runs were told to stop."""


class ClusterLimits:
    """`on_node` before the node starts; `run` as long as it lives; `leave` when nothing runs any
    more."""

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
        """`freed`: these limits have room. `stop_runs`: whatever runs on this policy has to end.
        `children`: process ids of those that run handlers for this process."""
        self._node = node
        self._coordinator = coordinator
        self._freed = freed
        self._stop_runs = stop_runs
        self._children = children
        self._clock = clock
        self._ttl = ttl
        self._kept: dict[str, _Kept] = {}
        self._watchdog: Watchdog | None = None

    def on_node(self, declared: AnyLimit | None, place: str) -> ConcurrencyPolicy | None:
        """What this node books for the limit that `place` (a queue or a task) declares: the limit
        itself when it is not cluster-wide. Raises ConfigurationError for one limit in two places
        without a name, and for one name of two."""
        if not needs_permits(declared):
            return cast(ConcurrencyPolicy | None, declared)
        for kept in self._kept.values():
            if kept.declared is declared:
                if declared.name is None:
                    raise ConfigurationError(
                        f"{declared!r} belongs to {kept.place} and to {place}: give it a name=, or"
                        " each one of its own"
                    )
                return kept.policy
        name = declared.name or place
        if name in self._kept:
            raise ConfigurationError(
                f"two cluster-wide limits are named {name!r}: choose another name= for one of them"
            )
        permits = Permits(self._node, self._ttl, declared.linger, lambda is_busy: self.guard())
        kept = self._kept[name] = _Kept(
            name, declared, place, permits, declared.on_node(permits, lambda: press())
        )
        press = kept.pressed.set
        return kept.policy

    async def run(self) -> None:
        """Keep the permits for as long as the node lives."""
        if not self._kept:
            return
        try:
            async with asyncio.TaskGroup() as group:
                if self._exact:
                    # Before anything can be booked.
                    self._watchdog = await Watchdog.start()
                    group.create_task(self._keep_watchdog(self._watchdog))
                    group.create_task(self._watch())
                for kept in self._kept.values():
                    group.create_task(self._keep(kept))
        finally:
            if self._watchdog is not None:
                await self._watchdog.stop()

    async def stop(self) -> None:
        """Leave everything as it is: permits are given back by `leave`, when nothing runs."""

    async def leave(self) -> None:
        """Others need not wait until the permits run out."""
        for kept in self._kept.values():
            try:
                for _ in range(_TRIES_TO_LEAVE):
                    data, version = await self._coordinator.read_ledger(kept.name)
                    ledger = decode(data)
                    if self._node not in ledger.nodes:
                        break
                    if await self._coordinator.write_ledger(
                        kept.name, encode(kept.permits.leave(ledger)), version
                    ):
                        break
            except (StoreUnavailable, msgspec.DecodeError) as error:
                log.warning(
                    "permits are free when they run out",
                    extra={"limit": kept.name, "error": str(error)},
                )

    # rounds ---------------------------------------------------------------------------------------

    async def _keep(self, kept: _Kept) -> None:
        """Rounds: at once when something waits, though not all the time; often enough to renew
        otherwise."""
        while True:
            kept.pressed.clear()
            try:
                async with asyncio.timeout(self._ttl / 3):
                    await self._round(kept)
            except (StoreUnavailable, TimeoutError) as error:
                log.warning(
                    "no permits while the coordinator is away",
                    extra={"limit": kept.name, "error": str(error)},
                )
            except msgspec.DecodeError as error:
                log.error(
                    "the book of a cluster-wide limit cannot be read",
                    extra={"limit": kept.name, "error": str(error)},
                )
            await self._clock.sleep(PRESSING)
            if kept.permits.is_pressing:
                continue
            try:
                async with asyncio.timeout(LOOK if kept.permits.holds else None):
                    await kept.pressed.wait()
            except TimeoutError:
                pass

    async def _round(self, kept: _Kept) -> None:
        data, version = await self._coordinator.read_ledger(kept.name)
        now = self._clock.monotonic()
        kept.policy.pass_time(now)
        proposal = kept.permits.propose(decode(data), now)
        if not proposal.is_news and proposal.began < kept.renew_at:
            return
        if await self._coordinator.write_ledger(kept.name, encode(proposal.ledger), version):
            roomy = kept.permits.written(proposal)
            kept.renew_at = proposal.began + self._ttl / 3
            self.guard()
            if roomy:
                self._freed(kept.policy.roomy(roomy))
        else:
            kept.pressed.set()  # somebody was quicker

    # when permits end -----------------------------------------------------------------------------

    @property
    def _exact(self) -> list[_Kept]:
        """Those whose runs must end with their permits."""
        return [kept for kept in self._kept.values() if kept.declared.ends_runs]

    async def _watch(self) -> None:
        """Stop what runs on permits that are running out."""
        while True:
            now = self._clock.monotonic()
            for kept in self._exact:
                until = kept.permits.until
                if kept.permits.running and now >= kept.permits.usable_until:
                    if kept.stopped_for != until:
                        kept.stopped_for = until
                        told = {"limit": kept.name, "runs": kept.permits.running}
                        log.error("runs are stopped: their permits run out", extra=told)
                    self._stop_runs(kept.policy)
            await self._clock.sleep(self._ttl / 60)

    async def _keep_watchdog(self, watchdog: Watchdog) -> None:
        """Somebody may end it: without one a worker that hangs would keep on counting."""
        while True:
            await watchdog.ended()
            log.error("the watchdog of this worker was ended; another one is started")
            watchdog = self._watchdog = await Watchdog.start()
            self.guard()

    def guard(self) -> None:
        """Tell the watchdog by when nothing may run here any more, and in which processes something
        runs."""
        if self._watchdog is not None:
            ends = [kept.permits.until for kept in self._exact if kept.permits.running]
            self._watchdog.tell(min(ends, default=None), self._children())
