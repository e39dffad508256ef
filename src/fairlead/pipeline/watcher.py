"""The watcher of a store: the detector of anomalies of all its queues, in memory. One elected
worker has it; its successor begins anew and sees the last minute."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import MICROS, Clock, to_datetime
from fairlead.model import INCIDENT_REPORTED, IncidentKind, IncidentReport
from fairlead.pipeline.incidents.detector import ALL, Anomaly, Detector, Observation, Rules
from fairlead.pipeline.incidents.store_observer import StoreObserver
from fairlead.pipeline.settings import load
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Database

AGAIN = round(INCIDENT_REPORTED * MICROS)
"""Microseconds between two reports of an anomaly that goes on."""
KNOWN = 25 * MICROS
"""Longest time between two observations in which the watcher knows what happened. After a longer
one, the store was away, maybe from the workers too."""

_CAUSES = {
    "stall": "tasks wait, and no run begins or ends; see whether the workers of the queue run, and"
    " what holds their slots",
    "flood": "the key submits most tasks of the queue, and many more than usual; limit the key, or"
    " ask its owner",
    "error burst": "more runs fail than succeed; see `fairlead tasks --state ERROR` and the"
    " logs of the workers",
    "node loss": "the node is silent, or runs of it were lost; see its machine and its log",
}


def watcher_of(sql: SqlStore, clock: Clock) -> Watcher:
    """Return the watcher of a store, with the rules of the file that FAIRLEAD_SETTINGS names. Raise
    ConfigurationError for wrong rules."""
    file = os.environ.get("FAIRLEAD_SETTINGS")
    rules = load(Path(file) if file else None).incidents
    return Watcher(sql.database, StoreObserver(sql, SqlHistory(sql.database), clock), rules)


class Watcher:
    """Watch of all queues of a store. One call at a time."""

    def __init__(self, database: Database, observer: StoreObserver, rules: Rules) -> None:
        self._database = database
        self._observer = observer
        self._rules = rules
        self._detectors: dict[str, Detector] = {}
        self._reported: dict[tuple[str, str, str], int] = {}
        """Instant of the last report of each open anomaly, by queue, kind and subject."""

    async def detect(self) -> list[IncidentReport]:
        """Return reports of the anomalies that began, and again of those that go on; one for a lost
        node, whatever queues it serves. Raise StoreUnavailable."""
        found = await self._database.read(self._observer.steps(), together=True)
        reports = {
            (report.kind, report.subject): report
            for each in found
            for report in self._reports(each)
        }
        return list(reports.values())

    def _reports(self, found: Observation) -> Iterator[IncidentReport]:
        if found.queue not in self._detectors:
            rules = self._rules.of(found.queue)
            self._detectors[found.queue] = Detector(rules, found.at, KNOWN)
        detector = self._detectors[found.queue]
        for anomaly in detector.observe(found):
            self._reported.pop((found.queue, anomaly.kind, anomaly.subject), None)
        for anomaly in detector.present:
            name = (found.queue, anomaly.kind, anomaly.subject)
            if found.at - self._reported.get(name, 0) >= AGAIN:
                self._reported[name] = found.at
                yield report_of(found.queue, anomaly)


def report_of(queue: str, anomaly: Anomaly) -> IncidentReport:
    """Return the report of an anomaly to the store."""
    kind = IncidentKind(anomaly.kind.replace(" ", "_"))
    if anomaly.subject == ALL:
        subject, of = queue, f"queue {queue!r}"
    elif kind is IncidentKind.NODE_LOSS:
        subject, of, queue = anomaly.subject, repr(anomaly.subject), ""
    else:
        subject, of = f"{queue}/{anomaly.subject}", f"{anomaly.subject!r} in queue {queue!r}"
    since = to_datetime(anomaly.start).isoformat(timespec="seconds")
    return IncidentReport(
        kind=kind,
        subject=subject,
        details=f"{anomaly.kind} of {of} since {since}: {_CAUSES[anomaly.kind]}",
        since=anomaly.start,
        queue=queue,
    )
