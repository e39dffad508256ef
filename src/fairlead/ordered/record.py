"""The record of a partition in the schedule store: what spares the next owner work."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlead.clock import MICROS, Clock
from fairlead.core.schedule.schedule import Schedule
from fairlead.model import ScheduleRecord
from fairlead.ordered.fenced_schedule import FencedSchedule

KEEP_SECONDS = 5.0
"""How often the record is kept while it changes: after a crash, so much is read again."""

MOST_DONE = 200
"""Pairs of keys given with the record between which nothing is unfinished."""

CLEAN_SECONDS = 60.0
KEEP_COMPLETIONS = 14 * 86_400.0
"""Seconds for which a completed key is known. What comes with an older key is refused as too late,
unless the log itself was not read for so long."""


class Record:
    """Keeps the record while it changes, and cleans completed keys now and then."""

    def __init__(
        self,
        store: FencedSchedule,
        schedule: Schedule,
        describe: Callable[[], ScheduleRecord],
        clock: Clock,
    ) -> None:
        """`describe`: returns the record as it is now."""
        self._store = store
        self._schedule = schedule
        self._describe = describe
        self._clock = clock
        self._kept: ScheduleRecord | None = None
        self._keep_at = clock.monotonic()
        self._clean_at = clock.monotonic() + CLEAN_SECONDS

    @property
    def is_due(self) -> bool:
        """Whether `keep` is to be called again."""
        return self._clock.monotonic() >= self._keep_at

    def on_kept(self, record: ScheduleRecord) -> None:
        """Note that a write has brought this record into the store."""
        self._kept = record

    async def keep(self) -> None:
        """Keep the record, if it says something new; clean, if that is due."""
        record = self._describe()
        if (
            self._kept is None
            or msgspec.structs.replace(record, updated_at=self._kept.updated_at) != self._kept
        ):
            await self._store.keep(record, self._schedule.done(MOST_DONE))
            self._kept = record
        self._keep_at = self._clock.monotonic() + KEEP_SECONDS
        if self._clock.monotonic() >= self._clean_at:
            before = self._clock.now() - round(KEEP_COMPLETIONS * MICROS)
            cleaned = await self._store.clean(before)
            self._clean_at = self._clock.monotonic() + (0 if cleaned else CLEAN_SECONDS)
