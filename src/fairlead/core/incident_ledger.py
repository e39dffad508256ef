"""Incidents in memory, for stores without tables: which to deliver next, and which are over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from fairlead.clock import MICROS
from fairlead.model import INCIDENT_ENDS, INCIDENT_LINGERS, Incident, IncidentKind, IncidentReport
from fairlead.model.fields import Micros


class LedgerEntry(msgspec.Struct, frozen=True):
    """An incident with its times (microseconds since the epoch)."""

    incident: Incident
    seen_at: Micros
    """Instant of the last report."""
    deliver_at: Micros
    """Earliest next delivery."""


def key_of(incident: Incident | IncidentReport) -> str:
    """Return the key of an incident: the same for each report of one condition."""
    return f"{incident.kind}:{incident.version}:{incident.subject}"


class IncidentLedger:
    """Entries by key. Methods return the keys of the entries that they changed or dropped."""

    def __init__(self, entries: Mapping[str, LedgerEntry]) -> None:
        self.entries = dict(entries)

    def unknown(self, reports: Iterable[IncidentReport]) -> list[IncidentReport]:
        """Return the reports of incidents that the ledger does not have, one of each."""
        found = {key_of(report): report for report in reports}
        return [report for key, report in found.items() if key not in self.entries]

    def report(
        self, reports: Sequence[IncidentReport], ids: Sequence[int], now: int
    ) -> Collection[str]:
        """Add the incidents or renew them; `ids` has a number for each of the `unknown` ones."""
        numbers = iter(ids)
        for report in reports:
            key = key_of(report)
            known = self.entries.get(key)
            if known is None:
                incident = Incident(
                    id=next(numbers),
                    kind=report.kind,
                    subject=report.subject,
                    details=report.details,
                    since=report.since,
                    queue=report.queue,
                    name=report.name,
                    version=report.version,
                    deliveries=0,
                    delivered_at=None,
                )
                self.entries[key] = LedgerEntry(incident, now, now)
            else:
                is_over = known.seen_at < now - round(INCIDENT_ENDS * MICROS)
                since = report.since if is_over else known.incident.since
                incident = msgspec.structs.replace(
                    known.incident, details=report.details, since=since
                )
                self.entries[key] = LedgerEntry(incident, now, known.deliver_at)
        return {key_of(report) for report in reports}

    def claim(self, now: int, until: int, limit: int) -> list[Incident]:
        """Return incidents that are due, ascending by id, and hide them before `until`."""
        due = [
            (entry.deliver_at, entry.incident.id, key)
            for key, entry in self.entries.items()
            if entry.incident.delivered_at is None and entry.deliver_at <= now
        ]
        found = []
        for _, _, key in sorted(due)[:limit]:
            entry = self.entries[key]
            calls = entry.incident.deliveries + 1
            incident = msgspec.structs.replace(entry.incident, deliveries=calls)
            self.entries[key] = LedgerEntry(incident, entry.seen_at, until)
            found.append(incident)
        return sorted(found, key=lambda incident: incident.id)

    def delivered(self, ids: Collection[int], now: int) -> Collection[str]:
        """Mark incidents as delivered."""
        changed = set()
        for key, entry in self.entries.items():
            if entry.incident.id in ids and entry.incident.delivered_at is None:
                incident = msgspec.structs.replace(entry.incident, delivered_at=now)
                self.entries[key] = LedgerEntry(incident, entry.seen_at, entry.deliver_at)
                changed.add(key)
        return changed

    def retry(self, instants: Mapping[int, int]) -> Collection[str]:
        """Make undelivered incidents due at these instants, by id."""
        changed = set()
        for key, entry in self.entries.items():
            if entry.incident.id in instants and entry.incident.delivered_at is None:
                due = instants[entry.incident.id]
                self.entries[key] = LedgerEntry(entry.incident, entry.seen_at, due)
                changed.add(key)
        return changed

    def drop_over(self, now: int) -> Collection[str]:
        """Drop incidents that are over."""
        before = now - round(INCIDENT_LINGERS * MICROS)
        over = [
            key
            for key, entry in self.entries.items()
            if entry.incident.delivered_at is not None and entry.seen_at < before
        ]
        for key in over:
            del self.entries[key]
        return over

    def counts(self, since: int) -> dict[tuple[str, str, str], int]:
        """Return the numbers of the `latest` ones by (kind, queue, name of the task)."""
        return dict(Counter((i.kind.value, i.queue, i.name) for i in self.latest(since)))

    def latest(self, since: int = 0) -> list[Incident]:
        """Return the incidents of the kind `error`, and those that were last reported at `since` or
        later, descending by id."""
        found = [
            entry.incident
            for entry in self.entries.values()
            if entry.seen_at >= since or entry.incident.kind is IncidentKind.ERROR
        ]
        return sorted(found, key=lambda incident: -incident.id)

    def undelivered(self, limit: int) -> list[Incident]:
        """Return undelivered incidents, ascending by id."""
        found = [entry.incident for entry in self.entries.values()]
        waiting = [incident for incident in found if incident.delivered_at is None]
        return sorted(waiting, key=lambda incident: incident.id)[:limit]
