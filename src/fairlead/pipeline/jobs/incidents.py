"""Rows of gold.incidents: those that alerts find, and those of the job `incidents`, which finds the
incidents of some days in the tables. Neither needs Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from fairlead.backends.sql.sql_file import load
from fairlead.clock import Clock, to_datetime, to_micros
from fairlead.errors import ConfigurationError
from fairlead.pipeline.definitions.backlog import BACKLOG
from fairlead.pipeline.definitions.incidents import INCIDENTS
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.in_memory import SmallTables
from fairlead.pipeline.incidents.over_history import (
    DAY_MINUTES,
    IncidentWindow,
    Minute,
    incident_id,
    incidents_from,
)
from fairlead.pipeline.incidents.watch import MINUTE, Alert, Rules
from fairlead.pipeline.parts import dates_of, hours_between, micros_of
from fairlead.pipeline.runs import OnRows, recorded
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.warehouse import Warehouse

BY_DEFAULT = 7
"""Days searched by default, up to the last one in the tables."""

FOUND_BY_ALERTS = "alerts"
"""Value of the column found_by."""

ALERT_ONLY_KINDS = ("stuck", "silence")
"""Kinds that the tables do not show."""

Queues = dict[str, dict[int, Minute]]

_STATEMENTS = load("incidents.sql", __package__)
_EVIDENCE = {"error burst": "keys_failed", "node loss": "keys_lost"}
"""Statement that counts the keys that an incident has hit; the default is keys_waiting."""


class IncidentRow(msgspec.Struct, frozen=True):
    """Row of gold.incidents."""

    incident_id: str
    kind: str
    queue: str
    subject: str
    start_at: datetime
    end_at: datetime
    is_over: bool
    keys_hit: int
    tasks_delayed: int
    extra_wait_us: int


def incidents(
    lake: Warehouse,
    tables: SmallTables,
    clock: Clock,
    rules: Rules,
    since: datetime | None = None,
    until: datetime | None = None,
    on_rows: OnRows = lambda table, rows: None,
) -> list[IncidentRow]:
    """Find the incidents that began on the days from `since` to `until`, in order, and replace the
    rows of these days in gold.incidents.

    The default is the last BY_DEFAULT days in the tables. Rows of incidents that only alerts can
    detect are kept, so a repeated run gives the same rows. Raise ConfigurationError for empty
    tables, BrokenLake.
    """
    params = {"since": since and since.isoformat(), "until": until and until.isoformat()}
    with recorded(lake, clock, "incidents", params) as run:
        history = _History(tables)
        newest = to_datetime((history.known - 1) * MINUTE)
        last = newest if until is None else until
        first = last - timedelta(days=BY_DEFAULT - 1) if since is None else since
        if until is not None and last.date() < first.date():
            raise ConfigurationError(f"the days end ({last:%Y-%m-%d}) before they begin")
        begin = to_micros(max(first, to_datetime(history.known_from * MINUTE)))
        days = dates_of(hours_between(begin - begin % DAY_US, to_micros(min(last, newest))))
        found: list[IncidentRow] = []
        for midnight in (micros_of(day) // MINUTE for day in days):
            windows = sorted(history.incidents(midnight, rules), key=lambda each: each.start)
            found += [history.row(window) for window in windows]
            run.rows_in += sum(map(len, history.day(midnight).values()))
            history.drop_before(midnight)
        end = to_datetime(history.known * MINUTE)
        tables.merge(INCIDENTS, _table(found), days, lambda old: _only_in_alerts(old, end))
        on_rows(INCIDENTS.name, len(found))
        run.rows_out = len(found)
    return found


def keep(tables: SmallTables, alerts: Sequence[Alert]) -> None:
    """Store alerts, given in the order of their detection, in gold.incidents. A repeated call
    changes nothing. Raise BrokenLake."""
    rows = {incident_of(alert): _row_of(alert) for alert in alerts}
    if rows:
        days = {f"{row.start_at:%Y-%m-%d}" for row in rows.values()}
        ids = pa.array(list(rows))
        tables.merge(
            INCIDENTS,
            _table(rows.values(), FOUND_BY_ALERTS),
            days,
            lambda old: pc.invert(pc.is_in(old["incident_id"], ids)),
        )


def incident_of(alert: Alert) -> str:
    """Return the id of the incident of an alert, the same at its begin and end."""
    return incident_id(alert.kind, alert.queue, alert.subject, alert.start // MINUTE)


def _row_of(alert: Alert) -> IncidentRow:
    return IncidentRow(
        incident_of(alert),
        alert.kind,
        alert.queue,
        alert.subject,
        to_datetime(alert.start),
        to_datetime(max(alert.start, alert.at)),
        alert.is_over,
        keys_hit=int(alert.kind == "flood"),
        tasks_delayed=alert.tasks,
        extra_wait_us=0,
    )


def _table(rows: Iterable[IncidentRow], found_by: str | None = None) -> pa.Table:
    same = {"found_by": found_by}
    found = [msgspec.structs.asdict(row) | same for row in rows]
    return pa.Table.from_pylist(found, INCIDENTS.arrow())


def _only_in_alerts(rows: pa.Table, known: datetime) -> pa.Array:
    """Return a mask of the incidents that alerts found and the tables cannot show: those of
    ALERT_ONLY_KINDS, and those from `known` on, where the tables end."""
    is_hidden = pc.or_(
        pc.is_in(rows["kind"], pa.array(ALERT_ONLY_KINDS)),
        pc.greater_equal(rows["start_at"], pa.scalar(known)),
    )
    return pc.and_kleene(pc.equal(rows["found_by"], FOUND_BY_ALERTS), is_hidden)


class _History:
    """Minutes of all queues, read from the tables a day at a time."""

    def __init__(self, tables: SmallTables) -> None:
        """Raise ConfigurationError for empty tables."""
        self._tables = tables
        hours = sorted({*tables.parts(SERVICE), *tables.parts(BACKLOG)})
        if not hours:
            raise ConfigurationError("silver is empty; run `fairlead pipeline build`")
        [first] = tables.select(_STATEMENTS["first_minute"], lambda table: hours[:1])
        self.known_from: int = first["first"]
        """First minute of the tables."""
        self.known = micros_of(hours[-1]) // MINUTE + 60
        """First minute after the tables."""
        self._days: dict[int, Queues] = {}

    def incidents(self, midnight: int, rules: Rules) -> Iterator[IncidentWindow]:
        """Yield the incidents that began on a day."""
        following = midnight + DAY_MINUTES
        least = min(rules.of(queue).flood_tasks for queue in ("", *rules.queues))
        found = self._select("flooding", range(midnight, following), least=least)
        floods = {row["queue"]: row["keys"] for row in found}
        for queue in sorted(self.day(midnight)):
            minutes = self._minutes(queue, midnight - DAY_MINUTES, floods.get(queue))
            yield from incidents_from(queue, minutes, midnight, following, rules.of(queue))

    def drop_before(self, midnight: int) -> None:
        """Drop the days that no later day needs."""
        self._days = {day: queues for day, queues in self._days.items() if day >= midnight}

    def day(self, midnight: int) -> Queues:
        """Return the minutes of a day by queue, without arrivals by key."""
        if midnight not in self._days:
            queues = self._days[midnight] = {}
            for row in self._select("minutes", range(midnight, midnight + DAY_MINUTES)):
                known = {name: value for name, value in row.items() if value is not None}
                queue, minute = known.pop("queue"), known.pop("minute")
                queues.setdefault(queue, {})[minute] = Minute(**known)
        return self._days[midnight]

    def _minutes(
        self, queue: str, begin: int, keys: list[str] | None
    ) -> Iterator[tuple[int, Minute]]:
        """Yield the known minutes of a queue from `begin` on, with the arrivals of these keys."""
        for midnight in range(begin, self.known, DAY_MINUTES):
            found, day = self.day(midnight).get(queue, {}), range(midnight, midnight + DAY_MINUTES)
            rows = self._select("arrivals", day, queue=queue, keys=keys) if keys else []
            arrived = {row["minute"]: row["keys"] for row in rows}
            for minute in range(max(midnight, self.known_from), min(day.stop, self.known)):
                counts = found.get(minute) or Minute()
                yield minute, msgspec.structs.replace(counts, keys=arrived.get(minute, {}))

    def _select(self, statement: str, minutes: range, **given: Any) -> list[dict[str, Any]]:
        """Return the rows of a statement of incidents.sql over the days of these minutes."""
        days = set(dates_of(hours_between(minutes.start * MINUTE, (minutes.stop - 1) * MINUTE)))

        def parts(table: Table) -> list[str]:
            return [part for part in self._tables.parts(table) if part[:10] in days]

        return self._tables.select(_STATEMENTS[statement], parts, **given)

    def row(self, window: IncidentWindow) -> IncidentRow:
        """Return the row of an incident."""
        minutes: dict[int, Minute] = {}
        midnight = window.start - window.start % DAY_MINUTES
        for day in range(midnight - DAY_MINUTES, window.end, DAY_MINUTES):
            minutes |= self.day(day).get(window.queue, {})
        inside = [minutes[n] for n in range(window.start, window.end) if n in minutes]
        if window.kind == "error burst":
            delayed = sum(each.failed for each in inside)
        elif window.kind == "node loss":
            delayed = sum(each.lost.get(window.subject, 0) for each in inside)
        else:
            first = minutes.get(window.start) or Minute()
            delayed = first.depth_min + sum(each.arrived for each in inside)
        [hit] = self._select(
            _EVIDENCE.get(window.kind, "keys_waiting"),
            range(window.start, window.end),
            queue=window.queue,
            node=window.subject,
            first=window.start,
            last=window.end - 1,
        )
        # A minute without an entry had no waiting tasks.
        before = range(max(self.known_from, window.start - DAY_MINUTES), window.start)
        usual = median([minutes[n].depth_end if n in minutes else 0 for n in before] or [0])
        extra = sum(max(0.0, each.depth_end - usual) for each in inside)
        return IncidentRow(
            incident_id(window.kind, window.queue, window.subject, window.start),
            window.kind,
            window.queue,
            window.subject,
            to_datetime(window.start * MINUTE),
            to_datetime(window.end * MINUTE),
            window.is_over,
            hit["keys"],
            delayed,
            round(extra * MINUTE),
        )
