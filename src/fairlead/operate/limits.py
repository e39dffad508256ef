"""Limits of one queue, and the nodes and tasks that hold their permits."""

from __future__ import annotations

import msgspec

from fairlead.core import values
from fairlead.core.limits.cluster_limits import needs_permits
from fairlead.core.limits.sharded_permits import permit_holders
from fairlead.engine.cluster_limits import follow
from fairlead.errors import InvalidTask
from fairlead.operate.context import OperateContext
from fairlead.operate.facts import Facts, facts_of
from fairlead.operate.holding import DeclaredLimit, HeldSlot, declared_limits

MOST_HOLDERS = 1000
"""Greatest number of holders of a limit that are shown."""


class Holder(msgspec.Struct, frozen=True):
    """Permits of a cluster-wide limit that a node holds."""

    node: str
    pool: str
    """Fairness key or task name that the permits are for; empty if they are for all."""
    permits: int


class LimitView(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of a queue, or of some of its tasks."""

    name: str
    tasks: list[str]
    """Names of the tasks that declare it; none for the limit of the queue."""
    policy: str
    """The limit as it is written in the code."""
    is_cluster_wide: bool
    held: list[HeldSlot]
    """Slots that running tasks hold, the longest first, at most MOST_HOLDERS."""
    more_held: int = 0
    holders: list[Holder] = []
    """Nodes that hold permits, most first, at most MOST_HOLDERS; none if the limit is of each
    node."""
    more_holders: int = 0
    trouble: str | None = None
    """Why the permits cannot be read."""


async def limits_of_queue(
    context: OperateContext, queue: str, *, facts: Facts | None = None
) -> list[LimitView]:
    """Return the limits that this application declares for a queue and its tasks; without `facts`,
    without the tasks that hold their slots. Reads the ledgers of the cluster-wide ones. Raise
    InvalidTask, StoreUnavailable."""
    values.name("queue", queue, InvalidTask)
    limits = declared_limits(context, None if facts is None else facts_of(context, facts))
    return [await _view(context, queue, limit) for limit in limits if queue in limit.queues]


async def _view(context: OperateContext, queue: str, limit: DeclaredLimit) -> LimitView:
    view = LimitView(
        name=limit.name,
        tasks=[] if queue in limit.whole else sorted(limit.tasks),
        policy=repr(limit.policy),
        is_cluster_wide=needs_permits(limit.policy),
        held=limit.held[:MOST_HOLDERS],
        more_held=max(0, len(limit.held) - MOST_HOLDERS),
    )
    if not view.is_cluster_wide:
        return view
    try:
        held = await follow(context.coordinator, limit.name, permit_holders())
    except msgspec.DecodeError as error:
        return msgspec.structs.replace(view, trouble=str(error))
    holders = [Holder(node, pool, permits) for (pool, node), permits in held.items() if permits]
    holders.sort(key=lambda holder: (-holder.permits, holder.node, holder.pool))
    more = max(0, len(holders) - MOST_HOLDERS)
    return msgspec.structs.replace(view, holders=holders[:MOST_HOLDERS], more_holders=more)
