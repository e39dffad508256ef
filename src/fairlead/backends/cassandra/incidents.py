"""The incident store of an application without a SQL database: one small table, read whole by each
call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

import msgspec

from fairlead.backends.cassandra.database import APP
from fairlead.core.incident_ledger import IncidentLedger, LedgerEntry, key_of
from fairlead.model import Incident, IncidentKind, IncidentReport
from fairlead.model.reading import json_reader
from fairlead.ports.incident_store import IncidentCounts
from fairlead.ports.statements import Database, Statement, Steps

_encode = msgspec.json.encode
_read = json_reader(LedgerEntry)
log = logging.getLogger("fairlead.cassandra")


class CassandraIncidents:
    """A `fairlead.ports.incident_store.IncidentStore` on Cassandra, without incidents of tasks in
    ERROR, which ordered queues do not have.

    Calls are not atomic: two nodes that are both elected for a moment may deliver an incident
    twice.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def report(self, reports: Sequence[IncidentReport], now: int) -> None:
        def add(ledger: IncidentLedger) -> Collection[str]:
            known = [entry.incident.id for entry in ledger.entries.values()]
            # The time of the first report, so that ids ascend and two nodes seldom give the same.
            first = max([now, *(id + 1 for id in known)])
            count = len(ledger.unknown(reports))
            return ledger.report(reports, range(first, first + count), now)

        await self._database.run_async(_changed(add))

    async def claim(self, now: int, until: int, limit: int) -> list[Incident]:
        found: list[Incident] = []

        def claim(ledger: IncidentLedger) -> Collection[str]:
            found.extend(ledger.claim(now, until, limit))
            return {*map(key_of, found), *ledger.drop_over(now)}

        await self._database.run_async(_changed(claim))
        return found

    async def delivered(self, ids: Sequence[int], now: int) -> None:
        await self._database.run_async(_changed(lambda ledger: ledger.delivered(set(ids), now)))

    async def retry(self, retries: Sequence[tuple[int, int]]) -> None:
        await self._database.run_async(_changed(lambda ledger: ledger.retry(dict(retries))))

    async def sweep(self, after: int, now: int, limit: int) -> int:
        """Drop all incidents that are over, at once."""
        await self._database.run_async(_changed(lambda ledger: ledger.drop_over(now)))
        return 0

    async def counts(self, since: int = 0) -> IncidentCounts:
        return (await self._database.read(_ledger())).counts(since)

    def latest(self, below: int | None, limit: int, since: int = 0) -> Steps[list[Incident]]:
        found = (yield from _ledger()).latest(since)
        return [each for each in found if below is None or each.id < below][:limit]

    def open(
        self, kinds: Sequence[IncidentKind], limit: int, since: int = 0
    ) -> Steps[list[Incident]]:
        found = (yield from _ledger()).latest(since)
        return [each for each in found if each.kind in kinds][:limit]

    def undelivered(self, limit: int) -> Steps[list[Incident]]:
        return (yield from _ledger()).undelivered(limit)


def _changed(change: Callable[[IncidentLedger], Collection[str]]) -> Steps[None]:
    """Change the ledger, and write the entries of the keys that `change` returns."""
    ledger = yield from _ledger()
    for key in change(ledger):
        entry = ledger.entries.get(key)
        if entry is None:
            yield Statement("drop_incident", (APP, key))
        else:
            yield Statement("keep_incident", (APP, key, _encode(entry).decode()))


def _ledger() -> Steps[IncidentLedger]:
    entries = {}
    for key, text in (yield Statement("incidents", (APP,))):
        try:
            entries[key] = _read(text or "")
        except msgspec.DecodeError as error:  # a condition that lasts is reported again
            log.error("an incident cannot be read", extra={"error": str(error)})
    return IncidentLedger(entries)
