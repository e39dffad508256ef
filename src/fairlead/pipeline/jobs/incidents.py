"""`incidents`: finds the incidents of these days and writes them to gold.incidents. The job needs
no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from fairlead.clock import MICROS, Clock, to_datetime, to_micros
from fairlead.errors import ConfigurationError
from fairlead.pipeline.alerts.incident_rows import incidents_of_alerts
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.definitions.backlog import BACKLOG
from fairlead.pipeline.definitions.incidents import INCIDENTS
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.tenant_share import TENANT_SHARE
from fairlead.pipeline.in_memory import SmallTables
from fairlead.pipeline.incidents.key_minutes import MINUTE
from fairlead.pipeline.incidents.over_history import (
    DAY_MINUTES,
    IncidentWindow,
    Minute,
    extra_wait_us,
    incidents_from,
    usual_depth,
)
from fairlead.pipeline.incidents.watch import Rules
from fairlead.pipeline.runs import OnRows, recorded
from fairlead.pipeline.schema import SCHEMA_VERSION, Table
from fairlead.pipeline.warehouse.warehouse import Warehouse

BY_DEFAULT = 7
"""Days searched by default, up to the last one in the tables."""

Queues = dict[str, dict[int, Minute]]


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
        last = to_datetime((history.known - 1) * MINUTE) if until is None else until
        first = last - timedelta(days=BY_DEFAULT - 1) if since is None else since
        days = _days(first, last)
        if until is not None and not days:
            raise ConfigurationError(f"the days end ({last:%Y-%m-%d}) before they begin")
        found: list[IncidentRow] = []
        for midnight in map(_midnight, days):
            windows = sorted(history.incidents(midnight, rules), key=lambda each: each.start)
            found += [history.row(window) for window in windows]
            run.rows_in += sum(map(len, history.day(midnight).values()))
            history.drop_before(midnight)
        rows = [msgspec.structs.asdict(each) | {"schema_version": SCHEMA_VERSION} for each in found]
        kept = incidents_of_alerts(tables, days, to_datetime(history.known * MINUTE))
        tables.replace(
            INCIDENTS, pa.concat_tables([kept, pa.Table.from_pylist(rows, INCIDENTS.arrow())]), days
        )
        on_rows(INCIDENTS.name, len(rows))
        run.rows_out = len(rows)
    return found


class _History:
    """Minutes of all queues, read from the tables a day at a time."""

    def __init__(self, tables: SmallTables) -> None:
        """Raise ConfigurationError for empty tables."""
        self._tables = tables
        hours = sorted({*tables.parts(SERVICE), *tables.parts(BACKLOG)})
        if not hours:
            raise ConfigurationError("silver is empty; run `fairlead pipeline build`")
        first = [
            pc.min(tables.load(table, [hours[0]], [instant])[instant]).as_py()
            for table, instant in ((BACKLOG, "minute"), (SERVICE, "window_start"))
            if hours[0] in tables.parts(table)
        ]
        self.known_from = min(map(_minute, first))
        """First minute of the tables."""
        self.known = _minute(datetime.strptime(hours[-1], "%Y-%m-%d/%H").replace(tzinfo=UTC)) + 60
        """First minute after the tables."""
        self._days: dict[int, Queues] = {}

    def incidents(self, midnight: int, rules: Rules) -> Iterator[IncidentWindow]:
        """Yield the incidents that began on a day."""
        following = midnight + DAY_MINUTES
        floods = self._flooding(midnight, rules)
        for queue in sorted(self.day(midnight)):
            minutes = self._minutes(queue, midnight - DAY_MINUTES, floods.get(queue, set()))
            yield from incidents_from(queue, minutes, midnight, following, rules.of(queue))

    def drop_before(self, midnight: int) -> None:
        """Drop the days that no later day needs."""
        self._days = {day: queues for day, queues in self._days.items() if day >= midnight}

    def day(self, midnight: int) -> Queues:
        """Return the minutes of a day by queue, without arrivals by key."""
        if midnight not in self._days:
            self._days[midnight] = self._read(_day(midnight))
        return self._days[midnight]

    def _minutes(self, queue: str, begin: int, keys: set[str]) -> Iterator[tuple[int, Minute]]:
        """Yield the known minutes of a queue from `begin` on, with the arrivals of these keys."""
        for midnight in range(begin, self.known, DAY_MINUTES):
            found = self.day(midnight).get(queue, {})
            arrived = self._arrivals(midnight, queue, keys) if keys else {}
            for minute in range(
                max(midnight, self.known_from), min(midnight + DAY_MINUTES, self.known)
            ):
                counts = found.get(minute) or Minute()
                yield minute, msgspec.structs.replace(counts, keys=arrived.get(minute, {}))

    def _read(self, day: str) -> Queues:
        queues: Queues = {}

        def of(row: dict[str, Any], instant: str) -> Minute:
            minutes = queues.setdefault(row["queue"], {})
            return minutes.setdefault(_minute(row[instant]), Minute())

        sums = ("depth_min", "depth_end", "arrived", "claimed")
        rows = self._load(BACKLOG, day, ["minute", "queue", "oldest_ready_at", *sums])
        wanted = [(name, "sum") for name in sums] + [("oldest_ready_at", "min")]
        for row in rows.group_by(["minute", "queue"]).aggregate(wanted).to_pylist():
            counts, oldest = of(row, "minute"), row["oldest_ready_at_min"]
            for name in sums:
                setattr(counts, name, row[f"{name}_sum"])
            counts.waits_since = oldest and to_micros(oldest)
        names = ["busy_us", "attempts_done", "failed"]
        rows = self._load(SERVICE, day, ["window_start", "queue", *names])
        grouped = rows.group_by(["window_start", "queue"]).aggregate([(n, "sum") for n in names])
        for row in grouped.to_pylist():
            counts = of(row, "window_start")
            counts.done, counts.failed = row["attempts_done_sum"], row["failed_sum"]
            counts.is_busy = row["busy_us_sum"] > 0
        for row in self._load(
            ATTEMPTS, day, ["queue", "node", "finished_at"], lambda rows: _is(rows, "lost")
        ).to_pylist():
            if row["node"] is not None:
                lost = of(row, "finished_at")
                lost.lost = {**lost.lost, row["node"]: lost.lost.get(row["node"], 0) + 1}
        for row in self._load(
            TENANT_SHARE,
            day,
            ["window_start", "queue", "fairness_key"],
            lambda rows: pc.and_(rows["starved"], pc.equal(rows["window_s"], 60)),
        ).to_pylist():
            starved = of(row, "window_start")
            starved.starved = [*starved.starved, row["fairness_key"]]
        return queues

    def _flooding(self, midnight: int, rules: Rules) -> dict[str, set[str]]:
        """Return the keys that submitted many tasks in a minute of the day, by queue."""
        least = min(rules.of(queue).flood_tasks for queue in ("", *rules.queues))
        found: dict[str, set[str]] = {}
        for row in self._load(
            BACKLOG,
            _day(midnight),
            ["queue", "fairness_key"],
            lambda rows: pc.greater_equal(rows["arrived"], least),
        ).to_pylist():
            found.setdefault(row["queue"], set()).add(row["fairness_key"])
        return found

    def _arrivals(self, midnight: int, queue: str, keys: set[str]) -> dict[int, dict[str, int]]:
        by_minute: dict[int, dict[str, int]] = {}
        for row in self._load(
            BACKLOG,
            _day(midnight),
            ["minute", "fairness_key", "arrived"],
            lambda rows: pc.and_(
                pc.equal(rows["queue"], queue),
                pc.is_in(rows["fairness_key"], pa.array(sorted(keys), pa.string())),
            ),
        ).to_pylist():
            by_minute.setdefault(_minute(row["minute"]), {})[row["fairness_key"]] = row["arrived"]
        return by_minute

    def _load(
        self,
        table: Table,
        day: str,
        columns: list[str],
        where: Callable[[pa.Table], pa.Array] | None = None,
    ) -> pa.Table:
        """Return the rows of a day that fulfil a condition."""
        parts = [part for part in self._tables.parts(table) if part[:10] == day]
        if where is None:
            return self._tables.load(table, parts, columns)
        rows = self._tables.load(table, parts, _COLUMNS.get(table.name, columns))
        return rows.filter(where(rows)).select(columns)

    def row(self, window: IncidentWindow) -> IncidentRow:
        """Return the row of an incident."""
        minutes: dict[int, Minute] = {}
        midnight = _midnight(_day(window.start))
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
        return IncidentRow(
            window.incident_id,
            window.kind,
            window.queue,
            window.subject,
            to_datetime(window.start * MINUTE),
            to_datetime(window.end * MINUTE),
            window.is_over,
            self._keys_hit(window),
            delayed,
            extra_wait_us(window, minutes, usual_depth(minutes, self.known_from, window.start)),
        )

    def _keys_hit(self, window: IncidentWindow) -> int:
        """Return the number of keys with waiting tasks, or with failed or lost runs for kinds about
        runs, during the incident."""
        table, instant, is_hit = _EVIDENCE.get(window.kind, _WAITING)
        low, high = (pa.scalar(to_datetime(at * MINUTE)) for at in (window.start, window.end))
        keys: set[str] = set()
        for midnight in range(_midnight(_day(window.start)), window.end, DAY_MINUTES):
            rows = self._load(
                table,
                _day(midnight),
                ["fairness_key"],
                lambda rows: pc.and_(
                    pc.and_(
                        pc.greater_equal(rows[instant], low),
                        pc.less(rows[instant], high),
                    ),
                    pc.and_(pc.equal(rows["queue"], window.queue), is_hit(rows, window)),
                ),
            )
            keys.update(rows["fairness_key"].to_pylist())
        return len(keys)


_Rows = Callable[[pa.Table, IncidentWindow], pa.Array]

_COLUMNS = {
    BACKLOG.name: ["minute", "queue", "fairness_key", "arrived", "depth_end"],
    SERVICE.name: ["window_start", "queue", "fairness_key", "failed"],
    ATTEMPTS.name: ["finished_at", "queue", "fairness_key", "node", "outcome"],
    TENANT_SHARE.name: ["window_start", "window_s", "queue", "fairness_key", "starved"],
}
"""Columns that the conditions on the rows of a table need."""


def _is(rows: pa.Table, outcome: str) -> pa.Array:
    return pc.equal(rows["outcome"], outcome)


def _was_lost(rows: pa.Table, window: IncidentWindow) -> pa.Array:
    ours = pc.fill_null(pc.equal(rows["node"], window.subject), False)
    return pc.and_(_is(rows, "lost"), ours)


_WAITING: tuple[Table, str, _Rows] = (
    BACKLOG,
    "minute",
    lambda rows, window: pc.greater(rows["depth_end"], 0),
)
_EVIDENCE: dict[str, tuple[Table, str, _Rows]] = {
    "error burst": (
        SERVICE,
        "window_start",
        lambda rows, window: pc.greater(rows["failed"], 0),
    ),
    "node loss": (ATTEMPTS, "finished_at", _was_lost),
}
"""Table, instant and condition of the rows that show an affected key; the default is _WAITING."""


def _days(first: datetime, last: datetime) -> list[str]:
    start = first.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    count = (last - start).days + 1
    return [f"{start + timedelta(days=n):%Y-%m-%d}" for n in range(count)]


def _minute(instant: datetime) -> int:
    return to_micros(instant) // MINUTE


def _midnight(day: str) -> int:
    return _minute(datetime.fromisoformat(day).replace(tzinfo=UTC))


def _day(minute: int) -> str:
    return f"{to_datetime(minute * MINUTE):%Y-%m-%d}"


def as_rows(found: list[IncidentRow]) -> list[tuple[Any, ...]]:
    """Return the incidents as rows for a table on the terminal."""
    return [
        (
            each.kind,
            each.queue,
            each.subject,
            f"{each.start_at:%Y-%m-%d %H:%M}",
            f"{each.end_at:%H:%M}" if each.is_over else "continues",
            each.keys_hit,
            f"{each.tasks_delayed:,}",
            f"{each.extra_wait_us / MICROS / 3600:,.1f}",
        )
        for each in found
    ]
