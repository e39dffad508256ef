"""Nodes and queues as the store knows them, for nodes and for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from fairlead.model.fields import Micros
from fairlead.ports.statements import Database, Steps


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
    """Facts that a node records when it registers. A fact that the node has not recorded, because
    its version is older, is None."""

    slots: int | None = None
    """Runs that the node allows at once."""
    version: str | None = None
    """Version of Fairlead."""
    python: str | None = None
    """Version of Python."""


NO_FACTS = NodeFacts()


class NodeRecord(msgspec.Struct, frozen=True):
    """Record of a node that the other nodes read; instants in microseconds since the epoch."""

    node: str
    started_at: Micros
    heartbeat_at: Micros
    queues: list[str]
    names: list[str] = []
    """Names of the tasks that the node has handlers for."""
    facts: NodeFacts = NO_FACTS


class ClusterState(Protocol):
    """Reads of nodes and queues, part of every task store and of its records."""

    @property
    def database(self) -> Database:
        """Database that runs the steps."""

    def nodes(self) -> Steps[list[NodeRecord]]:
        """Return all known nodes."""

    async def silent_nodes(self, now: int, silent_for: int) -> list[str]:
        """Return nodes whose last heartbeat is more than `silent_for` microseconds old. The age is
        by the clock that nodes share: the database's if there is one, else `now` of this
        machine."""

    def queue_settings(self) -> Steps[dict[str, QueueSettings]]:
        """Return the settings of every known queue."""

    def settings_mark(self) -> Steps[SettingsMark]:
        """Return a mark that differs after every change that `queue_settings` would show, and that
        costs less to read."""

    def oldest_ready(self) -> Steps[dict[str, int]]:
        """Return, for each queue with SUBMITTED tasks, since when the first of them is ready
        (microseconds since the epoch). Counts nothing, so that the cost does not grow with the
        number of tasks."""

    def unfinished(self, queues: Sequence[str]) -> Steps[tuple[int, int]]:
        """Return how many tasks of these queues are left to run or to retry, and how many are in
        ERROR. Tasks scheduled ahead that have never run do not count.

        May read every unfinished task. Call it for tests, or after `has_unfinished` found none."""

    def has_unfinished(self, queues: Sequence[str]) -> Steps[bool]:
        """Return whether a task of these queues is left to run or to retry. Reads no task but the
        first, and those that wait until before the first retry, so that `--until-empty` can ask
        several times a second. May miss a task that changes its state meanwhile."""

    def weights(self, queue: str) -> Steps[dict[str, float]]:
        """Return the weights set at run time, by fairness key."""

    def limits(self, queue: str) -> Steps[dict[str, int]]:
        """Return the limits set at run time: by fairness key, how many of its tasks may run at once
        on each node."""
