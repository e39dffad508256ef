"""The incident store on Redis alone: a hash of all incidents beside the dead letters."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from fairlead.backends.redis.dead_letters import DeadLetters
from fairlead.backends.redis.registry import RedisSteps
from fairlead.backends.redis.sharded.steps import RedisCall
from fairlead.core.incident_ledger import IncidentLedger, LedgerEntry, error_of, key_of
from fairlead.model import Incident, IncidentReport
from fairlead.model.reading import json_reader
from fairlead.ports.incident_store import IncidentCounts
from fairlead.ports.statements import Database

_encode = msgspec.json.Encoder().encode
_read = json_reader(LedgerEntry)
log = logging.getLogger("fairlead.redis")


class RedisIncidents:
    """A `fairlead.ports.incident_store.IncidentStore` on Redis. Each call reads all incidents.

    A task in ERROR becomes an incident with the first sweep that finds its dead letter. Calls are
    not atomic: two nodes that are both elected for a moment may deliver an incident twice.
    """

    def __init__(self, prefix: str, database: Database, dead_letters: DeadLetters) -> None:
        self._hash = f"{{{prefix}}}:incidents"
        self._last_id = f"{{{prefix}}}:incident"
        self._database = database
        self._dead_letters = dead_letters

    async def report(self, reports: Sequence[IncidentReport], now: int) -> None:
        await self._database.run_async(self._report(reports, now))

    def _report(self, reports: Sequence[IncidentReport], now: int) -> RedisSteps[None]:
        ledger = yield from self._read()
        yield from self._add(ledger, reports, now)

    async def claim(self, now: int, until: int, limit: int) -> list[Incident]:
        found: list[Incident] = await self._database.run_async(self._claim(now, until, limit))
        return found

    def _claim(self, now: int, until: int, limit: int) -> RedisSteps[list[Incident]]:
        ledger = yield from self._read()
        found = ledger.claim(now, until, limit)
        if not found:
            return []
        letters = yield from self._dead_letters.all()
        tasks = {(letter.task.id, letter.task.version): letter.task for letter in letters}
        changed = {key_of(incident) for incident in found} | set(ledger.drop_over(now, tasks))
        yield from self._write(ledger, changed)
        return [
            msgspec.structs.replace(incident, task=tasks.get((incident.subject, incident.version)))
            for incident in found
            if key_of(incident) in ledger.entries
        ]

    async def delivered(self, ids: Sequence[int], now: int) -> None:
        await self._database.run_async(self._delivered(ids, now))

    def _delivered(self, ids: Sequence[int], now: int) -> RedisSteps[None]:
        ledger = yield from self._read()
        yield from self._write(ledger, ledger.delivered(set(ids), now))

    async def retry(self, retries: Sequence[tuple[int, int]]) -> None:
        await self._database.run_async(self._retry(retries))

    def _retry(self, retries: Sequence[tuple[int, int]]) -> RedisSteps[None]:
        ledger = yield from self._read()
        yield from self._write(ledger, ledger.retry(dict(retries)))

    async def sweep(self, after: int, now: int, limit: int) -> int:
        await self._database.run_async(self._sweep(now))
        return 0

    def _sweep(self, now: int) -> RedisSteps[None]:
        ledger = yield from self._read()
        tasks = [letter.task for letter in (yield from self._dead_letters.all())]
        reports = [error_of(task, now) for task in tasks]
        yield from self._add(ledger, ledger.unknown(reports), now)
        in_error = {(task.id, task.version) for task in tasks}
        yield from self._write(ledger, ledger.drop_over(now, in_error))

    async def counts(self) -> IncidentCounts:
        ledger: IncidentLedger = await self._database.read(self._read())
        return ledger.counts()

    def undelivered(self, limit: int) -> RedisSteps[list[Incident]]:
        return (yield from self._read()).undelivered(limit)

    # steps ----------------------------------------------------------------------------------------

    def _read(self) -> RedisSteps[IncidentLedger]:
        found: dict[bytes, bytes] = yield RedisCall(("HGETALL", self._hash))
        entries = (_readable(value) for value in found.values())
        return IncidentLedger({key_of(entry.incident): entry for entry in entries if entry})

    def _add(
        self, ledger: IncidentLedger, reports: Sequence[IncidentReport], now: int
    ) -> RedisSteps[None]:
        count = len(ledger.unknown(reports))
        last = int((yield RedisCall(("INCRBY", self._last_id, count)))) if count else 0
        ids = range(last - count + 1, last + 1)
        yield from self._write(ledger, ledger.report(reports, ids, now))

    def _write(self, ledger: IncidentLedger, keys: Collection[str]) -> RedisSteps[None]:
        """Write the entries of these keys, and remove those that the ledger has dropped."""
        kept: list[Any] = []
        for key in keys:
            if key in ledger.entries:
                kept += [key, _encode(ledger.entries[key])]
        if kept:
            yield RedisCall(("HSET", self._hash, *kept))
        if dropped := [key for key in keys if key not in ledger.entries]:
            yield RedisCall(("HDEL", self._hash, *dropped))


def _readable(entry: bytes) -> LedgerEntry | None:
    """Return an entry; None if it cannot be read. A condition that lasts is reported again."""
    try:
        return _read(entry)
    except msgspec.DecodeError as error:
        log.error("an incident cannot be read", extra={"error": str(error)})
        return None
