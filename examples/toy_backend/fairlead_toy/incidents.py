"""The incidents of the toy store, in memory. `claim` and `sweep` first read the tasks in ERROR."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from fairlead.core.incident_ledger import IncidentLedger, error_of
from fairlead.model import Incident, IncidentKind, IncidentReport, TaskRecord
from fairlead.ports.incident_store import IncidentCounts
from fairlead.ports.statements import Steps


class ToyIncidents:
    """A `fairlead.ports.incident_store.IncidentStore` in memory."""

    def __init__(self, in_error: Callable[[], list[TaskRecord]]) -> None:
        self._in_error = in_error
        self._ledger = IncidentLedger()
        self._last_id = 0

    async def report(self, reports: Sequence[IncidentReport], now: int) -> None:
        count = len(self._ledger.unknown(reports))
        ids = range(self._last_id + 1, self._last_id + count + 1)
        self._last_id += count
        self._ledger.report(reports, ids, now)

    async def claim(self, now: int, until: int, limit: int) -> list[Incident]:
        tasks = await self._update(now)
        return [
            msgspec.structs.replace(incident, task=tasks.get(incident.subject))
            if incident.kind is IncidentKind.ERROR
            else incident
            for incident in self._ledger.claim(now, until, limit)
        ]

    async def delivered(self, ids: Sequence[int], now: int) -> None:
        self._ledger.delivered(set(ids), now)

    async def retry(self, retries: Sequence[tuple[int, int]]) -> None:
        self._ledger.retry(dict(retries))

    async def sweep(self, after: int, now: int, limit: int) -> int:
        await self._update(now)
        return 0

    async def counts(self) -> IncidentCounts:
        return self._ledger.counts()

    def open(self, kinds: Sequence[IncidentKind], limit: int) -> Steps[list[Incident]]:
        found = [entry.incident for entry in self._ledger.entries.values()]
        wanted = [incident for incident in found if incident.kind in kinds]
        return sorted(wanted, key=lambda incident: -incident.id)[:limit]
        yield

    def undelivered(self, limit: int) -> Steps[list[Incident]]:
        return self._ledger.undelivered(limit)
        yield

    async def _update(self, now: int) -> dict[str, TaskRecord]:
        tasks = {task.id: task for task in self._in_error()}
        reports = [error_of(task, now) for task in tasks.values()]
        await self.report(self._ledger.unknown(reports), now)
        self._ledger.drop_over(now, {(task.id, task.version) for task in tasks.values()})
        return tasks
