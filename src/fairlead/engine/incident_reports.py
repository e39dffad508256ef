"""Reports of incidents: collect them from the parts of a node, and write them into the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from fairlead.clock import Clock
from fairlead.engine.lifecycle import SimplePart
from fairlead.errors import StoreUnavailable
from fairlead.model import IncidentReport
from fairlead.ports.incident_store import IncidentStore

log = logging.getLogger("fairlead.incidents")

_PAUSE = 1.0
"""Seconds before a repeated write while the store is unavailable."""

MOST_WAITING = 10_000
"""Reports that wait for the store; further ones are only logged."""


class IncidentReports(SimplePart):
    """Write reports into the store, and then call `on_written`, which begins their delivery."""

    def __init__(self, store: IncidentStore, clock: Clock, on_written: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._on_written = on_written
        self._waiting: dict[tuple[str, str, int], IncidentReport] = {}
        self._work = asyncio.Event()

    def add(self, reports: Sequence[IncidentReport]) -> None:
        """Take reports; a second report of one incident replaces the first."""
        for report in reports:
            key = (report.kind, report.subject, report.version)
            if len(self._waiting) < MOST_WAITING or key in self._waiting:
                self._waiting[key] = report
            else:
                log.error(
                    "incident not recorded: too many wait for the store",
                    extra={"kind": report.kind.value, "subject": report.subject},
                )
        self._work.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            most = MOST_WAITING
            while self._waiting:
                reports = list(self._waiting.values())[:most]
                try:
                    await self._store.report(reports, self._clock.now())
                except StoreUnavailable as error:
                    log.warning(
                        "incidents wait while the store is unavailable", extra={"error": str(error)}
                    )
                    await self._clock.sleep(_PAUSE)
                    continue
                except Exception:
                    if len(reports) > 1:  # find the report that the store cannot take
                        most = len(reports) // 2
                        continue
                    fields = {"kind": reports[0].kind.value, "subject": reports[0].subject}
                    log.exception("incident cannot be recorded", extra=fields)
                for report in reports:
                    key = (report.kind, report.subject, report.version)
                    if self._waiting.get(key) is report:
                        del self._waiting[key]
                self._on_written()
