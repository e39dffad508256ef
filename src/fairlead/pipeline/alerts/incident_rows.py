"""Incidents found by alerts, stored in gold.incidents beside those found in the tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from fairlead.clock import to_datetime
from fairlead.pipeline.definitions.incidents import INCIDENTS
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.in_memory import SmallTables
from fairlead.pipeline.incidents.key_minutes import MINUTE
from fairlead.pipeline.incidents.over_history import IncidentWindow
from fairlead.pipeline.incidents.watch import Alert
from fairlead.pipeline.schema import SCHEMA_VERSION

FOUND_BY_ALERTS = "alerts"
"""Value of the column found_by."""

ALERT_ONLY_KINDS = ("stuck", "silence")
"""Kinds that the tables do not show."""

_TRIES = 10


def incident_of(alert: Alert) -> str:
    """Return the id of an incident, the same at its begin and end."""
    return IncidentWindow(
        alert.kind, alert.queue, alert.subject, alert.start // MINUTE, 0
    ).incident_id


def keep(tables: SmallTables, alerts: Sequence[Alert]) -> None:
    """Store alerts, given in the order of their detection, in gold.incidents. A repeated call
    changes nothing. Raise BrokenLake."""
    rows = {incident_of(alert): _row(alert) for alert in alerts}
    if not rows:
        return
    days = {f"{row['start_at']:%Y-%m-%d}" for row in rows.values()}
    for left in reversed(range(_TRIES)):
        try:
            _merge(tables, rows, days)
            return
        except BrokenLake:
            if not left:
                raise  # another job changes these days again and again


def incidents_of_alerts(tables: SmallTables, days: Collection[str], known: datetime) -> pa.Table:
    """Return the incidents of these days that alerts found and the tables cannot show: incidents of
    ALERT_ONLY_KINDS, and incidents from `known` on, where the tables end."""
    rows = _of(tables, days)
    is_ours = pc.and_kleene(
        pc.equal(rows["found_by"], FOUND_BY_ALERTS),
        pc.or_(
            pc.is_in(rows["kind"], pa.array(ALERT_ONLY_KINDS)),
            pc.greater_equal(rows["start_at"], pa.scalar(known)),
        ),
    )
    return rows.filter(is_ours)


def _merge(tables: SmallTables, rows: dict[str, dict[str, object]], days: Collection[str]) -> None:
    before = _of(tables, days)
    others = before.filter(pc.invert(pc.is_in(before["incident_id"], pa.array(list(rows)))))
    updated = pa.Table.from_pylist(list(rows.values()), INCIDENTS.arrow())
    tables.replace(INCIDENTS, pa.concat_tables([others, updated]), days)


def _of(tables: SmallTables, days: Collection[str]) -> pa.Table:
    columns = INCIDENTS.arrow().names
    return tables.load(INCIDENTS, sorted(set(days) & set(tables.parts(INCIDENTS))), columns)


def _row(alert: Alert) -> dict[str, object]:
    return {
        "incident_id": incident_of(alert),
        "kind": alert.kind,
        "queue": alert.queue,
        "subject": alert.subject,
        "start_at": to_datetime(alert.start),
        "end_at": to_datetime(max(alert.start, alert.at)),
        "is_over": alert.is_over,
        "keys_hit": int(alert.kind == "flood"),
        "tasks_delayed": alert.tasks,
        "extra_wait_us": 0,
        "found_by": FOUND_BY_ALERTS,
        "schema_version": SCHEMA_VERSION,
    }
