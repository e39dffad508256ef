"""All queues with their tasks by state, without counting a big table."""

from __future__ import annotations

from fairlead.operate.context import OperateContext
from fairlead.operate.facts import Facts
from fairlead.operate.filters import Counted
from fairlead.operate.numbers import Estimate, Sums, Waits
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


def queue_statuses(facts: Facts) -> list[QueueStatus]:
    """Return all queues with estimates of their numbers; tasks in ERROR are counted, up to 2,000 of
    all queues together. The oldest ready task of a sample is the first of the sample."""
    found, factor = facts.queues(), facts.backlog.factor
    statuses = []
    for queue in sorted({*facts.settings, *found}):
        sums, known = found.get(queue, Sums()), facts.settings.get(queue)
        statuses.append(
            QueueStatus(
                queue=queue,
                partitions=0 if known is None else known.partitions,
                paused=known is not None and known.paused,
                waiting=round(sums.waiting * factor),
                submitted=round(sums.submitted * factor),
                processing=sums.processing,
                error=sums.errors if facts.is_sample else sums.error,
                oldest_ready_at=sums.oldest_ready_at,
            )
        )
    return statuses
