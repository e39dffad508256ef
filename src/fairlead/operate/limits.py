"""Limits that the application declares, and the nodes that hold their permits."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fairlead.core import values
from fairlead.core.limits.cluster_limits import AnyLimit, needs_permits
from fairlead.core.limits.sharded_permits import permit_holders
from fairlead.engine.cluster_limits import follow, limit_name
from fairlead.errors import InvalidTask
from fairlead.operate.context import OperateContext

MOST_HOLDERS = 1000
"""Greatest number of holders of a limit that are shown."""


class Holder(msgspec.Struct, frozen=True):
    """Permits of a cluster-wide limit that a node holds."""

    node: str
    pool: str
    """Fairness key or task name that the permits are for; empty if they are for all."""
    permits: int


class LimitView(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of a queue, or of one of its tasks."""

    name: str
    task: str | None
    """Name of the task; None for the limit of the queue."""
    policy: str
    """The limit as it is written in the code."""
    is_cluster_wide: bool
    holders: list[Holder] = []
    """Nodes that hold permits, most first, at most MOST_HOLDERS; none if the limit is of each
    node, because nodes do not record how many tasks they run."""
    more_holders: int = 0
    trouble: str | None = None
    """Why the permits cannot be read."""


async def limits_of_queue(context: OperateContext, queue: str) -> list[LimitView]:
    """Return the limits that this application declares for a queue and its tasks. Reads the ledgers
    of the cluster-wide ones. Raise InvalidTask, StoreUnavailable."""
    values.name("queue", queue, InvalidTask)
    return [
        await _view(context, name, task, policy) for name, task, policy in _declared(context, queue)
    ]


def _declared(context: OperateContext, queue: str) -> Iterator[tuple[str, str | None, AnyLimit]]:
    declared = context.queues.get(queue)
    if declared is not None and declared.concurrency is not None:
        yield queue, None, declared.concurrency
    for name, handler in sorted(context.handlers.items()):
        if handler.queue == queue and handler.concurrency is not None:
            yield limit_name(handler), name, handler.concurrency


async def _view(
    context: OperateContext, name: str, task: str | None, policy: AnyLimit
) -> LimitView:
    view = LimitView(name=name, task=task, policy=repr(policy), is_cluster_wide=False)
    if not needs_permits(policy):
        return view
    view = msgspec.structs.replace(view, is_cluster_wide=True)
    name = policy.name or name
    try:
        held = await follow(context.coordinator, name, permit_holders())
    except msgspec.DecodeError as error:
        return msgspec.structs.replace(view, name=name, trouble=str(error))
    holders = [Holder(node, pool, permits) for (pool, node), permits in held.items() if permits]
    holders.sort(key=lambda holder: (-holder.permits, holder.node, holder.pool))
    more = max(0, len(holders) - MOST_HOLDERS)
    return msgspec.structs.replace(
        view, name=name, holders=holders[:MOST_HOLDERS], more_holders=more
    )
