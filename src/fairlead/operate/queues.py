"""All queues with their tasks by state, without counting a big table."""

from __future__ import annotations

from collections import Counter

from fairlead.operate.context import OperateContext
from fairlead.operate.facts import Facts
from fairlead.operate.numbers import Held
from fairlead.ports.task_records import QueueStatus


def counted_queues(context: OperateContext) -> list[QueueStatus]:
    """Return all queues with their counted tasks. Those of an application without a SQL database
    have no counts: `fairlead ordered status` counts. Raise StoreUnavailable, NotSupported."""
    cluster = context.cluster
    if cluster.with_tasks() is None:
        settings = cluster.database.read_now(cluster.queue_settings())
        return [
            QueueStatus(queue, each.partitions, each.paused, 0, 0, 0, 0, None)
            for queue, each in sorted(settings.items())
        ]
    counted: list[QueueStatus] = cluster.database.read_now(context.sql_store.queue_statuses())
    return counted


def queue_statuses(facts: Facts) -> list[QueueStatus]:
    """Return all queues with estimates of their numbers; tasks in ERROR are counted, up to 2,000 of
    all queues together. The oldest ready task of a sample is the first of the sample."""
    held = facts.held_of_queues()
    errors = Counter(error.queue for error in facts.errors)
    found = []
    for queue in sorted({*facts.settings, *held, *errors}):
        of_queue, known = held.get(queue, Held()), facts.settings.get(queue)
        found.append(
            QueueStatus(
                queue=queue,
                partitions=0 if known is None else known.partitions,
                paused=known is not None and known.paused,
                waiting=_estimated(facts, of_queue.waiting),
                submitted=_estimated(facts, of_queue.submitted),
                processing=_estimated(facts, of_queue.processing),
                error=errors[queue] if facts.is_sample else of_queue.error,
                oldest_ready_at=of_queue.oldest_ready_at,
            )
        )
    return found


def _estimated(facts: Facts, tasks: int) -> int:
    return round(tasks * facts.backlog.factor)
