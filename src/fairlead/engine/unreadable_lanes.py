"""Lanes of one partition that stand still because their record cannot be read."""

from __future__ import annotations

import logging
import math

from fairlead.clock import Clock
from fairlead.engine.context import NodeEvents
from fairlead.engine.outages import outage_pause
from fairlead.errors import StoreUnavailable
from fairlead.model import IncidentKind, IncidentReport, PartitionKey
from fairlead.ports.backlog_store import BacklogStore

log = logging.getLogger("fairlead.unreadable_lanes")

CHECK_SECONDS = 30.0
"""Seconds between two reads of the records."""

_CURE = (
    "the tasks of the lane wait until the record is repaired; other lanes continue. Correct the"
    " record, or delete it to let the lane start again from the rows of its tasks. The owner reads"
    " the record again every 30 s"
)


class Readable(Exception):
    """Raised when a lane record that could not be read can be read again."""


class UnreadableLanes:
    """The lanes of a partition that stand still. Report them as incidents, and look for repairs."""

    def __init__(
        self, partition: PartitionKey, store: BacklogStore, events: NodeEvents, clock: Clock
    ) -> None:
        self._partition = partition
        self._store = store
        self._events = events
        self._clock = clock
        self._errors: dict[int, str] = {}
        """Record and error, by priority."""
        self._check_at = math.inf
        """Monotonic seconds from which the records are read again."""

    def __len__(self) -> int:
        return len(self._errors)

    def __contains__(self, priority: int) -> bool:
        return priority in self._errors

    def found(self, errors: dict[int, str]) -> None:
        """Note the records that cannot be read, by priority, with the errors."""
        self._errors = errors
        if errors:
            self._report()

    async def check(self) -> None:
        """Read the records again if it is time. Raise Readable when one of them can be read or was
        deleted."""
        if not self._errors or self._clock.monotonic() < self._check_at:
            return
        try:
            unreadable = await self._store.unreadable(self._partition)
        except StoreUnavailable:
            self._check_at = self._clock.monotonic() + outage_pause()
            return
        if self._errors.keys() - unreadable.keys():
            raise Readable
        self._report()

    def _report(self) -> None:
        self._check_at = self._clock.monotonic() + CHECK_SECONDS
        queue, number = self._partition
        for priority, error in self._errors.items():
            log.error(
                "lane stands still: its record cannot be read",
                extra={"partition": self._partition, "priority": priority, "error": error},
            )
        self._events.on_incidents(
            [
                IncidentReport(
                    kind=IncidentKind.LANE_UNREADABLE,
                    subject=f"{queue}/{number}/{priority}",
                    details=f"cannot read {error}; {_CURE}",
                    since=self._clock.now(),
                    queue=queue,
                )
                for priority, error in self._errors.items()
            ]
        )
