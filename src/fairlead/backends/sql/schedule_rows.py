"""Stored rows of ordered queues: the only decoder of their tasks and records.

Another program or a broken disk may have written a row. A task that cannot be read does not raise
here: it comes back as an unreadable `ScheduledTask`, which blocks its own ordering key only.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable

import msgspec

from fairlead.clock import to_datetime
from fairlead.model import (
    DEFAULT_PRIORITY,
    DEFAULT_WEIGHT,
    NewTask,
    PartitionKey,
    PayloadFormat,
    ScheduledTask,
    ScheduleRecord,
    TaskKey,
)
from fairlead.model.columns import StoredTask

log = logging.getLogger("fairlead.ordered")

Runs = tuple[int, int, int | None]
"""Counts of a task's runs: (attempt, tries, retry_at)."""

_MOST_RUNS = (1 << 31) - 1
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ERRORS = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)

_record = msgspec.json.Decoder(ScheduleRecord)
_task = msgspec.json.Decoder(NewTask)
_encode = msgspec.json.encode


def decode_task(
    partition: PartitionKey, key: TaskKey, task_id: str, text: str, runs: Callable[[], Runs]
) -> ScheduledTask:
    """Return the task of a row; an unreadable one if the row does not hold a task of this partition
    with this key.

    text: the task as JSON. runs: returns the counts, or raises ValueError or TypeError.
    """
    try:
        scheduled = ScheduledTask(key, _task.decode(text), *runs())
        _check(partition, scheduled)
    except _ERRORS as error:
        return _unreadable(partition, key, task_id, f"{type(error).__name__}: {error}")
    return scheduled


def decode_record(partition: PartitionKey, text: str) -> ScheduleRecord:
    """Return the record of a partition. Instead of one that cannot be read, return a new record,
    with a low-water mark below all tasks: its owner reads the schedule from the beginning."""
    try:
        return _record.decode(text)
    except _ERRORS as error:
        trouble = f"the record cannot be read, so the next owner reads from the beginning: {error}"
        log.error(
            "the record of a partition cannot be read",
            extra={"partition": partition, "error": str(error)},
        )
        return ScheduleRecord(trouble=trouble)


def moved_text(text: str, partition: int) -> str:
    """Return the JSON text of a task in another partition; a text that cannot be read as it is."""
    try:
        task = _task.decode(text)
    except _ERRORS:
        return text
    return _encode(msgspec.structs.replace(task, partition=partition)).decode()


def _check(partition: PartitionKey, scheduled: ScheduledTask) -> None:
    """Raise ValueError for a task that no schedule can hold or run."""
    task = scheduled.task
    if (task.queue, task.partition) != partition:
        raise ValueError(f"the task is of partition {task.partition} of {task.queue!r}")
    if (own := ScheduledTask.of(task).key) != scheduled.key:
        raise ValueError(f"the task has another key: {tuple(own)}")
    msgspec.convert(task, StoredTask, from_attributes=True)
    if not (0 <= scheduled.attempt < _MOST_RUNS and 0 <= scheduled.tries < _MOST_RUNS):
        raise ValueError(f"{scheduled.attempt} runs and {scheduled.tries} tries are out of range")
    if scheduled.retry_at is not None:
        to_datetime(scheduled.retry_at)


def _unreadable(partition: PartitionKey, key: TaskKey, task_id: str, why: str) -> ScheduledTask:
    if not isinstance(task_id, str) or _UUID.fullmatch(task_id) is None:
        task_id = str(uuid.uuid5(uuid.NAMESPACE_OID, repr((*partition, *key))))
    task = NewTask(
        task_id,
        *partition,
        "(unreadable)",
        b"",
        PayloadFormat.JSON,
        DEFAULT_PRIORITY,
        "",
        DEFAULT_WEIGHT,
        key.ordering_key,
        key.unique_key,
        key.run_at,
        key.run_at,
        False,
        None,
    )
    return ScheduledTask(key, task, unreadable=why)
