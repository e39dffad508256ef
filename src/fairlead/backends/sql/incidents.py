"""The incident store over SQL, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead.backends.sql.rows import batch, canonical, task_record
from fairlead.backends.sql.sql_file import load, package_of
from fairlead.clock import MICROS
from fairlead.model import (
    ABOUT_TASKS,
    INCIDENT_ENDS,
    INCIDENT_LINGERS,
    Incident,
    IncidentKind,
    IncidentReport,
)
from fairlead.ports.incident_store import IncidentCounts
from fairlead.ports.statements import Row, SqlDatabase, Statement, Steps

_ABOVE_ALL = (1 << 63) - 1


class SqlIncidents:
    """A `fairlead.ports.incident_store.IncidentStore` in the database of a task store."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        self._sql = load("incidents.sql", package_of(database))

    # in transactions of the task store ------------------------------------------------------------

    def note_errors(self, task_ids: Sequence[str], now: int) -> Steps[None]:
        """Record that the transaction moved these tasks to ERROR."""
        if task_ids:
            yield self._statement("note_errors", batch(task_ids), now)

    def drop_errors(self, tasks: Sequence[tuple[str, int]]) -> Steps[None]:
        """Drop the incidents of tasks that leave ERROR, given as (id, version)."""
        if tasks:
            yield self._statement("drop_errors", batch(tasks))

    # for nodes ------------------------------------------------------------------------------------

    async def report(self, reports: Sequence[IncidentReport], now: int) -> None:
        # One row per incident: PostgreSQL refuses to update a row twice in one statement.
        distinct = {(r.kind, r.subject, r.version): r for r in reports}
        rows = [
            (r.kind, r.subject, r.version, r.queue, r.name, r.since, r.details)
            for _, r in sorted(distinct.items())
        ]
        if rows:
            await self._write("report", batch(rows), now, now - round(INCIDENT_ENDS * MICROS))

    async def claim(self, now: int, until: int, limit: int) -> list[Incident]:
        return await self._database.run_async(self._claim(now, until, limit))

    def _claim(self, now: int, until: int, limit: int) -> Steps[list[Incident]]:
        rows = yield self._statement("claim", now, until, limit)
        found = sorted((_incident(row) for row in rows), key=lambda incident: incident.id)
        task_ids = {canonical(i.subject) for i in found if i.kind in ABOUT_TASKS}
        tasks = {}
        if task_ids:
            rows = yield self._statement("tasks_of", batch(sorted(task_ids)))
            tasks = {row[0]: task_record(row) for row in rows}
        found = [msgspec.structs.replace(i, task=tasks.get(i.subject)) for i in found]
        over = [incident for incident in found if _is_settled(incident)]
        if over:
            yield self._statement("delete", batch([incident.id for incident in over]))
        return [incident for incident in found if not _is_settled(incident)]

    async def delivered(self, ids: Sequence[int], now: int) -> None:
        # Need not be durable: after a power cut the incident is delivered a second time.
        steps = self._one("delivered", batch(ids), now)
        await self._database.run_async(steps, durable=False)

    async def retry(self, retries: Sequence[tuple[int, int]]) -> None:
        await self._write("retry", batch(retries))

    async def sweep(self, after: int, now: int, limit: int) -> int:
        return await self._database.run_async(self._sweep(after, now, limit), durable=False)

    def _sweep(self, after: int, now: int, limit: int) -> Steps[int]:
        over_before = now - round(INCIDENT_LINGERS * MICROS)
        page = [row[0] for row in (yield self._statement("page", after, limit))]
        if page:
            yield self._statement("sweep", batch(page), over_before)
        return page[-1] if len(page) == limit else 0

    async def counts(self, since: int = 0) -> IncidentCounts:
        rows = await self._database.read(self._one("counts", since))
        return {(kind, queue, name): count for kind, queue, name, count in rows}

    def latest(self, below: int | None, limit: int, since: int = 0) -> Steps[list[Incident]]:
        bound = _ABOVE_ALL if below is None else below
        return [_incident(row) for row in (yield self._statement("latest", bound, limit, since))]

    def undelivered(self, limit: int) -> Steps[list[Incident]]:
        return [_incident(row) for row in (yield self._statement("undelivered", limit))]

    def open(
        self, kinds: Sequence[IncidentKind], limit: int, since: int = 0
    ) -> Steps[list[Incident]]:
        rows = yield self._statement("open", batch(kinds), limit, since)
        return [_incident(row) for row in rows]

    async def _write(self, name: str, *params: Any) -> None:
        await self._database.run_async(self._one(name, *params))

    def _one(self, name: str, *params: Any) -> Steps[Sequence[Row]]:
        return (yield self._statement(name, *params))

    def _statement(self, name: str, *params: Any) -> Statement:
        return Statement(self._sql[name], params)


def _incident(row: Row) -> Incident:
    number, kind, *rest = row
    return Incident(number, IncidentKind(kind), *rest)


def _is_settled(incident: Incident) -> bool:
    """Return whether a person has settled the incident before its delivery."""
    return incident.kind is IncidentKind.ERROR and (
        incident.task is None or incident.task.version != incident.version
    )
