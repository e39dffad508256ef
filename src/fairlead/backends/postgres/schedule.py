"""The schedule store on PostgreSQL: no frequent statement passes rows that were deleted or replaced
before."""

from __future__ import annotations

import time

from fairlead.backends.sql.rows import batch
from fairlead.backends.sql.schedule import CLEANED_AT_ONCE, SqlScheduleStore, encode_record
from fairlead.backends.sql.schedule_rows import decode_record
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.model import BEFORE_ALL, PartitionKey, ScheduleRecord, TaskKey
from fairlead.ports.schedule_store import Owned
from fairlead.ports.statements import Steps

_ALL_KEYS_SECONDS = 3600.0
"""Seconds after which the cleaning begins with the first completed key again: for keys that were
completed long after their times."""


class PostgresScheduleStore(SqlScheduleStore):
    """A schedule store whose statements do not grow with the number of rows that were deleted or
    replaced beside a transaction that stays open."""

    def __init__(self, store: SqlTaskStore) -> None:
        super().__init__(store)
        self._clean_from: dict[PartitionKey, TaskKey] = {}
        """Key up to which completed keys were cleaned, by partition."""
        self._numbers: dict[PartitionKey, int] = {}
        """Number of the record that was read or written last, by partition."""
        self._all_keys_at = time.monotonic() + _ALL_KEYS_SECONDS
        """Monotonic seconds from which the cleaning begins with the first key again."""

    def _take_over(self, partition: PartitionKey) -> Steps[Owned]:
        # The record is read by the second statement, which sees what the previous owner wrote while
        # the first one waited for it.
        range_id, server = (yield self._statement("take_over", *partition))[0]
        rows = yield self._statement("record", *partition)
        if not rows:
            empty = encode_record(ScheduleRecord())
            rows = yield self._statement("first_record", *partition, empty)
        number, record = rows[0]
        self._fences.taken(partition, range_id, server)
        self._numbers[partition] = number
        return Owned(range_id, decode_record(partition, record))

    def _save(self, partition: PartitionKey, record: ScheduleRecord) -> Steps[None]:
        text, known = encode_record(record), self._numbers.get(partition, 0)
        rows = yield self._statement("keep", *partition, text, known)
        if not rows:  # the transaction that gave the number did not commit
            rows = yield self._statement("keep", *partition, text, 0)
        self._numbers[partition] = rows[0][0]

    def _clean(self, partition: PartitionKey, range_id: int, before: int) -> Steps[int]:
        yield from self._fenced(partition, range_id)
        if time.monotonic() >= self._all_keys_at:
            self._clean_from.clear()
            self._all_keys_at = time.monotonic() + _ALL_KEYS_SECONDS
        after = self._clean_from.get(partition, BEFORE_ALL)
        # A key due at or after `before` stays: a person may have ended its task before it was due.
        through = TaskKey(before, "", "")
        keys = yield self._statement("clean", *partition, *after, *through, before, CLEANED_AT_ONCE)
        if keys:
            self._clean_from[partition] = max(TaskKey(*key) for key in keys)
        return len(keys)

    def _has_due(self, queue: str, now: int) -> Steps[bool]:
        """Return whether a task is due. A search begins at the low-water mark of its partition."""
        known = [(key.partition, n) for key, n in self._numbers.items() if key.queue == queue]
        marks = []
        for partition, number, record in (yield self._statement("records", queue, batch(known))):
            key = PartitionKey(queue, partition)
            self._numbers[key] = number
            marks.append((partition, *decode_record(key, record).low_water_mark))
        return bool((yield self._statement("has_due", queue, now, batch(marks)))[0][0])
