"""`incidents`: finds the incidents of some days in the tables, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from statistics import median
from typing import Any

import msgspec
import pyarrow as pa

from fairlead.backends.sql.sql_file import load
from fairlead.clock import Clock, to_datetime, to_micros
from fairlead.errors import ConfigurationError
from fairlead.pipeline.incidents.detector import MINUTE, Rules
from fairlead.pipeline.incidents.over_history import (
    DAY_MINUTES,
    IncidentWindow,
    Minute,
    incidents_from,
)
from fairlead.pipeline.models import BACKLOG, INCIDENTS, SERVICE
from fairlead.pipeline.partitions import dates_of, hours_between, micros_of
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.runs import recorded
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.warehouse import Warehouse

BY_DEFAULT = 7
"""Days searched by default, up to the last one in the tables."""

Queues = dict[str, dict[int, Minute]]

_STATEMENTS = load("incidents.sql", __package__)
_EVIDENCE = {
    "error burst": "keys_failed",
    "node loss": "keys_lost",
    "starved": "waits_of_key",
}
"""Statement that counts what an incident has hit; the default is keys_waiting."""


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
    tables: Frames,
    clock: Clock,
    rules: Rules,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[IncidentRow]:
    """Find the incidents that began on the days from `since` to `until`, in order, and replace the
    rows of these days in gold.incidents.

    The default is the last BY_DEFAULT days in the tables. A repeated run gives the same rows. Raise
    ConfigurationError for empty tables, BrokenLake.
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
            rows = map(history.row, windows)
            found += [row for row in rows if _is_listed(row, rules.of(row.queue))]
            run.rows_in += sum(map(len, history.day(midnight).values()))
            history.drop_before(midnight)
        made = _table(found)
        lake.table(INCIDENTS).rewrite(
            days, lambda known: made if found or known.num_rows else None, "incidents"
        )
        run.rows_out = len(found)
    return found


def _is_listed(row: IncidentRow, rules: Rules) -> bool:
    """Return whether a stall or a starved key delayed enough tasks, the key for long enough."""
    if row.kind not in ("stall", "starved"):
        return True
    is_long = row.end_at - row.start_at >= timedelta(seconds=rules.standstill_seconds)
    return row.tasks_delayed >= rules.delayed_tasks and (row.kind == "stall" or is_long)


def _table(rows: Iterable[IncidentRow]) -> pa.Table:
    return pa.Table.from_pylist([msgspec.structs.asdict(row) for row in rows], INCIDENTS.arrow())


class _History:
    """Minutes of all queues, read from the tables a day at a time."""

    def __init__(self, tables: Frames) -> None:
        """Raise ConfigurationError for empty tables."""
        self._tables = tables
        hours = sorted({*tables.parts(SERVICE), *tables.parts(BACKLOG)})
        if not hours:
            raise ConfigurationError("silver is empty; run `fairlead pipeline build`")
        [first] = tables.totals(_STATEMENTS["first_minute"], lambda table: hours[:1])
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

        return self._tables.totals(_STATEMENTS[statement], parts, given)

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
            subject=window.subject,
            first=window.start,
            last=window.end - 1,
        )
        # A minute without an entry had no waiting tasks.
        before = range(max(self.known_from, window.start - DAY_MINUTES), window.start)
        usual = median([minutes[n].depth_end if n in minutes else 0 for n in before] or [0])
        extra = sum(max(0.0, each.depth_end - usual) for each in inside)
        if window.kind == "starved":
            delayed, extra = hit["tasks"], hit["minutes"]
        return IncidentRow(
            window.id,
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
