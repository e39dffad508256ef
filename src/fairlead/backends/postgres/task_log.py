"""The task log on PostgreSQL: a read of a partition begins above its deleted entries (see
low_water.py)."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.backends.postgres.low_water import PartitionMarks, SnapshotReader
from fairlead.backends.sql.rows import batch
from fairlead.backends.sql.task_log import SqlTaskLog
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.clock import Clock
from fairlead.model import PartitionKey
from fairlead.ports.statements import Row, Statement, Steps

_SNAPSHOT_SECONDS = 0.25
"""Shortest time between two snapshots, so that few entries have come since the settled position."""

_WAIT_SECONDS = 0.2
"""Seconds between two looks at the open transactions that have appended entries."""

_OTHERS = -1
"""Stands for the partitions that are not registered."""


class PostgresTaskLog(SqlTaskLog):
    """A task log whose reads do not grow with the number of entries that were deleted."""

    def __init__(self, store: SqlTaskStore, clock: Clock) -> None:
        super().__init__(store, clock)
        self._marks = PartitionMarks()
        snapshot = Statement(self._sql["log_snapshot"])
        self._snapshots = SnapshotReader(self._marks, snapshot, _SNAPSHOT_SECONDS)

    async def await_appends(self, queue: str) -> None:
        appending = await self._database.read(self._holders())
        while appending & await self._database.read(self._holders()):
            await self._clock.sleep(_WAIT_SECONDS)

    def _holders(self) -> Steps[frozenset[str]]:
        """Return the open transactions that have written to the log."""
        _, _, holders = (yield Statement(self._sql["log_snapshot"]))[0]
        return frozenset(holders)

    def _receive(
        self, partitions: Sequence[PartitionKey], each: int, most_bytes: int
    ) -> Steps[Sequence[Row]]:
        settled = self._marks.settled
        asked = batch([(*partition, self._marks.of(partition)) for partition in partitions])
        rows = yield Statement(self._sql["receive"], (asked, each, settled.server, most_bytes))
        first: dict[PartitionKey, int] = {}
        for seq, queue, partition, _ in rows:
            first.setdefault(PartitionKey(queue, partition), seq)
        self._marks.raise_to(first, settled, partitions)
        yield from self._snapshots.read_if_late()
        return rows

    def _has_entries(self, queue: str) -> Steps[bool]:
        settled = self._marks.settled
        marks = batch(self._marks.rows())
        heads = yield Statement(self._sql["has_entries"], (queue, marks, settled.server))
        first = {PartitionKey(queue, n): seq for n, seq in heads if seq is not None}
        searched = [PartitionKey(queue, n) for n, _ in heads if n != _OTHERS]
        self._marks.raise_to(first, settled, searched)
        yield from self._snapshots.read_if_late()
        return bool(first)
