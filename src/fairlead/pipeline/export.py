"""The exporter: copy finished attempts and events of tasks from a store into the lake, each exactly
once.

A single commit lists the new files and advances the cursor. When a crash precedes this commit, the
lake ignores the files and removes them later. When a crash follows it, the next round continues
after the new files. When two exporters run at once, the lake refuses the commit of the second one.
After the commit, the exporter saves its position in the store. The store may then delete events up
to that position, but attempts only after `reconcile` has compared them.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import count, islice
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyiceberg.manifest import DataFile

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import Clock
from fairlead.model.history import START, Feed, Position
from fairlead.pipeline import ledger
from fairlead.pipeline.cursors import attempts_cursor
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.history_rows import attempts_table, events_table, submitted_table
from fairlead.pipeline.models import ATTEMPTS, EVENTS
from fairlead.pipeline.schema import Table
from fairlead.pipeline.tombstones import parted
from fairlead.pipeline.warehouse.table import Moves, TableState
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.run_history import RunHistory
from fairlead.ports.statements import Row, Steps

log = logging.getLogger("fairlead.export")

ROWS = 50_000
"""Maximum number of rows in one file of bronze before compaction."""


class Exported(msgspec.Struct, frozen=True):
    """Result of one round of the exporter."""

    attempts: int
    events: int
    files: int
    seconds: float
    more: bool = False
    """Whether the round ended after the requested number of batches with more history left."""


class Batch(NamedTuple):
    """Next rows of a feed."""

    rows: int
    """Number of rows that were read."""
    table: pa.Table
    name: str
    """Beginning of the names of the files."""
    moves: Moves


Next = Callable[[TableState], Batch | None]
"""Function that reads the rows after the cursors of a state; None without rows."""


class HistoryExporter(ABC):
    """Exporter of a history in rounds. Several may run on one history and one lake."""

    def __init__(
        self, history: SqlHistory | RunHistory, lake: Warehouse, clock: Clock, rows: int
    ) -> None:
        self._read: Callable[[Steps[Any]], Any] = history.database.read_now
        self._store_id_of = history.store_id
        self._store_id = ""
        self._lake = lake
        self._clock = clock
        self._rows = rows
        self._attempts = lake.table(ATTEMPTS)

    def round(self, batches: int | None = None) -> Exported:
        """Export all history below the horizon, or at most `batches` batches of each feed.

        Raise StoreUnavailable, BrokenLake, and CheckFailed when the lake has rows that the store
        does not have.
        """
        started = time.monotonic()
        self._store_id = self._read(self._store_id_of())
        moved = dict.fromkeys((ATTEMPTS, EVENTS), 0)
        files, more = 0, False
        feeds = self._feeds()
        for table, read in feeds:
            for _ in islice(count(), batches):
                rows, written = self._batch(table, read)
                moved[table] += rows
                files += written
                if rows < self._rows:
                    break
            else:
                more = True
        for table in {table for table, _ in feeds}:
            self._lake.table(table).tend(self._clock.now())
        attempts, events = moved.values()
        if attempts or events:
            log.info(
                "history exported", extra={"attempts": attempts, "events": events, "files": files}
            )
        return Exported(attempts, events, files, round(time.monotonic() - started, 3), more)

    def _batch(self, table: Table, read: Next) -> tuple[int, int]:
        """Export the next rows of a feed, except those of erased keys; return the numbers of rows
        and files. Read again if another process has changed the table meanwhile."""
        stored = self._lake.table(table)
        while True:
            seen = stored.state()
            batch = read(seen)
            if batch is None:
                return 0, 0
            landed = self._land(table, batch, seen)
            if stored.append(landed, batch.moves, seen):
                self._save(batch.moves)
                return batch.rows, len(landed)
            stored.take_away(landed)

    def _land(self, table: Table, batch: Batch, seen: TableState) -> list[DataFile]:
        """Write the rows of a batch, without those of keys erased in the state `seen`, to files
        that no snapshot lists yet. Erased attempts go into the ledger."""
        kept, erased = parted(self._lake, batch.table, seen.erased)
        if table is ATTEMPTS:
            ledger.add(self._lake, erased, batch.name)
        return self._lake.table(table).write(kept, batch.name, seen)

    @abstractmethod
    def _feeds(self) -> list[tuple[Table, Next]]:
        """Register in the store, which then deletes no row that is not in the lake, and return the
        feeds by the table that they fill."""

    @abstractmethod
    def _save(self, moves: Moves) -> None:
        """Save in the store how far the lake has its history."""


class Exporter(HistoryExporter):
    """Exporter of the history below the horizon, before which no further commit can appear."""

    def __init__(
        self,
        history: SqlHistory,
        lake: Warehouse,
        clock: Clock,
        rows: int = ROWS,
    ) -> None:
        super().__init__(history, lake, clock, rows)
        self._history = history
        self._horizons: dict[Feed, Position] = {}

    def _feeds(self) -> list[tuple[Table, Next]]:
        self._horizons = {
            "attempts": self._horizon("attempts", self._attempts.state()),
            "events": self._horizon("events", self._lake.table(EVENTS).state()),
        }
        self._register()
        return [
            (ATTEMPTS, self._next_attempts),
            (EVENTS, self._next_events),
            (EVENTS, self._next_submitted),
        ]

    def _horizon(self, feed: Feed, seen: TableState) -> Position:
        text = seen.cursors.get(f"{self._store_id}/{feed}")
        horizon: Position = self._read(self._history.horizon(feed))
        if text is not None and Position.of(text) >= horizon:
            raise CheckFailed(
                f"the lake has {feed} up to {text}, but this store has {feed} only up to {horizon},"
                " so the store was restored from a backup or moved to another server. Set another"
                " store_id in the table fairlead_store, so that the lake treats the store as a new"
                " one"
            )
        return horizon

    def _register(self) -> None:
        name = self._lake.reader
        before = attempts_cursor(self._attempts.state(), self._store_id)
        reader = self._read(self._history.reader(name))
        cursor = attempts_cursor(self._attempts.state(), self._store_id)
        self._save_position("attempts", cursor)
        self._save_position("events", START)
        # The store may have deleted exported rows after it dropped this reader, so compare only
        # rows from this position on.
        is_dropped = reader is None and before > START
        # A restored catalog moves the cursor back, so compare the repeated export again.
        is_moved_back = (
            reader is not None and reader.checked is not None and reader.checked > cursor
        )
        if is_dropped or is_moved_back:
            position = min(before, cursor)
            log.warning(
                "the comparison of lake and store starts again",
                extra={"reader": name, "position": str(position)},
            )
            self._history.database.run(self._history.checked(name, position, self._clock.now()))

    def _next_attempts(self, seen: TableState) -> Batch | None:
        after, until = attempts_cursor(seen, self._store_id), self._horizons["attempts"]
        rows = self._read(self._history.attempts(after, until, self._rows))
        return self._batch_of("attempts", rows, attempts_table)

    def _next_events(self, seen: TableState) -> Batch | None:
        after = Position.of(seen.cursors.get(f"{self._store_id}/events", str(START)))
        rows = self._read(self._history.events(after, self._horizons["events"], self._rows))
        return self._batch_of("events", rows, events_table)

    def _next_submitted(self, seen: TableState) -> Batch | None:
        after = seen.cursors.get(f"{self._store_id}/submitted", "")
        rows = self._read(self._history.submitted(after, self._clock.now(), self._rows))
        return self._batch_of("submitted", rows, submitted_table)

    def _batch_of(
        self,
        feed: str,
        rows: Sequence[Row],
        as_table: Callable[[str, Sequence[Row], int], pa.Table],
    ) -> Batch | None:
        if not rows:
            return None
        first, last = (
            str(row[0] if feed == "submitted" else Position(*row[:2]))
            for row in (rows[0], rows[-1])
        )
        name, moves = f"{self._store_id}-{feed}-{first}-{last}", {f"{self._store_id}/{feed}": last}
        return Batch(len(rows), as_table(self._store_id, rows, self._clock.now()), name, moves)

    def _save(self, moves: Moves) -> None:
        feeds: tuple[Feed, ...] = ("attempts", "events")
        for feed in feeds:
            if (position := moves.get(f"{self._store_id}/{feed}")) is not None:
                self._save_position(feed, Position.of(position))

    def _save_position(self, feed: Feed, position: Position) -> None:
        name = self._lake.reader
        name, kind = (name, "lake") if feed == "attempts" else (f"{name}/events", "events")
        self._history.database.run(self._history.advance(name, kind, position, self._clock.now()))
