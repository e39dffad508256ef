"""The parts of a node, and the one module that connects them to each other.

ownership, membership -> channel -> intake -> lanes -> trigger table -> dispatcher ->
claimers -> executors -> completion
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from fairlead.clock import Clock
from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.limits import ConcurrencyPolicy, Limit
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.core.sharding.shares import Members
from fairlead.declare.handler import ExecutorKind
from fairlead.declare.queue import MOST_PARTITIONS
from fairlead.engine.backlogs import Backlogs
from fairlead.engine.claimers import Claimers, OrderedClaimer, TaskClaimer
from fairlead.engine.cluster_limits import ClusterLimits, limit_name
from fairlead.engine.completion import Completion
from fairlead.engine.context import NodeContext, NodePorts, Served, View
from fairlead.engine.controls import Controls
from fairlead.engine.deadlines import Deadlines
from fairlead.engine.dispatcher import Dispatcher
from fairlead.engine.granting import Granting
from fairlead.engine.helping import Helping
from fairlead.engine.incidents import IncidentDelivery, IncidentReports
from fairlead.engine.intake import Intake
from fairlead.engine.lanes import Lanes
from fairlead.engine.leases import Elections
from fairlead.engine.lifecycle import Part
from fairlead.engine.liveness import Expiry
from fairlead.engine.liveness.blocked_loop import BlockedLoop
from fairlead.engine.liveness.deaths import Deaths
from fairlead.engine.look_ahead import LookAhead, Rebalances
from fairlead.engine.membership import Membership, identity_of
from fairlead.engine.ordering import Ordering
from fairlead.engine.ownership import Ownership
from fairlead.engine.partitions import Partitions
from fairlead.engine.poller import Poller
from fairlead.engine.pollers import ElectedPollers, Gauges, Pollers
from fairlead.engine.reconciler import Reconciler
from fairlead.engine.run import Run
from fairlead.engine.run_notes import RunNotesWriter
from fairlead.engine.runs import Runs
from fairlead.engine.settings import NodeSettings
from fairlead.engine.sharing import Sharing
from fairlead.model import IncidentReport, PartitionKey, Trigger
from fairlead.model.peer import Grant, PeerMessage, Spare
from fairlead.ordered.clock_guard import ClockGuard
from fairlead.ordered.context import OrderedContext
from fairlead.ordered.queues import OrderedQueues
from fairlead.ports.notification import Notification
from fairlead.ports.observer import Observer


class NodeParts:
    """Make the parts, and pass events between them (`fairlead.engine.context.NodeEvents`)."""

    def __init__(
        self,
        settings: NodeSettings,
        served: Served,
        ports: NodePorts,
        clock: Clock,
        observer: Observer,
    ) -> None:
        ledger = SlotLedger(settings.concurrency)
        notes = None if ports.tables is None else RunNotesWriter(settings.name, ports.tables, clock)
        context = self.context = NodeContext(
            settings=settings,
            served=served,
            ports=ports,
            kinds=served.kinds,
            clock=clock,
            observer=observer,
            ledger=ledger,
            table=TriggerTable(ledger),
            look_ahead=LookAhead(settings.look_ahead_bytes, clock),
            in_flight={},
            events=self,
            leases=Expiry(clock),
            heartbeats=Expiry(clock),
            notes=notes,
        )
        self.limits = _register_limits(context, self)
        self.ordered = _ordered_queues(context, self)
        ordering = self.ordering = Ordering(context)
        sharing, store = Sharing(context), ports.backlog
        backlogs = None if store is None else Backlogs(context, ordering, store, sharing)
        stored = context.kinds.fair if backlogs is not None else frozenset[str]()
        lanes = Lanes(context, ordering, sharing, context.kinds.shared - stored)
        self.helping = Helping(context)
        intake = self.intake = Intake(context, lanes, backlogs, self.helping, ordering)
        completion = Completion(context)
        self.granting = Granting(context, intake, ordering)
        tasks = TaskClaimer(context, intake, completion)
        claimers = Claimers(tasks, OrderedClaimer(context, self.ordered), context.kinds.ordered)
        self.runs = Runs(context, claimers, lanes, self.limits)
        self.dispatcher = Dispatcher(
            context, claimers, intake, self.runs, self.granting, self.helping
        )
        self.reconciler = Reconciler(context, tasks, ordering)
        self.membership = Membership(context, tasks, self.runs)
        self._rounds = Pollers(context, self.membership.silent_nodes)
        own = self._rounds.all()
        self.deaths = Deaths(context, self._on_dead)
        delivery = IncidentDelivery(context)
        own.append(Poller("incidents", settings.intervals.incidents, delivery.round))
        self.incident_reports = IncidentReports(context, lambda: self.pollers.poke("incidents"))
        pollers = {poller.name: poller for poller in [*served.pollers, *own]}
        elections = Elections(pollers, context.leases)
        self.ownership = Ownership(context, elections, self.ordered.releasable)
        self.pollers = ElectedPollers(pollers, elections)
        self.partitions = Partitions(
            context,
            self.ownership,
            self.membership,
            self.ordered,
            intake,
            ordering,
            self.granting,
        )
        self.controls = Controls(context, intake)
        self.in_order: list[Part] = [
            self.limits,
            Gauges(context, self.ordered),
            self.reconciler,
            self.membership,
            BlockedLoop(
                context,
                [
                    self.membership.keep_alive,
                    self.ownership.keep_alive,
                    self.limits.keep_alive,
                ],
            ),
            self.deaths,
            self.incident_reports,
            self.pollers,
            delivery,
            *served.periodic,
            *([] if notes is None else [notes]),
            Deadlines(context, self.runs),
            completion,
            self.ordered,
            self.ownership,
            ordering,
            lanes,
            *([] if backlogs is None else [backlogs]),
            self.runs,
            self.partitions,
            self.dispatcher,
            Rebalances(context.look_ahead, intake.held, intake.resize, clock),
            *([] if ports.tasks is None else [intake]),
            self.granting,
            self.helping,
        ]
        """Parts in the order of their start; they stop in reverse."""

    def begin_without_store(self) -> None:
        """Serve the ordered queues as if this node were the only one that shares them, until the
        membership has begun. Leases still give each partition one owner."""
        ordered = {each.name: each.partitions for each in self.context.served.ordered}
        alone = frozenset([identity_of(self.context.name)])
        self.membership.begin_later()
        self.partitions.resize(ordered)
        self.ownership.set_members(Members(dict.fromkeys(ordered, alone)))

    # events from part to part ---------------------------------------------------------------

    def on_notification(self, notification: Notification) -> None:
        """Poke the parts that a notification concerns."""
        known = self.ownership.partitions
        for lane in notification.ready:
            if lane.partition >= known.get(lane.queue, MOST_PARTITIONS):
                self.membership.learn_partitions(lane.queue, lane.partition + 1)
        if notification.control or notification.is_empty:
            self.membership.poke()
            self.ownership.poke()
        if notification.is_empty:
            self.ordering.poke()
        self.ordering.on_finished(notification.finished)
        if notification.due is not None or notification.is_empty:
            self.pollers.poke("due")
        if notification.log or notification.is_empty:
            self.ordered.poke()
        if notification.peer is not None:
            self._on_peer(notification.peer)

    def _on_peer(self, message: PeerMessage) -> None:
        """Pass a message of another node to the part it is for."""
        name = self.context.name
        if isinstance(message, Spare):
            if message.owner != name:
                self.helping.on_spare(message)
        elif isinstance(message, Grant):
            if message.node == name:
                self.helping.on_grant(message)
        elif message.owner == name:
            self.granting.on_want(message)

    def on_ready(self) -> None:
        self.dispatcher.wake()

    def on_freed(self, limits: Iterable[Hashable]) -> None:
        self.context.table.freed(limits)
        self.dispatcher.wake()

    def on_claim_unknown(self) -> None:
        self.membership.poke()
        self.reconciler.request()  # The store may have made the claim.
        self.context.channel.redeliver()

    def on_runnable(self, triggers: Sequence[Trigger]) -> None:
        in_flight = self.context.in_flight
        self.intake.admit([trigger for trigger in triggers if trigger.id not in in_flight])

    def on_outdated(self, triggers: Collection[Trigger]) -> None:
        self.intake.outdated([*triggers])

    def on_kept_out(self, triggers: Collection[Trigger]) -> None:
        self.intake.keep_out(triggers)

    def on_dropped(self, triggers: Collection[Trigger]) -> None:
        self.intake.drop(triggers)

    def on_positions_changed(self, key: PartitionKey) -> None:
        self.partitions.on_positions_changed(key)

    def on_settled(self, runs: Sequence[Run]) -> None:
        self.runs.settled(runs)

    def on_end_refused(self, run: Run) -> None:
        self.runs.end_refused(run)

    def on_not_held(self, trigger: Trigger) -> None:
        if trigger.queue in self.context.kinds.ordered:
            self.ownership.drop_expired()
            self.ownership.poke()
        else:
            self.on_claim_unknown()

    def on_permits_lost(self, policy: ConcurrencyPolicy) -> None:
        self.runs.stop_on(policy)

    def on_incidents(self, reports: Sequence[IncidentReport]) -> None:
        self.incident_reports.add(reports)

    def on_owned(self, owned: frozenset[PartitionKey]) -> None:
        self.partitions.assign(owned)

    async def on_releasing(self, keys: Collection[PartitionKey]) -> None:
        await self.partitions.release(keys)

    def on_view(self, view: View) -> None:
        self.partitions.resize({queue: found.partitions for queue, found in view.queues.items()})
        self.controls.apply(view)
        if self.ownership.set_members(view.members):
            self.ownership.poke()
            self.granting.on_nodes_changed(frozenset().union(*view.members.by_queue.values()))
        self.deaths.on_nodes(view.present)

    async def _on_dead(self, nodes: Sequence[str]) -> None:
        self.limits.on_dead(nodes)
        await self.ownership.release_of(nodes)
        await self._rounds.resume(nodes)
        self.membership.poke()


def _register_limits(context: NodeContext, parts: NodeParts) -> ClusterLimits:
    """Enter the limits of queues, tasks and executors into the slot ledger; return the cluster-wide
    limits."""
    settings, ledger = context.settings, context.ledger
    kinds = {handler.executor_kind for handler in context.served.handlers.values()}
    has_children = ExecutorKind.PROCESS in kinds
    limits = ClusterLimits(context, (lambda: parts.runs.children()) if has_children else None)
    for queue in context.served.queues:
        ledger.register_queue(queue.name, limits.on_node(queue.concurrency, queue.name))
    if context.kinds.shared:
        ledger.register_names(context.served.handlers)
    # With slots of their own, so that a task that waits for a thread holds up no other task.
    slots: Mapping[ExecutorKind, ConcurrencyPolicy] = {
        ExecutorKind.THREAD: Limit(settings.threads),
        ExecutorKind.PROCESS: Limit(settings.processes),
    }
    for handler in context.served.handlers.values():
        own = limits.on_node(handler.concurrency, limit_name(handler))
        ledger.register_task(handler.queue, handler.name, slots.get(handler.executor_kind), own)
    return limits


def _ordered_queues(context: NodeContext, parts: NodeParts) -> OrderedQueues:
    queues = context.served.ordered
    log_, schedule = context.ports.log, context.ports.schedule
    if log_ is None or schedule is None:
        return OrderedQueues(queues, None, context.settings.drain)
    ordered_context = OrderedContext(
        node=context.name,
        log=log_,
        store=schedule,
        table=context.table,
        dispatch=parts.on_ready,
        stop_run=lambda task_id, keeps_end: parts.runs.stop_ordered(task_id, keeps_end),
        settled=lambda task_ids: parts.runs.ordered_settled(task_ids),
        end_refused=lambda task_id: parts.runs.ordered_end_refused(task_id),
        on_incidents=parts.on_incidents,
        is_paused=lambda queue: parts.controls.is_paused(queue),
        on_last_pause=lambda queue: parts.controls.keep_pause(queue),
        observer=context.observer,
        most_bytes=context.settings.look_ahead_bytes,
        clock=ClockGuard(context.clock, context.name, parts.on_incidents, schedule.now),
    )
    return OrderedQueues(queues, ordered_context, context.settings.drain)
