"""Nodes and queues as the store knows them: nodes and people read the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from fairlead.ports.statements import Database, Steps


class QueueSettings(NamedTuple):
    """What people and nodes have set for a queue."""

    partitions: int
    """The greatest number ever registered."""
    paused: bool
    weights_version: int
    """Raised by each change of its weights and limits."""


class NodeRecord(msgspec.Struct, frozen=True):
    """A node as the others see it."""

    node: str
    started_at: int
    seen_at: int
    queues: list[str]


class ClusterState(Protocol):
    """Part of every task store and of its records."""

    @property
    def database(self) -> Database:
        """Where the steps run."""

    def nodes(self) -> Steps[list[NodeRecord]]:
        """All nodes known."""

    async def silent_nodes(self, now: int, silent_for: int) -> list[str]:
        """Nodes whose last heartbeat is more than `silent_for` microseconds old, by the clock they
        share: the database's where there is one, else `now`, this machine's."""

    def queue_settings(self) -> Steps[dict[str, QueueSettings]]:
        """The settings of every queue known."""

    def oldest_ready(self) -> Steps[dict[str, int]]:
        """By queue that has SUBMITTED tasks: since when the first of them is ready (microseconds).
        It counts nothing, so that it is cheap however many there are."""

    def unfinished(self, queues: Sequence[str]) -> Steps[tuple[int, int]]:
        """How many tasks of these queues are left to run or to retry, and how many are in ERROR.
        Tasks scheduled ahead that have never run do not count."""

    def weights(self, queue: str) -> Steps[dict[str, float]]:
        """The weights set at run time, by fairness key."""

    def limits(self, queue: str) -> Steps[dict[str, int]]:
        """The limits set at run time: by fairness key, how many of its tasks may run at once on
        each node."""
