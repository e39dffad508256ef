"""The history of attempts in the SQL database, to which ordered queues on Cassandra append the runs
that have ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from fairlead.backends.sql.schedule import append_unfenced
from fairlead.backends.sql.sql_file import load, package_of
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.errors import BatchTooLarge, StoreUnavailable
from fairlead.ports.statements import Row

log = logging.getLogger("fairlead.ordered")

APPEND_SECONDS = 5.0
"""Seconds for which the end of a run waits for the database, at most."""

AWAY_SECONDS = 10.0
"""Seconds after a failure in which no call tries the database."""


class HistoryInSql:
    """The history of attempts. Ordered queues go on while its database is away."""

    def __init__(self, tasks: SqlTaskStore) -> None:
        self._database = tasks.database
        self._sql = load("schedule.sql", package_of(tasks.database))
        self._try_at: float | None = None
        """Monotonic seconds from which the database is tried again; None while it responds."""

    @property
    def is_away(self) -> bool:
        """Whether the database has failed so recently that no call tries it yet."""
        return self._try_at is not None and time.monotonic() < self._try_at

    async def append(self, rows: Sequence[Row]) -> bool:
        """Append runs of one partition to the history, each once, however often it is appended.
        Return False if the database is away: the runs must be appended later."""
        if self.is_away:
            return False
        if self._try_at is not None:
            # Only this call tries the database again; the others do not wait for it.
            self._postpone()
        try:
            async with asyncio.timeout(APPEND_SECONDS):
                await self._database.run_async(append_unfenced(self._sql, rows))
        except (StoreUnavailable, TimeoutError) as error:
            if isinstance(error, BatchTooLarge) and (half := len(rows) // 2):
                self._on_response()
                return await self.append(rows[:half]) and await self.append(rows[half:])
            if self._try_at is None:
                fields = {"error": str(error) or type(error).__name__}
                log.warning(
                    "ordered queues keep their history until its database is back", extra=fields
                )
            self._postpone()
            return False
        self._on_response()
        return True

    def _postpone(self) -> None:
        """Let no call try the database for AWAY_SECONDS."""
        self._try_at = time.monotonic() + AWAY_SECONDS

    def _on_response(self) -> None:
        if self._try_at is not None:
            self._try_at = None
            log.info("the database of the history is back")
