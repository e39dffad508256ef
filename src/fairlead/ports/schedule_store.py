"""The schedule store: tasks of ordered queues by the hour they are due in, and the keys that are
completed.

Every write is fenced: of two owners only the later one's land.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from fairlead.clock import MICROS
from fairlead.model import NewTask, PartitionKey, RunEnd, ScheduledTask, ScheduleRecord, TaskKey
from fairlead.ports.backlog_store import Fenced

__all__ = ["Fenced", "HOUR", "Owned", "ScheduleStatus", "ScheduleStore", "hour_of"]

HOUR = 3600 * MICROS
"""Microseconds of one bucket."""


def hour_of(key: TaskKey) -> int:
    """The bucket of a task, and of its completion: whole hours since 1970."""
    return key.run_at // HOUR


class Owned(msgspec.Struct, frozen=True):
    """What a new owner finds."""

    range_id: int
    """Its own, greater than any before it: it stands behind every write from now on."""
    record: ScheduleRecord


class ScheduleStatus(NamedTuple):
    """A partition in numbers, for people."""

    range_id: int
    record: ScheduleRecord
    unfinished: int
    stale: int
    """Of them, due before the time asked about."""
    oldest: TaskKey | None
    """The first unfinished one."""


class ScheduleStore(Protocol):
    """Unfinished tasks in the order of their keys, and completed keys. Tasks have an ordering key
    and a unique key."""

    @property
    def location(self) -> str:
        """Where it is, without secrets."""

    async def migrate(self) -> None:
        """Make its tables, or bring them up to date. Raises SchemaMismatch, StoreUnavailable."""

    async def take_over(self, partition: PartitionKey) -> Owned:
        """Become the owner of the partition: raise its range id and read its record, in one step.
        Raises StoreUnavailable; it may have happened all the same, which is harmless: take over
        again."""

    async def persist(
        self,
        partition: PartitionKey,
        range_id: int,
        tasks: Sequence[NewTask],
        record: ScheduleRecord,
    ) -> set[TaskKey]:
        """Add the tasks and keep the record, whose floor lies below all of them; answers the keys
        that were completed before: those are left out. A task whose key is there takes the place of
        that one, unless it is the same task (id): what its runs have left behind stays then. No key
        comes twice in one call. Once this is answered it is not lost. Raises Fenced, and
        StoreUnavailable when it may or may not have landed: it is then repeated."""

    async def read(
        self,
        partition: PartitionKey,
        after: TaskKey,
        through: TaskKey,
        limit: int,
        ordering_key: str | None = None,
    ) -> list[ScheduledTask]:
        """Unfinished tasks with after < key <= through, ascending, at most `limit`; of one ordering
        key only, if asked. It passes over no more of what is completed than lies above `after`."""

    async def find(self, partition: PartitionKey, key: TaskKey) -> ScheduledTask | None:
        """The unfinished task with this key."""

    async def finish(self, partition: PartitionKey, range_id: int, ends: Sequence[RunEnd]) -> None:
        """Put the runs into the history of attempts, each once, and then: complete the keys of
        those that are over, and note of the others what their runs have left behind, unless another
        task has taken their place. On SQL all of that or nothing. No key comes twice in one call.
        Once this is answered it is not lost. Raises Fenced, and StoreUnavailable when it may or may
        not have landed: it is then repeated."""

    async def keep(
        self,
        partition: PartitionKey,
        range_id: int,
        record: ScheduleRecord,
        done: Sequence[tuple[TaskKey, TaskKey]] = (),
    ) -> None:
        """Keep the record. `done`: pairs of keys between which, themselves left out, nothing is
        unfinished, so that what is still kept of completed tasks there may be deleted; no `persist`
        runs meanwhile. Raises Fenced, StoreUnavailable."""

    async def clean(self, partition: PartitionKey, range_id: int, before: int) -> int:
        """Forget what was completed before this time (microseconds), and not above the floor that
        was kept, a batch of it; answers how much, in units of its own. It may leave more of it than
        that. Raises Fenced, StoreUnavailable."""

    async def unfinished(self, queue: str, now: int) -> int:
        """How many tasks are due, or have run and are to be retried."""

    async def statuses(self, queue: str, stale_before: int) -> dict[int, ScheduleStatus]:
        """Every partition that was ever owned, by its number; for people."""

    async def close(self) -> None:
        """Let go of connections of its own, if it has any."""
