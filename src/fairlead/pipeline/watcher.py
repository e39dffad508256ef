"""The watcher of a store: the detector of incidents over the heartbeats of its queues, in memory.
One elected worker has it; its successor begins anew and sees the last minute."""

from __future__ import annotations

import os
from pathlib import Path

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import Clock, to_datetime
from fairlead.errors import NotSupported
from fairlead.model import IncidentKind, IncidentReport
from fairlead.pipeline.incidents.heartbeat import Heartbeat
from fairlead.pipeline.incidents.heartbeats import StoreHeartbeats
from fairlead.pipeline.incidents.watch import (
    ALL,
    MINUTE,
    Alert,
    KeysInMemory,
    Rules,
    Watched,
    observe,
)
from fairlead.pipeline.settings import load
from fairlead.ports.statements import Database
from fairlead.ports.task_store import TaskStore

MOST_BYTES = 64_000_000
"""Size of the table of unfinished tasks on PostgreSQL above which running tasks are not counted,
and any queue is taken to run one: a stall is then reported after `standstill_seconds`."""

AGAIN = 5 * MINUTE
"""Microseconds between two reports of an open incident, which keep it open in the store."""

_CAUSES = {
    "stall": "tasks wait, and no run begins or ends; see whether the workers of the queue run, and"
    " what holds their slots",
    "flood": "the key submits most tasks of the queue, and many more than usual; limit the key, or"
    " ask its owner",
    "error burst": "more runs fail than succeed; see `fairlead tasks list --state ERROR` and the"
    " logs of the workers",
    "node loss": "the node is silent, or runs of it were lost; see its machine and its log",
}


def watcher_of(store: TaskStore, clock: Clock) -> Watcher | None:
    """Return the watcher of a store with a history in SQL, with the rules of the file that
    FAIRLEAD_SETTINGS names; None for other stores. Raise ConfigurationError for wrong rules."""
    try:
        sql = store.as_sql()
    except NotSupported:
        return None
    file = os.environ.get("FAIRLEAD_SETTINGS")
    rules = load(Path(file) if file else None).alerts
    heartbeats = StoreHeartbeats(
        sql, SqlHistory(sql.database), clock, every=0, most_bytes=MOST_BYTES
    )
    return Watcher(sql.database, heartbeats, rules)


class Watcher:
    """Watch of all queues of a store. One call at a time."""

    def __init__(self, database: Database, heartbeats: StoreHeartbeats, rules: Rules) -> None:
        self._database = database
        self._heartbeats = heartbeats
        self._rules = rules
        self._queues: dict[str, tuple[Watched, KeysInMemory]] = {}
        self._open: dict[tuple[str, str, str], tuple[Alert, int]] = {}
        """Open alerts by kind, queue and subject, each with the instant of its last report."""

    async def look(self) -> list[IncidentReport]:
        """Return reports of the incidents that began, and of those that were open for a while.
        Raise StoreUnavailable."""
        reports = []
        for heartbeat in await self._database.read(self._heartbeats.steps()):
            for alert in self._observe(heartbeat):
                name = (alert.kind, alert.queue, alert.subject)
                if alert.is_over:
                    self._open.pop(name, None)
                elif alert.kind in _CAUSES:
                    self._open[name] = (alert, 0)
            for name, (alert, reported_at) in self._open.items():
                if alert.queue == heartbeat.queue and heartbeat.at - reported_at >= AGAIN:
                    self._open[name] = (alert, heartbeat.at)
                    reports.append(report_of(alert))
        return reports

    def _observe(self, heartbeat: Heartbeat) -> list[Alert]:
        if heartbeat.queue not in self._queues:
            watched = Watched(since=heartbeat.at, relay=heartbeat.relay)
            self._queues[heartbeat.queue] = watched, KeysInMemory()
        watched, keys = self._queues[heartbeat.queue]
        rules = self._rules.of(heartbeat.queue)
        alerts = observe(watched, [heartbeat], keys, rules)
        keys.drop(watched.last // MINUTE - round(rules.forget_seconds / 60))
        return alerts


def report_of(alert: Alert) -> IncidentReport:
    """Return the report of an alert to the store."""
    is_whole = alert.subject == ALL
    of = f"queue {alert.queue!r}" if is_whole else f"{alert.subject!r} in queue {alert.queue!r}"
    since = to_datetime(alert.start).isoformat(timespec="seconds")
    return IncidentReport(
        kind=IncidentKind(alert.kind.replace(" ", "_")),
        subject=alert.queue if is_whole else f"{alert.queue}/{alert.subject}",
        details=f"{alert.kind} of {of} since {since}: {_CAUSES[alert.kind]}",
        since=alert.start,
        queue=alert.queue,
    )
