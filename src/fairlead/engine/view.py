"""The view of the cluster that one heartbeat reads."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.core.sharding.shares import Members
from fairlead.ports.cluster_state import QueueSettings

Weights = Mapping[str, float]
Limits = Mapping[str, int]


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
    names: frozenset[str] = frozenset()
    """Names of the tasks that some living node knows."""
