"""The backlog store on PostgreSQL."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import asyncpg

from fairlead.backends.postgres.copy_format import (
    COPY_MIN_ROWS,
    HEADER,
    TRAILER,
    Texts,
    smallint,
    text,
    uuid,
)
from fairlead.backends.sql.backlog import SqlBacklogStore, columns
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.model import LaneKey, LaneRecord, Trigger
from fairlead.ports.statements import Copy, Steps

_COLUMNS = (
    "queue",
    "partition",
    "priority",
    "pass",
    "id",
    "task_id",
    "version",
    "seq",
    "order_at",
    "weight",
    "name",
    "fairness_key",
    "ordering_key",
)

_FIXED = struct.Struct(">iqiqi16siiiqiqid")
"""Columns from `pass` to `weight`; the length of each column precedes its value."""


class PostgresBacklogStore(SqlBacklogStore):
    """A `SqlBacklogStore` on PostgreSQL. Large writes use COPY, which costs a third as
    much as INSERT."""

    def __init__(self, store: SqlTaskStore) -> None:
        super().__init__(store)
        self._numbers: dict[LaneKey, int] = {}
        """Number of the record that was written last, by lane."""

    async def _write_at_once(
        self,
        lane: LaneKey,
        range_id: int,
        entries: Sequence[Trigger],
        record: LaneRecord,
    ) -> None:
        try:
            await super()._write_at_once(lane, range_id, entries, record)
        except asyncpg.UniqueViolationError:
            # An earlier try of this write has succeeded. No other write can contain these levels,
            # because each level is assigned once.
            await self._database.run_async(
                self._write(lane, range_id, entries, record, self._insert_missing)
            )

    def _insert(self, lane: LaneKey, entries: Sequence[Trigger]) -> Steps[None]:
        if len(entries) < COPY_MIN_ROWS:
            yield from self._insert_missing(lane, entries)
        else:
            yield Copy("fairlead_backlog", _COLUMNS, _rows(lane, entries))

    def _insert_missing(self, lane: LaneKey, entries: Sequence[Trigger]) -> Steps[None]:
        yield self._statement("write", *lane, *map(list, zip(*map(columns, entries), strict=True)))

    def _keep_record(self, lane: LaneKey, record: str) -> Steps[None]:
        known = self._numbers.get(lane, 0)
        rows = yield self._statement("keep_record", *lane, record, known)
        if not rows and known:  # the transaction that gave the number did not commit
            rows = yield self._statement("keep_record", *lane, record, 0)
        if not rows:
            rows = yield self._statement("first_record", *lane, record)
        self._numbers[lane] = rows[0][0]

    def _ids(self, ids: list[str]) -> list[str]:
        return ids


def _rows(lane: LaneKey, entries: Sequence[Trigger]) -> Iterator[bytes]:
    head = (
        struct.pack(">h", len(_COLUMNS))
        + text(lane.queue)
        + smallint(lane.partition)
        + smallint(lane.priority)
    )
    fixed, texts = _FIXED.pack, Texts()
    rows = [HEADER]
    for entry in entries:
        pass_, number = entry.level  # type: ignore[misc]
        rows += (
            head,
            fixed(
                8,
                pass_,
                8,
                number,
                16,
                uuid(entry.id),
                4,
                entry.version,
                8,
                entry.seq,
                8,
                entry.order_at,
                8,
                entry.weight,
            ),
            texts[entry.name],
            texts[entry.fairness_key],
            texts[entry.ordering_key],
        )
    rows.append(TRAILER)
    yield b"".join(rows)
