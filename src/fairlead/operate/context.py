"""The context of operators' commands: where tasks are stored, and what the application declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.backends.sql.task_reads import TaskReads
from fairlead.clock import Clock
from fairlead.connector import Connector
from fairlead.declare.handler import Handler
from fairlead.declare.periodic import Periodic
from fairlead.declare.queue import OrderedQueue, Queue
from fairlead.errors import UnknownQueue
from fairlead.ports.backlog_store import BacklogStore
from fairlead.ports.cluster import Cluster
from fairlead.ports.coordinator import Coordinator
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.task_store import TaskStore
from fairlead.ports.trigger_channel import TriggerChannel
from fairlead.submit.submission import Submitter


@dataclass(frozen=True, kw_only=True)
class OperateContext:
    """Context of the commands of one application. Each port opens at its first use; queues and
    tasks may be declared later."""

    connector: Connector
    queues: Mapping[str, Queue]
    """Declared queues by name."""
    ordered_queues: Mapping[str, OrderedQueue]
    """The ordered queues among them."""
    handlers: Mapping[str, Handler]
    """Declared tasks, by name."""
    periodics: Sequence[Periodic]
    """Declared periodic tasks."""
    submitter: Submitter
    clock: Clock

    @property
    def cluster(self) -> Cluster:
        """Return the store of queues, nodes and incidents, with its schema checked. Raise
        SchemaMismatch, StoreUnavailable, and NotSupported for a store with tasks only."""
        _ = self.connector.cluster
        return self.connector.connections.shared_cluster

    @property
    def store(self) -> TaskStore:
        """Return the task store, with its schema checked. Raise SchemaMismatch, StoreUnavailable,
        and NotSupported in an application with ordered queues only."""
        return self.connector.store

    @property
    def sql_store(self) -> SqlStore:
        """Return the task store with the queries of SQL tables. Raise NotSupported where tasks are
        not in a SQL database."""
        return self.connector.sql_store

    @property
    def reads(self) -> TaskReads:
        """Return the bounded reads of tasks and of their history. Raise NotSupported where tasks
        are not in a SQL database."""
        return TaskReads(self.sql_store.database)

    @property
    def channel(self) -> TriggerChannel:
        """Return the trigger channel."""
        return self.connector.channel

    @property
    def coordinator(self) -> Coordinator:
        """Return the coordinator, which keeps leases and permits."""
        return self.connector.connections.coordinator

    @property
    def backlog(self) -> BacklogStore | None:
        """Return the store of levels; None without `backlog=`."""
        return self.connector.connections.backlog


def unknown_queue(queue: str, otherwise: str = "") -> UnknownQueue:
    """Return the error for a queue that no node has served."""
    return UnknownQueue(
        f"no queue named {queue!r} is known to any node{otherwise}; start a worker that declares it"
    )
