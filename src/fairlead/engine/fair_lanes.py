"""The lanes of fair queues: two kinds with one set of events."""

from __future__ import annotations

from typing import TypeAlias

from fairlead.engine.backlogs import Backlogs
from fairlead.engine.context import NodeContext
from fairlead.engine.keyed_lanes import KeyedLanes
from fairlead.engine.ordering import Ordering

FairLanes: TypeAlias = KeyedLanes | Backlogs
"""Lanes that leave triggers beyond memory in their rows, or store them where `backlog=` says."""


def fair_lanes(context: NodeContext, ordering: Ordering) -> FairLanes:
    """Return the lanes of this node's fair queues."""
    store = context.ports.backlog
    return KeyedLanes(context, ordering) if store is None else Backlogs(context, ordering, store)
