"""A node: everything that runs in one worker process, started in order and stopped in reverse.

ownership, membership -> channel -> intake (-> backlogs) -> trigger table -> dispatcher -> executors
-> completion
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.clock import Clock
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.core.triggers.table import TriggerTable
from fairlead.declare.handler import Handler, RunInterceptor
from fairlead.declare.queue import Queue
from fairlead.engine.backlogs import Backlogs
from fairlead.engine.cluster_limits import TTL, ClusterLimits, place_of
from fairlead.engine.completion import Completion
from fairlead.engine.deadlines import Deadlines
from fairlead.engine.dispatcher import Dispatcher
from fairlead.engine.execution import Execution
from fairlead.engine.executors.slots import Slots
from fairlead.engine.fair_partition import Surroundings
from fairlead.engine.intake import FEW_AHEAD, LOOK_AHEAD, Intake
from fairlead.engine.invocation import Invocation
from fairlead.engine.membership import Membership, View
from fairlead.engine.ordering import Ordering
from fairlead.engine.ownership import LEASE_SECONDS, Ownership
from fairlead.engine.pollers import Intervals, Poller, Pollers
from fairlead.engine.runs import Runs
from fairlead.errors import StoreUnavailable
from fairlead.model import PartitionKey, TaskRecord, Trigger
from fairlead.ordered.context import OrderedContext
from fairlead.ordered.queues import OrderedQueues
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.notification import Wake
from fairlead.ports.observer import Observer
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.task_log import TaskLog
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import TriggerChannel

log = logging.getLogger("fairlead.node")

_PATIENCE = 1.0  # seconds for interrupted runs to clean up
_PATIENCE_WITH_STORE = 10.0  # seconds for the last completions


@dataclass(frozen=True)
class NodeSettings:
    """How one worker process runs. Times in seconds."""

    name: str
    """Unique for each start of a process: what a node of an earlier start holds is never this
    one's."""
    concurrency: int = 500
    """Runs at once, of all kinds together."""
    threads: int = 16
    processes: int = 2
    drain: float = 20.0
    """How long running tasks may take to end after a stop; what is left then is handed back."""
    restart_seconds: float = 0.0
    """How long its share of the partitions waits for it after a stop; see
    `fairlead.engine.membership.name_of`."""
    application: str | None = None
    """MODULE:APP, for the children of the process executor."""
    intervals: Intervals = field(default_factory=Intervals)
    lease_seconds: float = LEASE_SECONDS
    look_ahead: int = LOOK_AHEAD
    permit_seconds: float = TTL
    """How long permits of cluster-wide limits may be used without a renewal: for so long they are
    nobody's after a death."""


class Node:
    """See the module. `run()` returns after `stop()`, or raises what broke it."""

    def __init__(
        self,
        settings: NodeSettings,
        queues: Sequence[Queue],
        handlers: Mapping[str, Handler],
        store: TaskStore,
        backlog_store: BacklogStore,
        channel: TriggerChannel,
        coordinator: Coordinator,
        clock: Clock,
        observer: Observer,
        interceptors: Sequence[RunInterceptor] = (),
        extra_pollers: Sequence[Poller] = (),
        on_incident: Callable[[TaskRecord], None] | None = None,
        ordered: tuple[TaskLog, ScheduleStore] | None = None,
    ) -> None:
        self.settings = settings
        self._store = store
        self._channel = channel
        self._clock = clock
        self._observer = observer
        self._handlers = handlers
        self._stopping = asyncio.Event()
        self.ready = asyncio.Event()
        """Set once it has registered and has tried for its partitions."""
        self.unstoppable = 0
        """Handlers on the event loop that went on though they were cancelled: only the end of the
        process ends them."""
        self._paused: frozenset[str] = frozenset()
        self._ask_reconcile = asyncio.Event()
        self._ended = asyncio.Event()
        self._known_partitions: frozenset[PartitionKey] = frozenset()
        name = settings.name

        slots = Slots(settings.threads, settings.processes)
        self._booking = SlotLedger(settings.concurrency)
        self.runs = Runs(self._booking, self._freed, self._wake_dispatcher, observer, clock)
        self.limits = ClusterLimits(
            name,
            coordinator,
            self._freed,
            self.runs.stop_on,
            self.runs.children,
            clock,
            settings.permit_seconds,
        )
        for queue in queues:
            self._booking.register_queue(
                queue.name, self.limits.on_node(queue.concurrency, queue.name)
            )
        for handler in handlers.values():
            own = self.limits.on_node(handler.concurrency, place_of(handler))
            self._booking.register_task(
                handler.queue, handler.name, slots.of(handler.executor), own
            )
        self.table = TriggerTable(self._booking)

        self._fair = frozenset(
            queue.name
            for queue in queues
            if queue.order != "fifo" and not queue.is_ordered and not channel.orders
        )
        ordered_around = (
            None
            if ordered is None
            else OrderedContext(
                name,
                *ordered,
                self.table,
                self._wake_dispatcher,
                self.runs.stop_ordered,
                self.runs.ordered_settled,
                observer,
                clock,
            )
        )
        self.ordered = OrderedQueues(
            [queue for queue in queues if queue.is_ordered], ordered_around, settings.drain
        )
        self.ordering = Ordering(
            store,
            self.table,
            self._booking,
            self._found,
            self._gone,
            self.runs.__contains__,
            self._wake_dispatcher,
            clock,
        )
        around = Surroundings(
            backlog_store,
            self.table,
            self._read_on,
            channel.is_behind,
            channel.room_freed,
            self.ordering.admits,
            self._forget,
            self._wake_dispatcher,
            settings.look_ahead,
            clock,
        )
        self.backlogs = Backlogs(
            self._fair, around, {queue.name for queue in queues if queue.cost == "runtime"}
        )
        self.intake = Intake(
            channel,
            self.table,
            self.backlogs,
            self.ordering.admits,
            self._wake_dispatcher,
            observer,
            clock,
            settings.look_ahead,
            max(FEW_AHEAD, 2 * settings.concurrency) if channel.orders else settings.look_ahead,
        )
        self.completion = Completion(
            name, store, channel.announce, self.runs.settled, observer, clock
        )
        self.runs.tell(self.completion, self.ordering, self.ordered, self.backlogs, self.intake)
        self.dispatcher = Dispatcher(
            name,
            store,
            self.table,
            self._booking,
            self.intake,
            self.ordering,
            self.ordered,
            self.runs,
            handlers,
            self._grab_failed,
            observer,
            clock,
        )
        self._invocation = Invocation(name, store, channel.announce, interceptors, clock)
        self._deadlines = Deadlines(self.runs.in_flight, self.runs.overdue, clock)
        self._has_timeouts = any(
            handler.processing.timeout is not None for handler in handlers.values()
        )
        self._pollers = [
            *Pollers(
                store, channel.announce, handlers, observer, on_incident, clock, settings.intervals
            ).all(),
            *extra_pollers,
        ]
        self._due_poller = next(poller for poller in self._pollers if poller.name == "due")
        self.ownership = Ownership(
            name,
            coordinator,
            [poller.name for poller in self._pollers],
            self._assigned,
            self._release,
            channel.announce,
            clock,
            settings.lease_seconds,
            self._is_shared_out,
            self.ordered.may_go,
        )
        self._membership = Membership(
            name,
            store,
            {queue.name: queue.partitions for queue in queues},
            self._seen,
            self.runs.held,
            self.runs.taken_away,
            self.dispatcher.ended_batches,
            clock,
            settings.restart_seconds,
        )

    @property
    def in_flight(self) -> int:
        """Tasks grabbed and not yet completed."""
        return len(self.runs.in_flight)

    async def unfinished(self) -> tuple[int, int]:
        """How many tasks of its queues are left to run or to retry, and how many are in ERROR."""
        left, in_error = await self._store.database.read(self._store.unfinished(self.queues))
        return left + await self.ordered.unfinished(), in_error

    @property
    def queues(self) -> list[str]:
        """The queues it serves."""
        return sorted(self.ownership.partitions)

    # life -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Start, serve until `stop()`, drain, leave. Raises what broke a part: nothing fails
        unseen."""
        await self._membership.beat()
        await self._membership.forget_earlier_starts()
        await self._channel.open(self._heard)
        try:
            await self.ownership.renew()
            self._join()
            self.ready.set()
            await self._serve()
        finally:
            await self._channel.close()
            await self.ordered.close()
        log.info("node stopped", extra={"node": self.settings.name})

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as executors:
            settings = self.settings
            looping = self.runs.open(
                self._invocation,
                settings.threads,
                settings.processes,
                settings.application,
                self.limits.guard,
                executors,
            )
            log.info(
                "node started",
                extra={"node": self.settings.name, "queues": sorted(self.ownership.partitions)},
            )
            async with asyncio.TaskGroup() as parts:
                intake, dispatcher = (
                    parts.create_task(self.intake.run()),
                    parts.create_task(self.dispatcher.run()),
                )
                owning = parts.create_task(self.ownership.run())
                keeping = [
                    parts.create_task(part)
                    for part in (
                        self._membership.run(),
                        self.backlogs.run(),
                        self.ordered.run(),
                        self.ordering.run(),
                        self.completion.run(),
                        looping,
                        *([self._deadlines.run()] if self._has_timeouts else []),
                        self._reconcile(),
                        self.limits.run(),
                        self._measure(),
                        *(poller.run(self.ownership, self._clock) for poller in self._pollers),
                    )
                ]
                await self._stopping.wait()
                intake.cancel()
                self.dispatcher.stop()
                _, cut_off = await asyncio.wait([dispatcher], timeout=_PATIENCE_WITH_STORE)
                if cut_off:
                    dispatcher.cancel()
                    self._ask_reconcile.set()
                self.ordered.leave()
                await asyncio.wait([intake, dispatcher])
                await self._give_up_partitions()
                await self._drain()
                await self._give_up_ordered()
                owning.cancel()
                await asyncio.wait([owning])
                for part in keeping:
                    part.cancel()
                await asyncio.wait(keeping)
            await self.limits.leave()
            await self._leave()

    def stop(self) -> None:
        """Take nothing more, let what runs end, hand back the rest, then leave. Safe to call more
        than once."""
        self._stopping.set()

    async def _give_up_partitions(self) -> None:
        """Others go on at once, while here what runs still ends."""
        try:
            await self._membership.retire()
            await self._channel.part()
            await self.ownership.release_all(but=self.ordered.names)
        except StoreUnavailable as error:
            log.warning(
                "partitions are free when their leases run out", extra={"error": str(error)}
            )

    async def _give_up_ordered(self) -> None:
        """Those of ordered queues go when nothing of them runs here any more: so no ordering key is
        ever run twice at once."""
        try:
            await self.ownership.release_all()
        except StoreUnavailable as error:
            log.warning(
                "partitions are free when their leases run out", extra={"error": str(error)}
            )

    async def _drain(self) -> None:
        await self._hand_back(self.runs.take_back())
        await self.runs.until_ended(self._clock.monotonic() + self.settings.drain)
        if self.runs.in_flight:
            log.warning(
                "stopping tasks that did not end in time",
                extra={"tasks": sorted(self.runs.in_flight)},
            )
            self.runs.stop_all()
            await self.runs.until_ended(
                self._clock.monotonic() + _PATIENCE
            )  # they get their turn to clean up
        try:
            async with asyncio.timeout(_PATIENCE_WITH_STORE):
                await self.completion.settled()
        except TimeoutError:
            log.warning(
                "left with ends unwritten; their tasks run again",
                extra={"tasks": self.completion.unwritten},
            )

    async def _hand_back(self, executions: Sequence[Execution]) -> None:
        if ordered := [
            execution for execution in executions if execution.trigger.queue in self.ordered
        ]:
            self.runs.settled(ordered)
            executions = [
                execution for execution in executions if execution.trigger.queue not in self.ordered
            ]
        if not executions:
            return
        held = [(execution.grabbed.id, execution.grabbed.version) for execution in executions]
        try:
            wake = await self._store.hand_back(self.settings.name, held)
        except StoreUnavailable as error:
            log.warning(
                "could not hand back; others will resume",
                extra={"tasks": len(held), "error": str(error)},
            )
            self._ask_reconcile.set()
            return
        finally:
            self.runs.settled(executions)
        if wake is not None:
            self._channel.announce(wake)

    async def _leave(self) -> None:
        self.unstoppable = await self.runs.close()
        if self.unstoppable:
            log.warning(
                "handlers ignored that they were cancelled", extra={"handlers": self.unstoppable}
            )
        try:
            # A node that may still hold something stays known: it falls silent, and the others
            # resume what it held. One that is to come back does so too: it counts as living
            # meanwhile.
            is_going = not self.settings.restart_seconds
            if is_going and not self.runs.in_flight and not self._ask_reconcile.is_set():
                await self._store.forget_node(self.settings.name)
            self._channel.announce(Wake(control=True))
        except StoreUnavailable as error:
            log.warning("left without a word: the store is away", extra={"error": str(error)})

    # what the parts tell each other ---------------------------------------------------------------

    def _wake_dispatcher(self) -> None:
        self.dispatcher.wake()

    async def _release(self, keys: Collection[PartitionKey]) -> None:
        await self.backlogs.release(keys)
        await self.ordered.release(keys)

    def _assigned(self, owned: frozenset[PartitionKey]) -> None:
        lost = frozenset(
            key for key in self._known_partitions - owned if key.queue not in self.ordered
        )
        if lost and not self._channel.orders:
            dropped = [trigger for trigger in self.table.drop(lost) if trigger.level is None]
            self.intake.taken(dropped)
            self.intake.forget(dropped)
            self.ordering.drop(lost)
        self._known_partitions = owned
        self.ordered.assign(owned)
        self.backlogs.assign(owned)
        self._read_on()

    def _read_on(self) -> None:
        """The channel reads fifo partitions as soon as they are owned, fair ones once their backlog
        was taken over."""
        fifo: dict[PartitionKey, dict[int, int]] = {
            key: {}
            for key in self._known_partitions
            if key.queue not in self._fair and key.queue not in self.ordered
        }
        self._channel.assign(fifo | self.backlogs.positions())

    def _found(self, triggers: Sequence[Trigger]) -> None:
        self.intake.found([trigger for trigger in triggers if trigger.id not in self.runs])

    def _gone(self, triggers: Collection[Trigger]) -> None:
        self.intake.gone(triggers)

    def _forget(self, triggers: Collection[Trigger]) -> None:
        self.intake.forget(triggers)

    def _join(self) -> None:
        partitions = {
            queue: count
            for queue, count in self.ownership.partitions.items()
            if queue not in self.ordered
        }
        self._channel.join(
            partitions, self.settings.name, self.ownership, self.settings.lease_seconds
        )

    def _is_shared_out(self, queue: str) -> bool:
        return self._channel.shares_partitions and queue not in self.ordered

    def _seen(self, view: View) -> None:
        partitions = {queue: settings.partitions for queue, settings in view.queues.items()}
        if partitions != self.ownership.partitions:
            self.ownership.partitions = partitions
            if self.ready.is_set():
                self._join()
        for queue, weights in view.weights.items():
            self.backlogs.set_weights(queue, weights)
        for queue, limits in view.limits.items():
            if limits != self._booking.limits(queue):
                self.table.set_limits(queue, limits)
                log.info("limits changed", extra={"queue": queue, "keys": len(limits)})
                self.dispatcher.wake()
        if view.members != self.ownership.members:
            self.ownership.members = view.members
            self.ownership.look()
        paused = frozenset(queue for queue, settings in view.queues.items() if settings.paused)
        for queue in paused - self._paused:
            self.table.pause(queue)
            log.info("queue paused", extra={"queue": queue})
        for queue in self._paused - paused:
            self.table.resume(queue)
            log.info("queue resumed", extra={"queue": queue})
            self.dispatcher.wake()
        self._paused = paused

    def _heard(self, wake: Wake) -> None:
        if wake.control or wake.is_empty:
            self._membership.look()
            self.ownership.look()
            self.ordering.look()
        if wake.due is not None or wake.is_empty:
            self._due_poller.look()
        if wake.log or wake.is_empty:
            self.ordered.look()

    def _grab_failed(self) -> None:
        self._ask_reconcile.set()  # it may have happened all the same
        self._channel.look_again()

    def _freed(self, limits: Iterable[Hashable]) -> None:
        self.table.freed(limits)
        self.dispatcher.wake()

    # keeping honest -------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        """After a grab whose answer was lost: what the store says this node holds, but no part of
        it knows, goes back."""
        while True:
            await self._ask_reconcile.wait()
            try:
                await self._clock.sleep(1.0)
                # before it is looked: a grab that fails meanwhile asks again
                self._ask_reconcile.clear()
                held = await self._store.held(self.settings.name)
                known = self.runs.in_flight.keys() | self.dispatcher.asked()
                unknown = [(task_id, version) for task_id, version in held if task_id not in known]
                if unknown:
                    log.warning(
                        "handing back tasks grabbed unknowingly", extra={"tasks": len(unknown)}
                    )
                    wake = await self._store.hand_back(self.settings.name, unknown)
                    if wake is not None:
                        self._channel.announce(wake)
                self.ordering.look()
                # the wake of an earlier, unanswered try may never have gone out
                self._channel.look_again()
            except StoreUnavailable:
                self._ask_reconcile.set()

    async def _measure(self) -> None:
        while True:
            self._observer.gauges(len(self.table), len(self.runs.in_flight))
            if gauges := self.ordered.gauges():
                self._observer.ordered(gauges)
            await self._clock.sleep(1.0)
