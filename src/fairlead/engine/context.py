"""The context of every part of a node, and the events between parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from fairlead.clock import Clock
from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.limits import ConcurrencyPolicy
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.core.sharding.shares import Members
from fairlead.declare.handler import Handler, RunInterceptor
from fairlead.declare.notes import Reporter
from fairlead.declare.on_incident import INCIDENT_TIMEOUT, OnIncident
from fairlead.declare.queue import OrderedQueue, Queue
from fairlead.engine.lifecycle import Lifespan, Part
from fairlead.engine.liveness import Expiry
from fairlead.engine.look_ahead import LookAhead
from fairlead.engine.poller import Poller
from fairlead.engine.run import Run
from fairlead.engine.settings import NodeSettings
from fairlead.model import IncidentReport, PartitionKey, Trigger
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.cluster import Cluster, QueueSettings
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.observer import Observer
from fairlead.ports.presence import Presence
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.task_log import TaskLog
from fairlead.ports.task_store import Claims, LaneReads, TaskStore
from fairlead.ports.trigger_channel import TriggerChannel

MOST_WAITING = 5000
"""Ended runs in memory, of all queues, beyond which a node claims no task until the store has
caught up."""


Weights = Mapping[str, float]
Limits = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class QueueKinds:
    """Names of the queues of each kind; all others are fifo."""

    fair: frozenset[str]
    """Queues whose triggers pass through a fair backlog."""
    timed: frozenset[str]
    """Queues whose fairness keys share run time."""
    ordered: frozenset[str]
    """Queues kept in a log and a schedule instead of the task store."""
    shared: frozenset[str]
    """Queues whose owners grant triggers to other nodes."""


class View(msgspec.Struct, frozen=True):
    """Changed settings of queues, and living nodes, read with one heartbeat."""

    queues: Mapping[str, QueueSettings]
    """Settings of each served queue that changed since the last view."""
    weights: Mapping[str, Weights]
    """Weights by fairness key, of those among these queues whose version changed."""
    limits: Mapping[str, Limits]
    """Limits by fairness key, of the same queues: how many tasks of a key each node may run at
    once."""
    members: Members
    """Living nodes that share a queue with this one."""
    present: frozenset[str] = frozenset()
    """Names of the nodes that are not about to restart, of all queues, silent or not."""


@dataclass(frozen=True, kw_only=True)
class NodePorts:
    """Adapters that a node is connected to."""

    cluster: Cluster
    """Store of queues, nodes and incidents."""
    backlog: BacklogStore | None
    """Store of the levels of fair queues; None if their triggers stay in their rows."""
    channel: TriggerChannel
    coordinator: Coordinator
    presence: Presence | None = None
    """Locks that show which nodes died; None if the store has none."""
    log: TaskLog | None = None
    """This node's reader of the ordered queues' log; None without ordered queues."""
    schedule: ScheduleStore | None = None
    """Schedule of the ordered queues; None without ordered queues."""

    @property
    def tasks(self) -> TaskStore | None:
        """The task store; None in an application with ordered queues only."""
        return self.cluster.with_tasks()

    @property
    def tables(self) -> SqlStore | None:
        """The store in SQL tables; None if tasks are elsewhere."""
        return self.cluster.with_tables()

    @property
    def is_alone(self) -> bool:
        """Whether the store has tasks only, and so no other node has any of them."""
        return self.tasks is not None and self.tables is None


@dataclass(frozen=True, kw_only=True)
class Served:
    """Queues and handlers that a node serves."""

    queues: Sequence[Queue]
    ordered: Sequence[OrderedQueue]
    """The ordered queues among them."""
    handlers: Mapping[str, Handler]
    """Handlers by task name."""
    interceptors: Sequence[RunInterceptor] = ()
    pollers: Sequence[Poller] = ()
    """Pollers in addition to the engine's own."""
    periodic: Sequence[Part] = ()
    """Parts that submit the slots of the application's periodic tasks."""
    check_store: Callable[[], None] | None = None
    """Checks of the task store that the start has left out, because it was away: called in a thread
    when it responds. Raises FairleadError."""
    serves_without_store: bool = False
    """Whether ordered queues run while the task store is away."""
    on_incident: OnIncident | None = None
    """Called with each incident, in a thread."""
    incident_timeout: float = INCIDENT_TIMEOUT
    """Seconds that one call of `on_incident` may take."""
    lifespan: Lifespan | None = None
    """Context manager of the user around the whole life of the node."""

    @property
    def kinds(self) -> QueueKinds:
        """The kinds of these queues."""
        ordered = frozenset(queue.name for queue in self.ordered)
        return QueueKinds(
            fair=frozenset(queue.name for queue in self.queues if queue.order == "fair") - ordered,
            timed=frozenset(queue.name for queue in self.queues if queue.cost == "runtime"),
            ordered=ordered,
            shared=frozenset(queue.name for queue in self.queues) - ordered,
        )


class NodeEvents(Protocol):
    """Events between the parts of a node, called in the event loop. Only `on_releasing` waits."""

    def on_ready(self) -> None:
        """A trigger came or a slot was released: a task may start."""

    def on_freed(self, limits: Iterable[Hashable]) -> None:
        """Limits have room again."""

    def on_claim_unknown(self) -> None:
        """The result of a claim was lost, or another server of the store responds, which may have
        lost completions: this node may hold tasks that it does not know of."""

    def on_runnable(self, triggers: Sequence[Trigger]) -> None:
        """The store returned triggers of an ordering key that may run next."""

    def on_outdated(self, triggers: Collection[Trigger]) -> None:
        """Triggers left the table because the versions of their tasks changed."""

    def on_kept_out(self, triggers: Collection[Trigger]) -> None:
        """Triggers in the table must wait for the first task of their ordering key: drop them."""

    def on_dropped(self, triggers: Collection[Trigger]) -> None:
        """A fair lane left triggers in their rows, stored them, or dropped them."""

    def on_positions_changed(self, key: PartitionKey) -> None:
        """The channel positions of this fair partition became known or unknown."""

    def on_settled(self, runs: Sequence[Run]) -> None:
        """The store has recorded or refused the ends of these runs."""

    def on_end_refused(self, run: Run) -> None:
        """The store refuses the end of this run, which is tried again."""

    def on_not_held(self, trigger: Trigger) -> None:
        """A task was claimed, and did not start: other nodes may have it by now."""

    def on_permits_lost(self, policy: ConcurrencyPolicy) -> None:
        """The permits of a limit expired: runs that use them must stop."""

    def on_owned(self, owned: frozenset[PartitionKey]) -> None:
        """The node owns exactly these partitions from now on."""

    def on_incidents(self, reports: Sequence[IncidentReport]) -> None:
        """A part found conditions that need a person: record each one as an incident."""

    async def on_releasing(self, keys: Collection[PartitionKey]) -> None:
        """Partitions are about to be released: stop them, and save the state for the next owner."""

    def on_view(self, view: View) -> None:
        """The membership read a new view from the store."""


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """Settings, ports and shared state of a node, given to each part."""

    settings: NodeSettings
    served: Served
    ports: NodePorts
    kinds: QueueKinds
    clock: Clock
    observer: Observer
    ledger: SlotLedger
    table: TriggerTable
    look_ahead: LookAhead
    in_flight: dict[str, Run]
    """Runs claimed and not yet completed, by task id."""
    events: NodeEvents
    leases: Expiry
    """Expiry of the leases, and so of the tasks of ordered queues."""
    heartbeats: Expiry
    """Expiry of the heartbeat, and so of the claims in the task store."""
    notes: Reporter | None = None
    """Takes the notes of runs to the store; None if the store keeps none."""

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.settings.name

    @property
    def is_behind(self) -> bool:
        """Whether so many completions wait for the store that this node claims no task."""
        return len(self.in_flight) - self.ledger.acquired >= MOST_WAITING

    @property
    def cluster(self) -> Cluster:
        """The store of queues, nodes and incidents."""
        return self.ports.cluster

    @property
    def lane_reads(self) -> LaneReads:
        """Reads of lanes, for parts that have tasks of other queues than ordered ones."""
        tasks = self.ports.tasks
        assert tasks is not None
        return tasks

    @property
    def claims(self) -> Claims:
        """Claims of tasks, for the same parts."""
        tasks = self.ports.tasks
        assert tasks is not None
        return tasks

    @property
    def channel(self) -> TriggerChannel:
        """The trigger channel."""
        return self.ports.channel
