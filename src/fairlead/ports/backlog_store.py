"""The backlog store: keeps the levels of fair partitions. Every write is fenced: of two owners,
only the later one can write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from fairlead.model import LaneKey, LaneRecord, Level, PartitionKey, Trigger

HIGHEST = Level(2**63 - 1, 2**63 - 1)
"""Level above every level that is given to a task."""


class Fenced(Exception):
    """Raised when a later owner has taken the partition over: nothing was written, and nothing will
    ever be written under this range id."""


class OwnedBacklog(msgspec.Struct, frozen=True):
    """State of a partition at the moment an owner takes it over."""

    range_id: int
    """Range id of the new owner, greater than any before it; fences every write from now on."""
    lanes: dict[int, LaneRecord]
    """Records by priority, of lanes that were ever written."""


class BacklogStore(Protocol):
    """Store of backlog entries: triggers with a level, one per task and version. Entries do not
    expire."""

    persist_seconds: float
    """Interval in seconds at which the record of a lane that makes progress is saved. After a
    crash, tasks dispatched since the last save are tried again."""
    delete_acks: int
    """Number of acked entries that make a delete worthwhile."""

    async def migrate(self) -> None:
        """Make the tables, or bring them up to date. Raises SchemaMismatch, StoreUnavailable."""

    async def take_over(
        self, partitions: Sequence[PartitionKey]
    ) -> dict[PartitionKey, OwnedBacklog]:
        """Become the owner of all lanes of these partitions: raise the range id of each and read
        its records, in one step. A lane whose record cannot be read begins anew. Raises
        StoreUnavailable if the take-over may or may not have happened; take over again then."""

    async def write(
        self, lane: LaneKey, range_id: int, entries: Sequence[Trigger], record: LaneRecord
    ) -> None:
        """Add the entries (all have a level and belong to the lane) and save the record, all or
        nothing. A store that splits a large write first saves a record with which the channel
        brings all entries again. An entry that exists is left unchanged. `entries` may be empty.
        Raises Fenced, and StoreUnavailable if the write may or may not have landed, or may land
        later; repeat it unchanged then."""

    async def read_above(self, lane: LaneKey, level: Level, limit: int) -> list[Trigger]:
        """Return entries with a level greater than `level`, ascending, at most `limit`; never one
        twice. Raises StoreUnavailable."""

    async def delete_through(self, lane: LaneKey, range_id: int, level: Level) -> None:
        """Delete the entries at or below `level`. Raises Fenced, StoreUnavailable."""

    async def entries(self, lane: LaneKey, above: Level, task_ids: Sequence[str]) -> list[Trigger]:
        """Return the entries of these tasks above a level, in any order. Raises
        StoreUnavailable."""

    async def records(self) -> dict[PartitionKey, OwnedBacklog]:
        """Return the records of every partition, for people; changes nothing."""

    async def ahead(
        self, lane: LaneKey, above: Level, below: Level = HIGHEST, most: int | None = None
    ) -> tuple[int, int]:
        """Return how many entries lie between two levels, counted up to `most`, and how many
        fairness keys these have; for people."""

    async def close(self) -> None:
        """Close the store's own connections, if it has any."""
