"""The exporter of ordered queues without a SQL database: copy their runs from the run history into
the lake, each exactly once.

Each partition has a cursor in the properties of bronze.attempts. A single commit lists the new
files and moves the cursors, as in `fairlead.pipeline.export`. After the commit, the exporter tells
the history how far it has read; the history may then delete these runs.
"""

from __future__ import annotations

import time

import msgspec

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import Clock
from fairlead.connect import sql_store
from fairlead.model import PartitionKey
from fairlead.pipeline.cursors import broken_cursor
from fairlead.pipeline.export import ROWS, Batch, Exporter, HistoryExporter, Next
from fairlead.pipeline.history_rows import attempts_table
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.table import Moves, TableState
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.cluster import Cluster
from fairlead.ports.run_history import RunCursor, RunHistory, read_cursor
from fairlead.ports.statements import Row

REGISTER_SECONDS = 86_400.0
"""Seconds after which the exporter registers again for partitions without new runs, so that the
history does not forget it."""


class RunExporter(HistoryExporter):
    """Exporter of the runs of ordered queues."""

    def __init__(
        self, history: RunHistory, lake: Warehouse, clock: Clock, rows: int = ROWS
    ) -> None:
        super().__init__(history, lake, clock, rows)
        self._history = history
        self._horizons: dict[PartitionKey, int] = {}
        self._registered: dict[PartitionKey, tuple[int, float]] = {}
        """Instants that the history knows of this reader, by partition, each with the monotonic
        time of the registration."""

    def _feeds(self) -> list[tuple[Table, Next]]:
        self._horizons = self._read(self._history.horizons())
        self._save({})
        return [(ATTEMPTS, self._next)]

    def _next(self, seen: TableState) -> Batch | None:
        """Return the next runs of all partitions."""
        found: list[Row] = []
        moves: dict[str, str | None] = {}
        for partition, through in sorted(self._horizons.items()):
            name = _name(self._store_id, partition)
            cursor = _cursor(seen, name)
            while cursor.done < through and len(found) < self._rows:
                room = self._rows - len(found)
                rows, cursor = self._read(self._history.page(partition, cursor, through, room))
                found += rows
            if str(cursor) != seen.cursors.get(name, str(RunCursor())):
                moves[name] = str(cursor)
        if not moves:
            return None
        now = self._clock.now()
        table = attempts_table(self._store_id, found, now)
        return Batch(len(found), table, f"{self._store_id}-runs-{now}", moves)

    def _save(self, moves: Moves) -> None:
        """Tell the history through which instants the lake has its runs, where it does not know."""
        seen, now = self._attempts.state(), time.monotonic()
        news = {}
        for partition in self._horizons:
            through = _cursor(seen, _name(self._store_id, partition)).done
            known, at = self._registered.get(partition, (-1, now))
            if through != known or now - at >= REGISTER_SECONDS:
                news[partition] = through
        self._history.database.run(self._history.advance(self._lake.reader, news))
        self._registered |= {partition: (through, now) for partition, through in news.items()}


def _name(store_id: str, partition: PartitionKey) -> str:
    """Return the name of the cursor of a partition."""
    return f"{store_id}/runs/{partition.queue}/{partition.partition}"


def _cursor(seen: TableState, name: str) -> RunCursor:
    """Return a cursor of bronze.attempts. Raise BrokenLake if it cannot be read."""
    text = seen.cursors.get(name)
    try:
        return RunCursor() if text is None else read_cursor(text)
    except msgspec.DecodeError as error:
        raise broken_cursor(name, error) from error


def exporter_of(
    store: Cluster, lake: Warehouse, clock: Clock, rows: int = ROWS
) -> Exporter | RunExporter:
    """Return an exporter of the history of this store. Raise NotSupported for a store without a
    history."""
    if store.runs is not None:
        return RunExporter(store.runs, lake, clock, rows)
    return Exporter(SqlHistory(sql_store(store).database), lake, clock, rows)
