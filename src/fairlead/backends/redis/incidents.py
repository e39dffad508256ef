"""The incident store on Redis alone: a hash of all incidents beside the dead letters, with an index
by id and one by the time of the next delivery."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from importlib import resources
from typing import Any

import msgspec

from fairlead.backends.redis.dead_letters import DeadLetters
from fairlead.backends.redis.registry import RedisSteps
from fairlead.backends.redis.sharded.steps import RedisCall
from fairlead.core.incident_ledger import IncidentLedger, LedgerEntry, error_of, key_of
from fairlead.model import Incident, IncidentKind, IncidentReport, TaskRecord
from fairlead.model.reading import json_reader
from fairlead.ports.incident_store import IncidentCounts
from fairlead.ports.statements import Database

PAGE = 100
"""Incidents that one command reads or writes, at most."""

_KEEP = resources.files(__package__).joinpath("keep_incidents.lua").read_text()
_encode = msgspec.json.Encoder().encode
_read = json_reader(LedgerEntry)
log = logging.getLogger("fairlead.redis")


class RedisIncidents:
    """A `fairlead.ports.incident_store.IncidentStore` on Redis. Each call reads the incidents that
    it needs, a page at a time.

    A task in ERROR becomes an incident with the first sweep that finds its dead letter. Calls are
    not atomic: two nodes that are both elected for a moment may deliver an incident twice.
    """

    def __init__(self, prefix: str, database: Database, dead_letters: DeadLetters) -> None:
        own = f"{{{prefix}}}:incidents"
        self._hash, self._ids, self._due, self._counts = self._keys = (
            f"{own}:entries",
            f"{own}:ids",
            f"{own}:due",
            f"{own}:counts",
        )
        self._swept = f"{own}:swept"
        """Key of a hash: position of the last dead letter that became an incident, by lane."""
        self._last_id = f"{{{prefix}}}:incident"
        self._database = database
        self._dead_letters = dead_letters

    async def report(self, reports: Sequence[IncidentReport], now: int) -> None:
        await self._database.run_async(self._report(reports, now))

    def _report(self, reports: Sequence[IncidentReport], now: int) -> RedisSteps[None]:
        for start in range(0, len(reports), PAGE):
            piece = reports[start : start + PAGE]
            ledger = yield from self._read({key_of(report) for report in piece})
            yield from self._add(ledger, piece, now)

    async def claim(self, now: int, until: int, limit: int) -> list[Incident]:
        found: list[Incident] = await self._database.run_async(self._claim(now, until, limit))
        return found

    def _claim(self, now: int, until: int, limit: int) -> RedisSteps[list[Incident]]:
        due = yield RedisCall(("ZRANGEBYSCORE", self._due, "-inf", now, "LIMIT", 0, limit))
        if not due:
            return []
        ledger = yield from self._read(map(bytes.decode, due))
        before = dict(ledger.entries)
        found = ledger.claim(now, until, limit)
        tasks = yield from self._tasks(found)
        changed = {key_of(incident) for incident in found} | set(ledger.drop_over(now, tasks))
        yield from self._write(ledger, changed, before)
        return [
            msgspec.structs.replace(incident, task=tasks.get((incident.subject, incident.version)))
            for incident in found
            if key_of(incident) in ledger.entries
        ]

    async def delivered(self, ids: Sequence[int], now: int) -> None:
        await self._database.run_async(self._delivered(ids, now))

    def _delivered(self, ids: Sequence[int], now: int) -> RedisSteps[None]:
        ledger = yield from self._with_ids(ids)
        yield from self._write(ledger, ledger.delivered(set(ids), now))

    async def retry(self, retries: Sequence[tuple[int, int]]) -> None:
        await self._database.run_async(self._retry(retries))

    def _retry(self, retries: Sequence[tuple[int, int]]) -> RedisSteps[None]:
        ledger = yield from self._with_ids([id for id, _ in retries])
        yield from self._write(ledger, ledger.retry(dict(retries)))

    async def sweep(self, after: int, now: int, limit: int) -> int:
        last: int = await self._database.run_async(self._sweep(after, now, limit))
        return last

    def _sweep(self, after: int, now: int, limit: int) -> RedisSteps[int]:
        yield from self._report_new(now)
        keys = yield RedisCall(("ZRANGEBYSCORE", self._ids, f"({after}", "+inf", "LIMIT", 0, limit))
        ledger = yield from self._read(map(bytes.decode, keys))
        before = dict(ledger.entries)
        tasks = yield from self._tasks(entry.incident for entry in before.values())
        yield from self._write(ledger, ledger.drop_over(now, tasks), before)
        if len(keys) < limit:
            return 0
        return max((entry.incident.id for entry in before.values()), default=0)

    def _report_new(self, now: int) -> RedisSteps[None]:
        """Make incidents of the dead letters that came since the last sweep."""
        swept = yield RedisCall(("HGETALL", self._swept))
        for lane in (yield from self._dead_letters.lanes()):
            name = f"{lane.queue}/{lane.priority}"
            position = swept.get(name.encode(), b"").decode()
            while True:
                position, tasks = yield from self._dead_letters.page(lane, position)
                if not position:
                    break
                reports = [error_of(task, now) for task in tasks]
                ledger = yield from self._read({key_of(report) for report in reports})
                yield from self._add(ledger, ledger.unknown(reports), now)
                yield RedisCall(("HSET", self._swept, name, position))

    async def counts(self) -> IncidentCounts:
        found: dict[bytes, bytes] = await self._database.read(self._count())
        return {
            msgspec.json.decode(field, type=tuple[str, str, str]): int(count)
            for field, count in found.items()
        }

    def _count(self) -> RedisSteps[dict[bytes, bytes]]:
        found: dict[bytes, bytes] = yield RedisCall(("HGETALL", self._counts))
        return found

    def latest(self, below: int | None, limit: int) -> RedisSteps[list[Incident]]:
        most = "+inf" if below is None else f"({below}"
        keys = yield RedisCall(("ZREVRANGEBYSCORE", self._ids, most, "-inf", "LIMIT", 0, limit))
        return (yield from self._read(map(bytes.decode, keys))).latest()

    def undelivered(self, limit: int) -> RedisSteps[list[Incident]]:
        wanted = min(limit, int((yield RedisCall(("ZCARD", self._due)))))
        found: list[Incident] = []
        start = 0
        while len(found) < wanted:
            keys = yield RedisCall(("ZRANGE", self._ids, start, start + PAGE - 1))
            ledger = yield from self._read(map(bytes.decode, keys))
            found += ledger.undelivered(wanted - len(found))
            start += PAGE
            if len(keys) < PAGE:
                break
        return found

    def open(self, kinds: Sequence[IncidentKind], limit: int) -> RedisSteps[list[Incident]]:
        """Read at most `limit` incidents of all kinds."""
        found: list[Incident] = []
        for start in range(0, limit, PAGE):
            keys = yield RedisCall(("ZREVRANGE", self._ids, start, min(start + PAGE, limit) - 1))
            ledger = yield from self._read(map(bytes.decode, keys))
            found += [entry.incident for entry in ledger.entries.values()]
            if len(keys) < PAGE:
                break
        wanted = [incident for incident in found if incident.kind in kinds]
        return sorted(wanted, key=lambda incident: -incident.id)

    # steps ----------------------------------------------------------------------------------------

    def _tasks(
        self, incidents: Iterable[Incident]
    ) -> RedisSteps[dict[tuple[str, int], TaskRecord]]:
        """Return the tasks of these incidents that are in ERROR, by id and version."""
        wanted = [
            (incident.queue, incident.subject)
            for incident in incidents
            if incident.kind is IncidentKind.ERROR
        ]
        return (yield from self._dead_letters.records(wanted))

    def _read(self, keys: Iterable[str]) -> RedisSteps[IncidentLedger]:
        """Return a ledger of those of the incidents that the store has."""
        wanted = list(keys)
        found: dict[str, LedgerEntry] = {}
        for start in range(0, len(wanted), PAGE):
            piece = wanted[start : start + PAGE]
            values = yield RedisCall(("HMGET", self._hash, *piece))
            entries = (_readable(value) for value in values if value is not None)
            found.update({key_of(entry.incident): entry for entry in entries if entry})
        return IncidentLedger(found)

    def _with_ids(self, ids: Iterable[int]) -> RedisSteps[IncidentLedger]:
        keys: list[str] = []
        for id in ids:
            found = yield RedisCall(("ZRANGEBYSCORE", self._ids, id, id))
            keys += map(bytes.decode, found)
        return (yield from self._read(keys))

    def _add(
        self, ledger: IncidentLedger, reports: Sequence[IncidentReport], now: int
    ) -> RedisSteps[None]:
        count = len(ledger.unknown(reports))
        last = int((yield RedisCall(("INCRBY", self._last_id, count)))) if count else 0
        ids = range(last - count + 1, last + 1)
        yield from self._write(ledger, ledger.report(reports, ids, now))

    def _write(
        self,
        ledger: IncidentLedger,
        keys: Collection[str],
        before: dict[str, LedgerEntry] | None = None,
    ) -> RedisSteps[None]:
        """Write the entries of these keys, and remove those that the ledger has dropped. `before`:
        the entries before any was dropped."""
        changes: list[Any] = []
        for key in keys:
            kept = ledger.entries.get(key)
            entry = kept or (before or {})[key]
            incident = entry.incident
            counted = _encode((incident.kind.value, incident.queue, incident.name))
            at = entry.deliver_at if incident.delivered_at is None else ""
            changes += (key, counted, incident.id, at, _encode(kept) if kept else "")
        for start in range(0, len(changes), 5 * PAGE):
            piece = changes[start : start + 5 * PAGE]
            yield RedisCall(("EVAL", _KEEP, len(self._keys), *self._keys, *piece))


def _readable(entry: bytes) -> LedgerEntry | None:
    """Return an entry; None if it cannot be read. A condition that lasts is reported again."""
    try:
        return _read(entry)
    except msgspec.DecodeError as error:
        log.error("an incident cannot be read", extra={"error": str(error)})
        return None
