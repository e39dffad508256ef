"""The cluster: the queues, nodes and incidents that all processes of an application share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from fairlead.model.fields import Micros
from fairlead.ports.incident_store import IncidentStore
from fairlead.ports.notification import Notification
from fairlead.ports.run_history import RunHistory
from fairlead.ports.statements import Database, Steps

if TYPE_CHECKING:
    from fairlead.ports.sql_store import SqlStore
    from fairlead.ports.task_store import TaskStore


class QueueSettings(NamedTuple):
    """Settings of a queue, made by people and nodes."""

    partitions: int
    """Greatest number of partitions ever registered."""
    paused: bool
    version: int
    """Raised by each change of the queue's settings, weights or limits."""


class SettingsMark(NamedTuple):
    """Mark of the settings, weights and limits of all queues."""

    changes: object
    """Value that differs after every change that `queue_settings` would show."""
    server: str = ""
    """Text that another server, or the server after a restart, does not return; empty if no server
    can lose what it has acknowledged."""


class NodeFacts(msgspec.Struct, frozen=True):
    """Facts that a node records when it registers."""

    slots: int
    """Runs that the node allows at once."""
    version: str
    """Version of Fairlead."""
    python: str
    """Version of Python."""


class NodeRecord(msgspec.Struct, frozen=True):
    """Record of a node that the other nodes read; instants in microseconds since the epoch."""

    node: str
    started_at: Micros
    heartbeat_at: Micros
    queues: list[str]
    names: list[str]
    """Names of the tasks that the node has handlers for."""
    facts: NodeFacts


class ClusterState(NamedTuple):
    """Nodes, and the mark of the settings of queues, as one heartbeat reads them."""

    nodes: list[NodeRecord]
    mark: SettingsMark


class Cluster(Protocol):
    """Store of queues, nodes and incidents. Ordered queues need no more beside their log and their
    schedule. Steps run in whatever transaction the caller chooses. Times are microseconds since the
    epoch."""

    @property
    def database(self) -> Database:
        """Database that runs the steps."""

    @property
    def incidents(self) -> IncidentStore:
        """Incidents of the tasks and nodes of this store."""

    @property
    def runs(self) -> RunHistory | None:
        """History of ordered queues, if it stays in this store; None if it is in the history of
        all tasks."""

    def with_tasks(self) -> TaskStore | None:
        """Return this store with the tasks of all kinds of queues; None if it has ordered queues
        only."""

    def with_tables(self) -> SqlStore | None:
        """Return this store with what people read and change; None if its tasks are not in the
        tables of a SQL database."""

    def prepare(self) -> None:
        """Check that the store can be used; a store in a file of its own makes its tables here.
        Raises SchemaMismatch, StoreUnavailable."""

    def migrate(self) -> list[str]:
        """Bring the tables up to date; return the names of the migrations applied, none where the
        store has no tables. Raises SchemaMismatch, StoreUnavailable."""

    def store_id(self) -> Steps[str | None]:
        """Return the id of this store, which its migration made once; None if the store keeps
        none."""

    def register_part(self, kind: str, part: str) -> Steps[str]:
        """Record the id of a part of the application on another server (`kind`: its prefix of Kafka
        or its folder of ZooKeeper), unless there is one of this kind; return the recorded one. A
        store that records none returns `part`."""

    # queues ---------------------------------------------------------------------------------------

    async def register_queues(self, partitions: dict[str, int]) -> dict[str, QueueSettings]:
        """Register the queues; return the settings of each."""

    def registration(self, partitions: dict[str, int]) -> Steps[dict[str, QueueSettings]]:
        """Register the queues in the caller's transaction, if the store joins transactions; return
        their settings."""

    def resizing(self, queue: str, partitions: int, version: int) -> Steps[bool]:
        """Set the number of partitions of a registered queue, also to a lower one, unless its
        settings have another version; return whether it was set."""

    def pause(self, queue: str, paused: bool) -> Steps[bool]:
        """Pause or resume a queue in the whole cluster; return False if the queue was never
        registered or submitted to."""

    def queue_settings(self) -> Steps[dict[str, QueueSettings]]:
        """Return the settings of every known queue."""

    def settings_mark(self) -> Steps[SettingsMark]:
        """Return a mark that differs after every change that `queue_settings` would show, and that
        costs less to read."""

    # nodes ----------------------------------------------------------------------------------------

    async def register_node(
        self,
        node: str,
        queues: Sequence[str],
        names: Sequence[str],
        now: int,
        facts: NodeFacts,
    ) -> Notification:
        """Record which queues the node serves, which task names it has handlers for, its facts, and
        that it lives. Called again when these change. Return the notification to announce, so that
        other nodes release its share of the partitions."""

    async def heartbeat(self, node: str, now: int) -> ClusterState | None:
        """Record that the node lives, and return what the store has then. Return None if the store
        has no record of the node, because it never registered or another node dropped it as
        dead."""

    async def drop_node(self, node: str) -> Notification:
        """Remove a node that stopped, or whose tasks have all been resumed, so that it claims
        nothing until it registers again; `resume_lost` still finds tasks that it holds. Return the
        notification to announce, so that other nodes take over its partitions."""

    def nodes(self) -> Steps[list[NodeRecord]]:
        """Return all known nodes."""

    async def silent_nodes(self, now: int, silent_for: int) -> list[str]:
        """Return nodes whose last heartbeat is more than `silent_for` microseconds old. The age is
        by the clock that nodes share: the database's if there is one, else `now` of this
        machine."""
