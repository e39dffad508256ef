"""What one round of the membership has learnt."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.ports.cluster_state import QueueSettings

Weights = Mapping[str, float]
Limits = Mapping[str, int]


class View(msgspec.Struct, frozen=True):
    """What one round of the membership has learnt."""

    queues: Mapping[str, QueueSettings]
    """Of each queue this node serves."""
    weights: Mapping[str, Weights]
    """By fairness key, of the queues whose weights or limits have changed."""
    limits: Mapping[str, Limits]
    """Of the same queues, by fairness key: how many of its tasks may run at once on each node."""
    members: frozenset[str]
    """Identities of the living nodes that share a queue with this one."""
