"""What every part of a node works with, and how a part tells the others what happened."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fairlead.clock import Clock
from fairlead.core.limits.limits import ConcurrencyPolicy
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.core.triggers.table import TriggerTable
from fairlead.declare.handler import Handler, RunInterceptor
from fairlead.declare.queue import Queue
from fairlead.engine.execution import Execution
from fairlead.engine.poller import Poller
from fairlead.engine.queue_kinds import QueueKinds
from fairlead.engine.settings import NodeSettings
from fairlead.engine.view import View
from fairlead.model import PartitionKey, TaskRecord, Trigger
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.observer import Observer
from fairlead.ports.schedule_store import ScheduleStore
from fairlead.ports.task_log import TaskLog
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import TriggerChannel


@dataclass(frozen=True, kw_only=True)
class NodePorts:
    """Adapters that a node is connected to."""

    store: TaskStore
    backlog: BacklogStore
    channel: TriggerChannel
    coordinator: Coordinator
    log: TaskLog | None = None
    """Log of the ordered queues, this node's own; None: it serves none."""
    schedule: ScheduleStore | None = None
    """Schedule of the ordered queues; None: it serves none."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """Queues and handlers that a node serves."""

    queues: Sequence[Queue]
    handlers: Mapping[str, Handler]
    """Handlers by task name."""
    interceptors: Sequence[RunInterceptor] = ()
    pollers: Sequence[Poller] = ()
    """Pollers beside the engine's own."""
    on_incident: Callable[[TaskRecord], None] | None = None
    """Called for each task that newly needs a person."""


class NodeEvents(Protocol):
    """What parts of a node tell each other. Called in the event loop; no call waits but
    `on_releasing`."""

    def on_ready(self) -> None:
        """Something may start: a trigger came, or a slot was freed."""

    def on_freed(self, limits: Iterable[Hashable]) -> None:
        """These limits have room again."""

    def on_claim_unknown(self) -> None:
        """The answer of a claim was lost: the store may say that this node holds its tasks."""

    def on_found(self, triggers: Sequence[Trigger]) -> None:
        """The store has these triggers of an ordering key whose turn is near."""

    def on_gone(self, triggers: Collection[Trigger]) -> None:
        """The tasks of these triggers have moved on; the triggers have left the table."""

    def on_dropped(self, triggers: Collection[Trigger]) -> None:
        """A backlog keeps these triggers elsewhere, or no longer."""

    def on_positions_changed(self) -> None:
        """The positions of a fair partition have become known, or are no longer."""

    def on_settled(self, executions: Sequence[Execution]) -> None:
        """The ends of these runs are written, or nobody needs them any more."""

    def on_overdue(self, execution: Execution) -> None:
        """A run has run into its timeout."""

    def on_permits_lost(self, policy: ConcurrencyPolicy) -> None:
        """The permits of this limit are gone: what runs on them has to end."""

    def on_taken_away(self, task_ids: Collection[str]) -> None:
        """The store has given these tasks to others, or ended them."""

    def on_owned(self, owned: frozenset[PartitionKey]) -> None:
        """This node owns exactly these partitions from now on."""

    async def on_releasing(self, keys: Collection[PartitionKey]) -> None:
        """These partitions are about to be given up: stop them, and keep what the next owner
        needs."""

    def on_view(self, view: View) -> None:
        """The membership has learnt this from the store."""


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """What every part of a node works with."""

    settings: NodeSettings
    served: Served
    ports: NodePorts
    kinds: QueueKinds
    clock: Clock
    observer: Observer
    ledger: SlotLedger
    table: TriggerTable
    in_flight: dict[str, Execution]
    """Claimed and not yet completed, by task id."""
    events: NodeEvents

    @property
    def name(self) -> str:
        """This node's name."""
        return self.settings.name

    @property
    def store(self) -> TaskStore:
        """The task store."""
        return self.ports.store

    @property
    def channel(self) -> TriggerChannel:
        """The trigger channel."""
        return self.ports.channel
