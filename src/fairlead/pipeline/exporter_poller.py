"""The exporter of a lake as a poller of a worker: export, and compare from time to time."""

from __future__ import annotations

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import MICROS, Clock
from fairlead.model.history import START
from fairlead.pipeline.export_runs import exporter_of
from fairlead.pipeline.reconcile import reconcile
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.cluster import Cluster

ROWS = 10_000
"""Rows in a batch, fewer than in the command, so that tasks of the same worker do not wait."""


class PolledExporter:
    """Exporter that exports the history of a store in batches. Its calls block, so run them in a
    thread."""

    def __init__(self, store: Cluster, lake: Warehouse, clock: Clock) -> None:
        """Raise NotSupported for a store that has no history."""
        self._lake = lake
        self._clock = clock
        self._tried_at = 0
        self._is_comparing = False
        tables = store.with_tables()
        self._history = None if tables is None else SqlHistory(tables.database)
        self._exporter = exporter_of(store, lake, clock, ROWS)

    def keep(self, check_every: float) -> bool:
        """Export one batch, and compare the lake with the store if that is due. Return whether work
        is left.

        check_every: seconds between two comparisons.
        """
        if self._exporter.round(batches=1).more:
            return True
        if self._history is None:
            return False  # runs are not compared
        reader = self._history.database.read_now(self._history.reader(self._lake.reader))
        if reader is None or reader.position == START:
            return False
        now = self._clock.now()
        if (
            not self._is_comparing
            and now - max(self._tried_at, reader.checked_at or 0) < check_every * MICROS
        ):
            return False
        # Set the time first: a failed comparison needs a person, so do not repeat it each round.
        self._tried_at, self._is_comparing = now, False
        self._is_comparing = reconcile(self._history, self._lake, self._clock, pieces=1).more
        return self._is_comparing
