"""The backlog store: keeps the fair backlogs of partitions. Every write is fenced: of two owners
only the later one's land."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from fairlead.model import LaneKey, LaneRecord, Level, PartitionKey, Trigger


class Fenced(Exception):
    """A later owner has taken the partition over: nothing was written, and nothing ever will be
    under this range id."""


class Ownership(msgspec.Struct, frozen=True):
    """What a new owner finds."""

    range_id: int
    """Its own, greater than any before it: it stands behind every write from now on."""
    lanes: dict[int, LaneRecord]
    """By priority, for those that were ever written."""


class BacklogStore(Protocol):
    """Rows are triggers with a level; one stands for one task at one version. There is no time to
    live."""

    persist_seconds: float
    """How often the record of a lane that moves on is kept: after a crash, what was dispatched
    since is tried again."""
    delete_acks: int
    """How many acks are worth a delete."""

    async def migrate(self) -> None:
        """Make its tables, or bring them up to date. Raises SchemaMismatch, StoreUnavailable."""

    async def take_over(self, partition: PartitionKey) -> Ownership:
        """Become the owner of all lanes of the partition: raise its range id and read its records,
        in one step. Raises StoreUnavailable; it may have happened all the same, which is harmless:
        take over again."""

    async def write(
        self, lane: LaneKey, range_id: int, entries: Sequence[Trigger], record: LaneRecord
    ) -> None:
        """Add the entries (all have a level and belong to the lane) and keep the record: all or
        nothing. An entry that is there already is left as it is. Raises Fenced, and
        StoreUnavailable when it may or may not have landed, or may land later: it is then repeated
        as it was. `entries` may be empty."""

    async def read_above(self, lane: LaneKey, level: Level, limit: int) -> list[Trigger]:
        """Entries with a level greater than `level`, ascending, at most `limit`; never one twice.
        Raises StoreUnavailable."""

    async def delete_through(self, lane: LaneKey, range_id: int, level: Level) -> None:
        """Delete the entries at or below `level`. Raises Fenced, StoreUnavailable."""

    async def levelled(
        self, lane: LaneKey, above: Level, tasks: Sequence[tuple[str, int]]
    ) -> set[str]:
        """The ids of those tasks, given as (id, version), that have an entry above the level at
        that very version."""

    async def records(self) -> dict[PartitionKey, Ownership]:
        """Everything kept of every partition, for people; changes nothing."""

    async def ahead(self, lane: LaneKey, above: Level, through: Level) -> tuple[int, int]:
        """How many entries lie above one level and below the other, and of how many fairness keys;
        for people."""

    async def entry(self, lane: LaneKey, task_id: str) -> Trigger | None:
        """The highest entry of a task, if it has one; for people."""

    async def count(self, lane: LaneKey, above: Level) -> int:
        """How many entries lie above the level; for people."""

    async def close(self) -> None:
        """Let go of connections of its own, if it has any."""
