"""Nodes as an operator sees them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec

from fairlead.clock import MICROS
from fairlead.engine.liveness import SILENT_SECONDS
from fairlead.errors import NotSupported
from fairlead.model import INCIDENT_ENDS, Incident, IncidentKind
from fairlead.operate.context import OperateContext
from fairlead.operate.filters import scope_of
from fairlead.operate.overview import owners
from fairlead.ports.cluster import NodeRecord

MOST_NODES = 1000
"""Greatest number of nodes that are shown."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node."""

    node: str
    started_at: int
    """Microseconds since the epoch."""
    heartbeat_at: int
    is_alive: bool
    """Whether the last heartbeat is recent."""
    queues: list[str]
    """Queues that it serves."""
    names: list[str]
    """Names of the tasks that it has handlers for."""
    partitions: int
    """Partitions that it owns."""
    slots: int
    """Runs that it allows at once."""
    version: str
    """Version of Fairlead."""
    python: str
    """Version of Python."""
    blocked_loop: Incident | None
    """Open incident of a handler that blocks its event loop."""


async def nodes(
    context: OperateContext, *, tenants: Collection[str] | None = None
) -> list[NodeView]:
    """Return the known nodes, the latest heartbeat first, at most 1,000. Nodes belong to no tenant,
    so that with `tenants` none is returned. Raise InvalidTask, StoreUnavailable."""
    if scope_of(tenants) is not None:
        return []
    store = context.cluster
    database = store.database
    at = _read_clock(context)
    records: list[NodeRecord] = database.read_now(store.nodes())
    blocked: list[Incident] = database.read_now(
        store.incidents.open(
            [IncidentKind.BLOCKED_LOOP], MOST_NODES, at - round(INCIDENT_ENDS * MICROS)
        )
    )
    by_node = {incident.subject: incident for incident in blocked}
    queues = {queue for record in records for queue in record.queues}
    owned = Counter((await owners(context, queues)).values())
    records = sorted(records, key=lambda record: -record.heartbeat_at)[:MOST_NODES]
    return [
        NodeView(
            node=record.node,
            started_at=record.started_at,
            heartbeat_at=record.heartbeat_at,
            is_alive=record.heartbeat_at >= at - round(SILENT_SECONDS * MICROS),
            queues=record.queues,
            names=record.names,
            partitions=owned[record.node],
            slots=record.facts.slots,
            version=record.facts.version,
            python=record.facts.python,
            blocked_loop=by_node.get(record.node),
        )
        for record in records
    ]


def _read_clock(context: OperateContext) -> int:
    """Return the time of the store; that of this process for a store without periodic tasks."""
    now = context.clock.now()
    try:
        clock = context.sql_store.shared_clock
    except NotSupported:
        return now
    at: int = context.store.database.read_now(clock(now))
    return at
