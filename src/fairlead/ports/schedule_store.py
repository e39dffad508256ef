"""The schedule store: tasks of ordered queues by the hour they are due in, and completed keys.

Every write is fenced: of two owners, only the later one can write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from fairlead.clock import MICROS
from fairlead.model import NewTask, PartitionKey, RunEnd, ScheduledTask, ScheduleRecord, TaskKey
from fairlead.ports.backlog_store import Fenced

__all__ = ["Fenced", "HOUR", "Owned", "Moved", "Page", "ScheduleStatus", "ScheduleStore", "hour_of"]

HOUR = 3600 * MICROS
"""Length of one bucket in microseconds."""

ANY_BYTES = 1 << 62
"""Limit of a read that returns its tasks whatever their size."""

KEEP_COMPLETIONS = 14 * 86_400
"""Seconds for which the store keeps a completed key, so that a second entry with this key does not
run. Later, a submit of this key is refused, because its `run_at` is too old (the queue's grace);
only an entry that waited in the log for longer than this could run twice."""


def hour_of(key: TaskKey) -> int:
    """Return the bucket of a task and of its completion: whole hours since 1970."""
    return key.run_at // HOUR


class Owned(msgspec.Struct, frozen=True):
    """State of a partition at the moment an owner takes it over."""

    range_id: int
    """Range id of the new owner, greater than any before it; fences every write from now on."""
    record: ScheduleRecord


class Page(NamedTuple):
    """Tasks that an owner has read."""

    tasks: Sequence[ScheduledTask]
    is_cut: bool
    """Whether tasks were left out because they had too many bytes."""


class ScheduleStatus(NamedTuple):
    """Counts and state of a partition, for people."""

    range_id: int
    record: ScheduleRecord
    unfinished: int
    stale: int
    """Unfinished tasks due before `stale_before`."""
    oldest: TaskKey | None
    """Key of the first unfinished task."""


class Moved(NamedTuple):
    """Result of one step of `move_tasks`."""

    tasks: int
    """Unfinished tasks that were moved."""
    completed: int
    """Completed keys that were moved."""
    after: Any
    """Position for the next step, which only the store reads; None after the last step."""


class ScheduleStore(Protocol):
    """Store of unfinished tasks in the order of their keys, and of completed keys. Every task has
    an ordering key and a unique key. Times are microseconds since the epoch."""

    @property
    def location(self) -> str:
        """Name of the store for messages, without secrets."""

    async def migrate(self) -> None:
        """Make the tables, or bring them up to date. Raises SchemaMismatch, StoreUnavailable."""

    async def prepare(self) -> None:
        """Check that the tables are there, in this version, and belong to this application; take
        tables without an owner. Raises SchemaMismatch, ConfigurationError, StoreUnavailable."""

    async def take_over(self, partition: PartitionKey) -> Owned:
        """Become the owner of the partition: raise its range id and read its record, in one step.
        Return a new record, which begins before all tasks, if the stored one cannot be read.
        Raises StoreUnavailable if the take-over may or may not have happened; take over again
        then."""

    async def persist(
        self,
        partition: PartitionKey,
        range_id: int,
        tasks: Sequence[NewTask],
        record: ScheduleRecord,
    ) -> set[TaskKey]:
        """Add the tasks and save the record, whose low-water mark lies below all of them; return
        the keys that were completed before, whose tasks are left out. A task replaces the stored
        task with the same key, unless it is the same task (id), which keeps the counts of its runs.
        The caller passes no key twice. Durable on return. Raises Fenced, and StoreUnavailable if
        the write may or may not have landed; repeat it then."""

    async def read(
        self,
        partition: PartitionKey,
        after: TaskKey,
        through: TaskKey,
        limit: int,
        ordering_key: str | None = None,
        most_bytes: int = ANY_BYTES,
    ) -> Page:
        """Return unfinished tasks with after < key <= through, ascending, at most `limit`, and as
        many as have at most `most_bytes` bytes of stored text together, but at least one; only of
        one ordering key if given. Scans no completed keys at or below `after`. A task whose row
        cannot be read is returned as an unreadable one."""

    async def find(self, partition: PartitionKey, key: TaskKey) -> ScheduledTask | None:
        """Return the unfinished task with this key, also an unreadable one; None if there is
        none."""

    def find_now(self, task_id: str) -> ScheduledTask | None:
        """Return the unfinished task of any queue with this id, also an unreadable one; None if
        there is none. For people: blocks the caller, and reads at most one index entry of each
        partition. Raises StoreUnavailable."""

    async def finish(self, partition: PartitionKey, range_id: int, ends: Sequence[RunEnd]) -> None:
        """Write each run for the history of attempts once, complete the keys of tasks that are
        over, and store the counts of runs with the others, unless another task has replaced them.
        Each of these ends is written whole or not at all; on SQL, all together. The history has the
        runs on return, unless it is on another server that does not respond: `move_attempts` moves
        them there later. The caller passes no key twice. Durable on return. Raises Fenced, and
        StoreUnavailable if the write may or may not have landed; repeat it then."""

    async def move_attempts(self, partition: PartitionKey, range_id: int) -> None:
        """Move runs to the history that only this store has, as far as the history is available.
        Call it from time to time. Raises Fenced, StoreUnavailable."""

    async def keep(
        self,
        partition: PartitionKey,
        range_id: int,
        record: ScheduleRecord,
        done: Sequence[tuple[TaskKey, TaskKey]] = (),
    ) -> None:
        """Save the record. `done`: pairs of keys; no task strictly between the keys of a pair is
        unfinished, so the store may delete the rows of completed tasks there. The caller runs no
        `persist` at the same time. Raise Fenced or StoreUnavailable."""

    async def clean(self, partition: PartitionKey, range_id: int, before: int) -> int:
        """Delete one batch of completed keys that were due and completed before `before`
        (microseconds since the epoch), whatever holds the low-water mark down; return how much was
        deleted, in units of the store. Some may be left. Raises Fenced, StoreUnavailable."""

    async def move_tasks(
        self, source: PartitionKey, range_ids: Mapping[int, int], partitions: int, after: Any
    ) -> Moved:
        """Move a bounded number of the unfinished tasks and completed keys that are in `source` and
        belong to another partition, by their ordering key and this number of partitions. Tasks
        keep the counts of their runs. `range_ids`: those of the caller, which owns all partitions
        of the queue. `after`: None, or the position that the last step returned. A repetition of
        all steps moves what is left. The caller has moved the runs to the history
        (`move_attempts`), and lowered the low-water mark of each partition below all of these
        tasks. Raises Fenced, and StoreUnavailable if a step may or may not have
        moved something, or cannot see every task."""

    async def now(self) -> int | None:
        """Return the time of the store's own clock (microseconds since the epoch); None if the
        store has no clock of its own. Raises StoreUnavailable."""

    async def unfinished(self, queue: str, now: int) -> int:
        """Return how many tasks are due, or have run and are to be retried."""

    async def has_due(self, queue: str, now: int) -> bool:
        """Return whether a task is due. Reads none but the first of each partition, so that
        `--until-empty` can ask several times a second."""

    async def statuses(self, queue: str, stale_before: int) -> dict[int, ScheduleStatus]:
        """Return the status of every partition that was ever owned, by its number; for people."""

    async def close(self) -> None:
        """Close the store's own connections, if it has any."""
