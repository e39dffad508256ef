"""The record of a partition in the schedule store, from which the next owner continues."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlead.clock import MICROS, Clock
from fairlead.core.schedule.schedule import Schedule
from fairlead.model import ScheduleRecord
from fairlead.ordered.fenced_schedule import FencedSchedule
from fairlead.ports.schedule_store import KEEP_COMPLETIONS

SAVE_SECONDS = 5.0
"""Seconds between two saves of a changing record. After a crash, the next owner repeats the reads
of this time."""

MOST_DONE = 200
"""Maximum number of key ranges, with completed tasks only, that are saved with the record."""

CLEAN_SECONDS = 60.0


class Record:
    """The saved record of a partition. Saving it also deletes old completed keys, once a minute."""

    def __init__(
        self,
        store: FencedSchedule,
        schedule: Schedule,
        describe: Callable[[], ScheduleRecord],
        clock: Clock,
    ) -> None:
        """`describe`: callback that returns the current record."""
        self._store = store
        self._schedule = schedule
        self._describe = describe
        self._clock = clock
        self._saved: ScheduleRecord | None = None
        self._save_at = clock.monotonic()
        self._clean_at = clock.monotonic() + CLEAN_SECONDS

    @property
    def is_due(self) -> bool:
        """Whether `save` should be called again."""
        return self._clock.monotonic() >= self._save_at

    def on_saved(self, record: ScheduleRecord) -> None:
        """Remember that another write has saved this record."""
        self._saved = record

    async def save(self) -> None:
        """Save the record if it changed, and delete old completed keys if that is due."""
        record = self._describe()
        if (
            self._saved is None
            or msgspec.structs.replace(record, updated_at=self._saved.updated_at) != self._saved
        ):
            await self._store.keep(record, self._schedule.completed_ranges(MOST_DONE))
            self._saved = record
        self._save_at = self._clock.monotonic() + SAVE_SECONDS
        if self._clock.monotonic() >= self._clean_at:
            before = self._clock.now() - round(KEEP_COMPLETIONS * MICROS)
            cleaned = await self._store.clean(before)
            self._clean_at = self._clock.monotonic() + (0 if cleaned else CLEAN_SECONDS)
