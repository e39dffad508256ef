"""`incidents`: finds the incidents of these days and writes them to gold.incidents. The job needs
no Spark for a lake in a folder."""

from __future__ import annotations

from collections.abc import Collection, Iterator
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
from fairlead.pipeline.definitions.windows import ALL
from fairlead.pipeline.in_memory import SmallTables
from fairlead.pipeline.incidents import detect
from fairlead.pipeline.incidents.detect import MINUTE_US, IncidentWindow, Minute
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.parts import micros_of
from fairlead.pipeline.runs import OnRows, recorded
from fairlead.pipeline.schema import SCHEMA_VERSION, Table

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
    lake: Lake,
    tables: SmallTables,
    clock: Clock,
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
        hours = sorted({*tables.parts(SERVICE), *tables.parts(BACKLOG)})
        if not hours:
            raise ConfigurationError("silver is empty; run `fairlead pipeline build`")
        known = micros_of(hours[-1]) // MINUTE_US + 60
        last = to_datetime(micros_of(hours[-1])) if until is None else until
        first = last - timedelta(days=BY_DEFAULT - 1) if since is None else since
        days = _days(first, last)
        if until is not None and not days:
            raise ConfigurationError(f"the days end ({last:%Y-%m-%d}) before they begin")
        known_from = _known_from(tables, hours)
        found, queues = _found(tables, days, known_from, known)
        made = [
            _incident(tables, each, queues, known_from, known)
            for each in sorted(found, key=lambda s: (s.start, s))
        ]
        rows = [msgspec.structs.asdict(each) | {"schema_version": SCHEMA_VERSION} for each in made]
        kept = incidents_of_alerts(tables, days, to_datetime(known * MINUTE_US))
        tables.replace(
            INCIDENTS, pa.concat_tables([kept, pa.Table.from_pylist(rows, INCIDENTS.arrow())]), days
        )
        on_rows(INCIDENTS.name, len(rows))
        run.rows_in, run.rows_out = sum(map(len, queues.values())), len(rows)
    return made


def _found(
    tables: SmallTables, days: list[str], known_from: int, known: int
) -> tuple[list[IncidentWindow], Queues]:
    """Return the incidents that began on these days, and the minutes of the queues.

    Two days before are read too: an incident that began on the day before is not reported as new,
    and the floods of that day are judged by the day before it. As many days after are read as an
    incident lasts. So an incident is the same whatever days are asked for.
    """
    after = 1
    while True:
        last = _midnight(days[-1]) + after * detect.DAY_MINUTES
        wider = _days(
            to_datetime((_midnight(days[0]) - 2 * detect.DAY_MINUTES) * MINUTE_US),
            to_datetime(last * MINUTE_US),
        )
        queues = _minutes(tables, wider)
        found = [
            each for each in _windows(tables, wider, queues, known_from) if _day(each.start) in days
        ]
        end = last + detect.DAY_MINUTES
        if end >= known or all(each.end + detect.QUIET_MINUTES < end for each in found):
            return found, queues
        after *= 2


def _windows(
    tables: SmallTables, days: list[str], queues: Queues, known_from: int
) -> Iterator[IncidentWindow]:
    for queue, by_minute in queues.items():
        yield from detect.stalls(queue, by_minute)
        yield from detect.bursts(queue, by_minute)
    judged = [_midnight(day) for day in days[1:]]
    for queue, arrived in _arrivals(tables, days).items():
        yield from detect.floods(queue, queues.get(queue, {}), arrived, known_from, judged)
    yield from detect.of_subjects("starved", _starved(tables, days), 0)
    yield from detect.of_subjects("node loss", _lost(tables, days), detect.QUIET_MINUTES)


def _known_from(tables: SmallTables, hours: list[str]) -> int:
    """Return the first minute of the tables."""
    first = [
        pc.min(tables.load(table, [hours[0]], [instant])[instant]).as_py()
        for table, instant in ((BACKLOG, "minute"), (SERVICE, "window_start"))
        if hours[0] in tables.parts(table)
    ]
    return min(_minute(instant) for instant in first)


def _minutes(tables: SmallTables, days: Collection[str]) -> Queues:
    """Return the minutes of each queue."""
    queues: Queues = {}
    waits = ("depth_min", "depth_end", "arrived", "claimed")
    for part in _hours(tables, BACKLOG, days):
        rows = tables.load(BACKLOG, [part], ["minute", "queue", *waits])
        for row in (
            rows.group_by(["minute", "queue"])
            .aggregate([(name, "sum") for name in waits])
            .to_pylist()
        ):
            waiting = Minute(*(row[f"{name}_sum"] for name in waits))
            queues.setdefault(row["queue"], {})[_minute(row["minute"])] = waiting
    for part in _hours(tables, SERVICE, days):
        rows = tables.load(SERVICE, [part], ["window_start", "queue", "attempts_done", "failed"])
        grouped = rows.group_by(["window_start", "queue"]).aggregate(
            [("attempts_done", "sum"), ("failed", "sum")]
        )
        for row in grouped.to_pylist():
            minutes, minute = queues.setdefault(row["queue"], {}), _minute(row["window_start"])
            before = minutes.get(minute, Minute())
            minutes[minute] = before._replace(
                done=row["attempts_done_sum"], failed=row["failed_sum"]
            )
    return queues


def _arrivals(tables: SmallTables, days: Collection[str]) -> dict[str, dict[str, dict[int, int]]]:
    """Return the tasks by queue, key and minute, of the keys that submitted many in a minute."""
    hours = _hours(tables, BACKLOG, days)
    columns = ["minute", "queue", "fairness_key", "arrived"]
    heavy: dict[str, dict[str, dict[int, int]]] = {}
    for part in hours:
        rows = tables.load(BACKLOG, [part], columns)
        many = rows.filter(pc.greater_equal(rows["arrived"], detect.FLOOD_TASKS))
        for row in many.to_pylist():
            heavy.setdefault(row["queue"], {}).setdefault(row["fairness_key"], {})
    if not heavy:
        return heavy
    keys = pa.array(sorted({key for found in heavy.values() for key in found}))
    for part in hours:
        rows = tables.load(BACKLOG, [part], columns)
        for row in rows.filter(pc.is_in(rows["fairness_key"], keys)).to_pylist():
            by_minute = heavy.get(row["queue"], {}).get(row["fairness_key"])
            if by_minute is not None:
                minute = _minute(row["minute"])
                by_minute[minute] = by_minute.get(minute, 0) + row["arrived"]
    return heavy


def _starved(tables: SmallTables, days: Collection[str]) -> Iterator[tuple[str, str, int]]:
    columns = ["window_start", "window_s", "queue", "fairness_key", "starved"]
    for part in sorted(set(days) & set(tables.parts(TENANT_SHARE))):
        rows = tables.load(TENANT_SHARE, [part], columns)
        for row in rows.filter(
            pc.and_(rows["starved"], pc.equal(rows["window_s"], 60))
        ).to_pylist():
            yield row["queue"], row["fairness_key"], _minute(row["window_start"])


def _lost(tables: SmallTables, days: Collection[str]) -> Iterator[tuple[str, str, int]]:
    for part in _hours(tables, ATTEMPTS, days):
        rows = tables.load(ATTEMPTS, [part], ["outcome", "node", "finished_at"])
        for row in rows.filter(pc.equal(rows["outcome"], "lost")).to_pylist():
            if row["node"] is not None:
                yield ALL, row["node"], _minute(row["finished_at"])


def _incident(
    tables: SmallTables, window: IncidentWindow, queues: Queues, known_from: int, known: int
) -> IncidentRow:
    by_minute = queues.get(window.queue, {})
    inside = [
        by_minute[minute] for minute in range(window.start, window.end) if minute in by_minute
    ]
    keys, lost = _hit(tables, window)
    if window.kind == "error burst":
        delayed = sum(each.failed for each in inside)
    elif window.kind == "node loss":
        delayed = lost
    else:
        first = by_minute.get(window.start, Minute())
        delayed = first.depth_min + sum(each.arrived for each in inside)
    return IncidentRow(
        window.incident_id,
        window.kind,
        window.queue,
        window.subject,
        to_datetime(window.start * MINUTE_US),
        to_datetime(window.end * MINUTE_US),
        window.end < known,
        keys,
        delayed,
        detect.extra_wait_us(
            window, by_minute, detect.usual_depth(by_minute, known_from, window.start)
        ),
    )


def _hit(tables: SmallTables, window: IncidentWindow) -> tuple[int, int]:
    """Return the number of affected keys and of affected rows in the window. Keys are affected by
    waiting tasks, or by failed or lost runs, depending on the kind of incident; for a node loss,
    the rows are the lost runs."""
    first, last = (to_datetime(minute * MINUTE_US) for minute in (window.start, window.end - 1))
    hours, hour = set(), first.replace(minute=0)
    while hour <= last:
        hours.add(f"{hour:%Y-%m-%d/%H}")
        hour += timedelta(hours=1)
    table, instant, evidence = {
        "error burst": (SERVICE, "window_start", "failed"),
        "node loss": (ATTEMPTS, "finished_at", "node"),
    }.get(window.kind, (BACKLOG, "minute", "depth_end"))
    rows = tables.load(
        table,
        sorted(hours & set(tables.parts(table))),
        [instant, "queue", "fairness_key", evidence],
    )
    low, high = (
        pa.scalar(to_datetime(minute * MINUTE_US)) for minute in (window.start, window.end)
    )
    inside = pc.and_(pc.greater_equal(rows[instant], low), pc.less(rows[instant], high))
    if window.kind == "node loss":
        rows = tables.load(
            table,
            sorted(hours & set(tables.parts(table))),
            [instant, "fairness_key", "node", "outcome"],
        )
        is_hit = pc.and_(
            pc.equal(rows["outcome"], "lost"),
            pc.fill_null(pc.equal(rows["node"], window.subject), False),
        )
    else:
        is_hit = pc.and_(pc.equal(rows["queue"], window.queue), pc.greater(rows[evidence], 0))
    hit = rows.filter(pc.and_(inside, is_hit))
    return pc.count_distinct(hit["fairness_key"]).as_py(), hit.num_rows


def _hours(tables: SmallTables, table: Table, days: Collection[str]) -> list[str]:
    return [part for part in tables.parts(table) if part.partition("/")[0] in days]


def _days(first: datetime, last: datetime) -> list[str]:
    start = first.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    count = (last - start).days + 1
    return [f"{start + timedelta(days=n):%Y-%m-%d}" for n in range(count)]


def _minute(instant: datetime) -> int:
    return to_micros(instant) // MINUTE_US


def _midnight(day: str) -> int:
    return _minute(datetime.fromisoformat(day).replace(tzinfo=UTC))


def _day(minute: int) -> str:
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%d}"


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
