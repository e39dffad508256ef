"""The exporter of ordered queues without a SQL database: copy their runs from the run history into
the lake, each exactly once.

Each partition has a cursor in the properties of bronze.attempts. A single commit lists the new
files and moves the cursors, as in `fairlead.pipeline.export`: a crash before it leaves files that
the lake ignores and removes later, and of two exporters one is refused. After the commit, the
exporter tells the history how far it has read; the history may then delete these runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from itertools import count, islice

import msgspec

from fairlead.clock import Clock
from fairlead.model import PartitionKey
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.export import ROWS, Exported
from fairlead.pipeline.hashing import Hashing, hashing_of
from fairlead.pipeline.history_rows import attempts_table
from fairlead.pipeline.landing import land
from fairlead.pipeline.stream.cursors import broken_cursor
from fairlead.pipeline.warehouse.table import TableState
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.run_history import RunCursor, RunHistory, read_cursor
from fairlead.ports.statements import Row

log = logging.getLogger("fairlead.export")

REGISTER_SECONDS = 86_400.0
"""Seconds after which the exporter registers again for partitions without new runs, so that the
history does not forget it."""


class RunExporter:
    """Exporter of the runs of ordered queues. Several exporters may run on one history and one
    lake."""

    def __init__(
        self, history: RunHistory, lake: Warehouse, clock: Clock, rows: int = ROWS
    ) -> None:
        self._history = history
        self._read = history.database.read_now
        self._lake = lake
        self._clock = clock
        self._rows = rows
        self._table = lake.table(ATTEMPTS)
        self._registered: dict[PartitionKey, tuple[int, float]] = {}
        """Instants that the history knows of this reader, by partition, each with the monotonic
        time of the registration."""

    def round(
        self, on_rows: Callable[[int], None] = lambda rows: None, batches: int | None = None
    ) -> Exported:
        """Export all runs below the horizons, or at most `batches` batches; call `on_rows` with
        the number of rows after each batch.

        Raise StoreUnavailable, BrokenLake, and ConfigurationError when the lake has hashed keys and
        the secret is missing.
        """
        started = time.monotonic()
        hashing = hashing_of(self._lake)
        store_id = self._read(self._history.store_id())
        horizons: dict[PartitionKey, int] = self._read(self._history.horizons())
        # Register before the first read, so that the history deletes no run that is not in the
        # lake.
        self._register(store_id, horizons)
        attempts = files = 0
        more = False
        for _ in islice(count(), batches):
            rows, written = self._batch(store_id, horizons, hashing)
            attempts, files = attempts + rows, files + written
            on_rows(rows)
            if rows < self._rows:
                break
        else:
            more = True
        if attempts:
            self._table.tend(self._clock.now())
            self._register(store_id, horizons)
            log.info("history exported", extra={"attempts": attempts, "events": 0, "files": files})
        return Exported(attempts, 0, files, round(time.monotonic() - started, 3), more)

    def behind(self) -> int:
        """Return the number of runs below the horizons that are not exported yet, by a read of all
        of them."""
        store_id = self._read(self._history.store_id())
        seen = self._table.state()
        found = 0
        for partition, horizon in self._read(self._history.horizons()).items():
            cursor = _cursor(seen, _name(store_id, partition))
            while cursor.done < horizon:
                rows, cursor = self._read(
                    self._history.page(partition, cursor, horizon, self._rows)
                )
                found += len(rows)
        return found

    def _batch(
        self, store_id: str, horizons: dict[PartitionKey, int], hashing: Hashing | None
    ) -> tuple[int, int]:
        """Export the next runs, except those of erased keys; return the numbers of rows and
        files."""
        while True:
            seen = self._table.state()
            rows, moves = self._next(store_id, horizons, seen)
            if not moves:
                return 0, 0
            batch = attempts_table(store_id, rows, self._clock.now())
            name = f"{store_id}-runs-{self._clock.now()}"
            landed = land(self._lake, ATTEMPTS, batch, name, seen, hashing)
            if self._table.append(landed, moves, seen):
                return len(rows), len(landed)
            self._table.take_away(landed)

    def _next(
        self, store_id: str, horizons: dict[PartitionKey, int], seen: TableState
    ) -> tuple[Sequence[Row], dict[str, str]]:
        """Return the next runs of all partitions, and the moves of cursors that export them."""
        found: list[Row] = []
        moves: dict[str, str] = {}
        for partition, through in sorted(horizons.items()):
            name = _name(store_id, partition)
            cursor = _cursor(seen, name)
            while cursor.done < through and len(found) < self._rows:
                room = self._rows - len(found)
                rows, cursor = self._read(self._history.page(partition, cursor, through, room))
                found += rows
            if str(cursor) != seen.cursors.get(name, str(RunCursor())):
                moves[name] = str(cursor)
        return found, moves

    def _register(self, store_id: str, horizons: dict[PartitionKey, int]) -> None:
        """Tell the history through which instants the lake has its runs, where it does not know."""
        seen, now = self._table.state(), time.monotonic()
        news = {}
        for partition in horizons:
            through = _cursor(seen, _name(store_id, partition)).done
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
