"""The lanes of fair queues: two kinds with one set of events."""

from __future__ import annotations

from typing import TypeAlias

from fairlead.engine.backlogs import Backlogs
from fairlead.engine.context import NodeContext, NodeEvents
from fairlead.engine.fair_partition import LaneContext
from fairlead.engine.keyed_lanes import KeyedLanes
from fairlead.engine.ordering import Ordering
from fairlead.engine.sharing import Sharing

FairLanes: TypeAlias = KeyedLanes | Backlogs
"""Keyed lanes leave triggers beyond memory in their rows. Level lanes store them where `backlog=`
says."""


def fair_lanes(context: NodeContext, ordering: Ordering, events: NodeEvents) -> FairLanes:
    """Return the lanes of this node's fair queues."""
    store = context.ports.backlog
    if store is None:
        return KeyedLanes(context, ordering)
    lanes = LaneContext(
        store=store,
        table=context.table,
        channel=context.channel,
        ordering=ordering,
        events=events,
        most=context.settings.look_ahead,
        look_ahead=context.look_ahead,
        clock=context.clock,
    )
    return Backlogs(Sharing(context, is_keyed=False), lanes)
