"""Notes of runs on their way to the store: the progress of all tasks of a node in one statement a
second, and checkpoints at once."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import NoReturn

from fairlead.clock import Clock
from fairlead.declare.notes import Notes
from fairlead.engine.lifecycle import SimplePart
from fairlead.errors import StaleVersion, StoreUnavailable
from fairlead.model import ProgressReport
from fairlead.ports.sql_store import SqlStore

log = logging.getLogger("fairlead.progress")

PAUSE = 1.0
"""Seconds between two writes of progress."""


class RunNotesWriter(SimplePart):
    """A `fairlead.declare.notes.Reporter` for the runs of one node. The completion of a run writes
    what is not written yet."""

    def __init__(self, node: str, store: SqlStore, clock: Clock) -> None:
        self._node = node
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._changed: dict[str, Notes] = {}
        """Notes with a progress to write, by task id."""
        self._work = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_failing = False

    def now(self) -> int:
        """Return the time, in microseconds since the epoch."""
        return self._clock.now()

    def report(self, notes: Notes) -> None:
        """Write the last progress of the run within a second."""
        with self._lock:
            is_woken = bool(self._changed)
            self._changed[notes.id] = notes
        if not is_woken and self._loop is not None:
            self._loop.call_soon_threadsafe(self._work.set)

    def store(self, notes: Notes, value: bytes) -> None:
        """Store a checkpoint. Raises StaleVersion, StoreUnavailable."""
        steps = self._store.store_checkpoint(self._node, notes.id, notes.version, value)
        if not self._store.database.run(steps):
            _refuse(notes)

    async def store_async(self, notes: Notes, value: bytes) -> None:
        """Store a checkpoint from the event loop. Raises StaleVersion, StoreUnavailable."""
        steps = self._store.store_checkpoint(self._node, notes.id, notes.version, value)
        if not await self._store.database.run_async(steps):
            _refuse(notes)

    async def run(self) -> None:
        """Write until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            await self._work.wait()
            self._work.clear()
            await self._write()
            await self._clock.sleep(PAUSE)

    async def _write(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, {}
        given = [(notes, p) for notes in changed.values() if (p := notes.progress) is not None]
        reports = [ProgressReport(notes.id, notes.version, progress) for notes, progress in given]
        if not reports:
            return
        try:
            await self._store.write_progress(self._node, reports)
        except StoreUnavailable as error:
            if not self._is_failing:
                log.warning("progress waits for the store", extra={"error": str(error)})
            self._is_failing = True
            with self._lock:
                self._changed = changed | self._changed
            self._work.set()
            return
        self._is_failing = False
        for notes, progress in given:
            notes.written = progress


def _refuse(notes: Notes) -> NoReturn:
    raise StaleVersion(
        f"the checkpoint of run {notes.attempt} of task {notes.id} is refused: the task was given"
        " to another node, or has ended"
    )
