"""The empty backlog store of an application without fair queues."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NoReturn

from fairlead.errors import NotSupported
from fairlead.model import LaneKey, LaneRecord, Level, PartitionKey, Trigger
from fairlead.ports.backlog_store import KeyEntries, LastPasses, OwnedBacklog


class NoBacklog:
    """An empty store. See `fairlead.ports.backlog_store.BacklogStore`."""

    persist_seconds = 60.0
    delete_acks = 1000

    async def migrate(self) -> None:
        """Do nothing: there are no tables."""

    async def take_over(
        self, partitions: Sequence[PartitionKey]
    ) -> dict[PartitionKey, OwnedBacklog]:
        _refuse()

    async def unreadable(self, partition: PartitionKey) -> dict[int, str]:
        return {}

    async def write(
        self,
        lane: LaneKey,
        range_id: int,
        entries: Sequence[Trigger],
        record: LaneRecord,
        moved: Sequence[Level] = (),
    ) -> None:
        _refuse()

    async def read_above(self, lane: LaneKey, level: Level, limit: int) -> list[Trigger]:
        _refuse()

    async def delete_through(self, lane: LaneKey, range_id: int, level: Level) -> None:
        _refuse()

    async def levelled(
        self, lane: LaneKey, above: Level, tasks: Sequence[tuple[str, int]]
    ) -> set[str]:
        return set()

    async def last_passes(self, lane: LaneKey, above: Level, limit: int) -> LastPasses:
        return LastPasses([], None)

    async def entries_of(
        self, lane: LaneKey, above: Level, tenants: Collection[str], limit: int
    ) -> KeyEntries:
        return KeyEntries([], None)

    async def records(self) -> dict[PartitionKey, OwnedBacklog]:
        return {}

    async def ahead(
        self, lane: LaneKey, above: Level, through: Level, most: int | None = None
    ) -> tuple[int, int]:
        return 0, 0

    async def entry(self, lane: LaneKey, task_id: str) -> Trigger | None:
        return None

    async def count(self, lane: LaneKey, above: Level, most: int | None = None) -> int:
        return 0

    async def close(self) -> None:
        """Do nothing: there is no connection."""


def _refuse() -> NoReturn:
    raise NotSupported("this application has no fair queues, and so no backlog")
