"""The backlog store of SQLite on a database in memory, where each call ends at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from importlib import resources
from typing import TypeVar

from fairlead.backends.sql.backlog import triggers_of
from fairlead.backends.sql.drivers import drive, executor
from fairlead.backends.sql.fences import Fences
from fairlead.backends.sql.sql_file import load
from fairlead.backends.sqlite.backlog import SqliteBacklogStore
from fairlead.model import LOWEST, LaneKey, LaneRecord, PartitionKey, Trigger
from fairlead.ports.statements import Steps

T = TypeVar("T")

_SQLITE = "fairlead.backends.sqlite"
_TABLES = resources.files(_SQLITE).joinpath("migrations", "levels.sql").read_text()


class _Database:
    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.executescript(_TABLES)

    def read_now(self, steps: Steps[T]) -> T:
        return drive(steps, executor(self._connection))

    async def read(self, steps: Steps[T]) -> T:
        return self.read_now(steps)

    async def run_async(self, steps: Steps[T], durable: bool = True) -> T:
        self._connection.execute("BEGIN")
        with self._connection:
            return self.read_now(steps)


class LevelStore(SqliteBacklogStore):
    """A `SqliteBacklogStore` without a task store."""

    def __init__(self) -> None:
        self._levels = _Database()
        self._database = self._levels  # type: ignore[assignment]
        self._sql = load("backlog.sql", _SQLITE)
        self._fences = Fences()
        self._deleted = {}

    def rows(self, lane: LaneKey) -> Sequence[Trigger]:
        """Return the stored triggers, ascending by level."""
        return triggers_of(
            lane, self._levels.read_now(self._rows("read_above", *lane, *LOWEST, 1000))
        )

    def record(self, lane: LaneKey) -> LaneRecord:
        """Return the stored record of the lane."""
        owned = self._levels.read_now(self._records()).get(PartitionKey(*lane[:2]))
        return LaneRecord() if owned is None else owned.lanes.get(lane.priority, LaneRecord())
