"""The keeper of a lake, for the workers' poller: exports, compares now and then, and removes what
is not needed."""

from __future__ import annotations

from fairlead.clock import MICROS, Clock
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.extra import need
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.table import GRACE
from fairlead.pipeline.reconcile import reconcile
from fairlead.ports.history import START, HistoryStore

ROWS = 10_000
"""In a batch: fewer than by command, so that the tasks of the worker beside it are not kept
waiting."""


def require() -> None:
    """Raises ConfigurationError when the libraries that a lake needs are not installed; imports
    none of them."""
    need("pyarrow")


class Keeper:
    """Keeps a lake in step with the history of the store, a batch at a time. Its work blocks: it
    belongs into a thread."""

    def __init__(self, history: HistoryStore, folder: str, clock: Clock) -> None:
        """Raises ConfigurationError when the folder cannot be used, or the libraries are
        missing."""
        self._history = history
        self._lake = Lake(folder)
        self._clock = clock
        self._exporter = Exporter(history, self._lake, clock, ROWS)
        self._tried_at = 0
        self._is_comparing = False

    def keep(self, check_every: float) -> bool:
        if self._exporter.round(batches=1).more:
            return True
        reader = self._history.database.read_now(self._history.reader(self._lake.reader))
        if reader is None or reader.position == START:
            return False
        now = self._clock.now()
        if (
            not self._is_comparing
            and now - max(self._tried_at, reader.checked_at or 0) < check_every * MICROS
        ):
            return False
        # Noted before: one that fails is not tried again with each round, it takes a person.
        self._tried_at, self._is_comparing = now, False
        self._is_comparing = reconcile(self._history, self._lake, self._clock, pieces=1).more
        if self._is_comparing:
            return True
        for table in (ATTEMPTS, EVENTS):
            self._lake.table(table).sweep(now - GRACE)
        return False
