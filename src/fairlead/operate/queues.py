"""All queues with their counted tasks."""

from __future__ import annotations

from fairlead.operate.context import OperateContext
from fairlead.operate.filters import Counted
from fairlead.operate.numbers import Estimate, Waits
from fairlead.operate.summary import QueueNumbers
from fairlead.ports.task_records import QueueStatus


def counted_queues(context: OperateContext) -> list[QueueStatus]:
    """Return all queues with their counted tasks. Those of an application without a SQL database
    have no counts: `fairlead ordered` counts. Raise StoreUnavailable, NotSupported."""
    cluster = context.cluster
    if cluster.with_tables() is None:
        settings = cluster.database.read_now(cluster.queue_settings())
        return [
            QueueStatus(queue, each.partitions, each.paused, 0, 0, 0, 0, None)
            for queue, each in sorted(settings.items())
        ]
    counted: list[QueueStatus] = cluster.database.read_now(context.sql_store.queue_statuses())
    return counted


def bare_queues(context: OperateContext) -> list[QueueNumbers]:
    """Return the queues of an application without a SQL database, without numbers."""
    none = Estimate(0)
    return [
        QueueNumbers(
            queue=each.queue,
            partitions=each.partitions,
            is_paused=each.paused,
            nodes=[],
            ends_per_second=0.0,
            failures_per_second=0.0,
            backlog=none,
            processing=none,
            waiting=none,
            errors=Counted(0),
            oldest_ready_at=None,
            runs=0,
            waits=Waits(0),
        )
        for each in counted_queues(context)
    ]
