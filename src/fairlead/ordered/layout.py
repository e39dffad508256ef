"""The layout of an ordered queue: the number of partitions over which its ordering keys are spread.

The record of each partition has the number, so that a worker with another number cannot own the
partition: two workers could then run one ordering key at once.
"""

from __future__ import annotations

import msgspec

from fairlead.core.sharding.partitions import partition_of
from fairlead.errors import ConfigurationError
from fairlead.model import PartitionKey, ScheduleRecord
from fairlead.ports.task_log import Entry, Submit

LAYOUT_SECONDS = 5.0
"""Longest time, in seconds, for which a submitter uses the number of partitions that it has read
last, unless the task store is away."""


class OtherLayout(ConfigurationError):
    """The tasks of an ordered queue are in another number of partitions than declared."""


def require_layout(partition: PartitionKey, record: ScheduleRecord, declared: int) -> None:
    """Raise OtherLayout if the record of a partition shows that the queue does not have the
    `declared` number of partitions, or is being moved."""
    queue, stored = partition.queue, record.partitions
    if record.is_moving:
        raise OtherLayout(
            f"queue {queue!r} is being moved to {stored} partitions: start workers when the command"
            f" has finished; if it was cut off, run `{command(queue, stored)}` again"
        )
    if stored not in (0, declared):
        raise other_layout(queue, stored, declared)


def other_layout(queue: str, stored: int, declared: int) -> OtherLayout:
    """Return the error for a declaration with another number of partitions than the stored one."""
    return OtherLayout(
        f"queue {queue!r} has {stored} partitions and is declared with {declared}: declare it with"
        f" partitions={stored}; or stop its workers and move its tasks by"
        f" `{command(queue, declared)}`"
    )


def command(queue: str, partitions: int) -> str:
    """Return the command that moves the tasks of a queue to this number of partitions."""
    return f"fairlead ordered repartition {queue} --app MODULE:APP --to {partitions}"


def moved_entry(entry: Entry, partitions: int) -> Entry:
    """Return the entry for the partition to which its ordering key belongs, by this number of
    partitions; the entry itself if it is for that partition."""
    if isinstance(entry, Submit):
        number = partition_of(entry.task.ordering_key, 0, partitions)
        if number == entry.task.partition:
            return entry
        return Submit(msgspec.structs.replace(entry.task, partition=number))
    number = partition_of(entry.key.ordering_key, 0, partitions)
    return entry if number == entry.partition else msgspec.structs.replace(entry, partition=number)
