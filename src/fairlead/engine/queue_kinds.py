"""The kinds of queues that a node serves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.declare.queue import Queue


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


def kinds_of(queues: Iterable[Queue]) -> QueueKinds:
    """Return the kinds of these queues."""
    queues = list(queues)
    names = frozenset(queue.name for queue in queues)
    ordered = frozenset(queue.name for queue in queues if queue.is_ordered)
    return QueueKinds(
        fair=frozenset(queue.name for queue in queues if queue.order == "fair") - ordered,
        timed=frozenset(queue.name for queue in queues if queue.cost == "runtime"),
        ordered=ordered,
        shared=names - ordered,
    )
