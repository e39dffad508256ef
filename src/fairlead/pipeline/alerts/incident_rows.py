"""Incidents found by alerts, stored in gold.incidents beside those found in the tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from fairlead.clock import to_datetime
from fairlead.pipeline.definitions.incidents import INCIDENTS
from fairlead.pipeline.in_memory import SmallTables
from fairlead.pipeline.incidents.key_minutes import MINUTE
from fairlead.pipeline.incidents.over_history import IncidentWindow
from fairlead.pipeline.incidents.watch import Alert
from fairlead.pipeline.schema import SCHEMA_VERSION

FOUND_BY_ALERTS = "alerts"
"""Value of the column found_by."""

ALERT_ONLY_KINDS = ("stuck", "silence")
"""Kinds that the tables do not show."""


def incident_of(alert: Alert) -> str:
    """Return the id of an incident, the same at its begin and end."""
    return IncidentWindow(
        alert.kind, alert.queue, alert.subject, alert.start // MINUTE, 0
    ).incident_id


def keep(tables: SmallTables, alerts: Sequence[Alert]) -> None:
    """Store alerts, given in the order of their detection, in gold.incidents. A repeated call
    changes nothing. Raise BrokenLake."""
    rows = {incident_of(alert): _row(alert) for alert in alerts}
    if rows:
        made = pa.Table.from_pylist(list(rows.values()), INCIDENTS.arrow())
        days = {f"{row['start_at']:%Y-%m-%d}" for row in rows.values()}
        ids = pa.array(list(rows))
        tables.merge(
            INCIDENTS, made, days, lambda old: pc.invert(pc.is_in(old["incident_id"], ids))
        )


def only_in_alerts(rows: pa.Table, known: datetime) -> pa.Array:
    """Return a mask of the incidents that alerts found and the tables cannot show: those of
    ALERT_ONLY_KINDS, and those from `known` on, where the tables end."""
    is_hidden = pc.or_(
        pc.is_in(rows["kind"], pa.array(ALERT_ONLY_KINDS)),
        pc.greater_equal(rows["start_at"], pa.scalar(known)),
    )
    return pc.and_kleene(pc.equal(rows["found_by"], FOUND_BY_ALERTS), is_hidden)


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
