"""The history of a lake for a screen: typed and bounded results over any period, of all tenants or
of some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from msgspec.structs import asdict, replace

from fairlead.backends.sql.sql_file import load
from fairlead.clock import MICROS
from fairlead.errors import ConfigurationError
from fairlead.model.lake_history import (
    AsOf,
    Costs,
    Fairness,
    HistoryRows,
    Incident,
    Runs,
    Shares,
    Tenant,
    Waits,
)
from fairlead.pipeline.chart_steps import MOST_POINTS, step_for
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.models import (
    ATTEMPTS,
    COST,
    FAIRNESS,
    INCIDENTS,
    LATENCY_HIST,
    SERVICE,
    TENANT_SHARE,
)
from fairlead.pipeline.partitions import HOUR_US, micros_of
from fairlead.pipeline.quality import IS_SOUND
from fairlead.pipeline.reading.engine import (
    MEMORY,
    as_our_errors,
    close_outside,
    file_name,
    file_names,
    parameters_of,
    patterns,
    reach,
    reader_of,
    rows_between,
    start,
)
from fairlead.pipeline.reading.query import existing, not_made
from fairlead.pipeline.reading.snapshots import Seen, Snapshots, TableAt
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.layout import unit_of
from fairlead.pipeline.windows import DAY, GROWTH, HOUR, MINUTE, WINDOWS
from fairlead.ports.lake_history import By, Extent, LakeHistory, Measure, Question

MOST_PARTS = 50
"""Maximum number of parts (queues, tenants, names) that a result names."""

MOST_INCIDENTS = 500
MOST_FAIRNESS = 10_000
"""Maximum number of rows: 50 queues in 200 steps."""

_TRIES = 3
_LATEST = 253_402_300_800 * MICROS
"""Start of the year 10000, in microseconds since the epoch."""

_ALL_TENANTS_ONLY = "these numbers are about all tenants together, and you may see some tenants"

Row = TypeVar("Row")


class Steps(NamedTuple):
    """Steps of equal length; instants are microseconds since the epoch."""

    since: int
    until: int
    step_s: int

    @property
    def window_s(self) -> int:
        """Seconds of the largest windows of gold that make up a step."""
        return max(
            window
            for window in WINDOWS
            if self.step_s % window == 0 and self.since % (window * MICROS) == 0
        )


class History(LakeHistory):
    """The history of a lake. Memory is bounded; a period of many partitions is read by at most
    `threads` threads."""

    def __init__(
        self,
        lake: str | Path,
        catalog: str | None = None,
        *,
        memory: str = MEMORY,
        threads: int = 2,
    ) -> None:
        """lake, catalog: as for `connect`. Raise ConfigurationError if there is no lake or a
        library is missing, StoreUnavailable."""
        self._warehouse = existing(lake, catalog)
        self._memory = memory
        self._connection = start(memory, threads)
        self._store = reach(self._connection, self._warehouse)
        close_outside(self._connection, folder=file_name(self._warehouse.location.tables))
        self._statements = load("history.sql", __package__)
        self._snapshots = Snapshots(self._warehouse)

    def close(self) -> None:
        self._connection.close()

    def extent(self) -> Extent | None:
        at = self._present(SERVICE).tables.get(SERVICE)
        parts = [] if at is None else [file.part for file in at.files if file.rows]
        if not parts:
            return None
        return Extent(micros_of(min(parts)), micros_of(max(parts)) + HOUR_US)

    def as_of(self, table: Table = SERVICE) -> AsOf:
        """Return the state of a table."""
        return _as_of(self._present(table), table)

    def runs(self, question: Question) -> HistoryRows[Runs]:
        return self._read("runs", SERVICE, self._steps(question, MINUTE), Runs, question)

    def waits(self, question: Question) -> HistoryRows[Waits]:
        steps = self._steps(question, HOUR)
        if question.by == "tenant" or question.tenants is not None:
            return self._read("waits_of_keys", ATTEMPTS, steps, Waits, question)
        return self._read("waits", LATENCY_HIST, steps, Waits, question)

    def shares(self, question: Question) -> HistoryRows[Shares]:
        steps = self._steps(question, MINUTE)
        return self._read("shares", TENANT_SHARE, steps, Shares, question)

    def fairness(self, question: Question) -> HistoryRows[Fairness]:
        steps = self._steps(question, MINUTE)
        if question.tenants is not None:
            return HistoryRows([], *steps, self.as_of(FAIRNESS), _ALL_TENANTS_ONLY)
        return self._read("fairness", FAIRNESS, steps, Fairness, question, MOST_FAIRNESS)

    def incidents(self, question: Question) -> HistoryRows[Incident]:
        steps = self._steps(replace(question, points=1), MINUTE)
        return self._read("incidents", INCIDENTS, steps, Incident, question, MOST_INCIDENTS)

    def costs(self, question: Question) -> HistoryRows[Costs]:
        return self._read("costs", COST, self._steps(question, DAY), Costs, question)

    def top_tenants(self, question: Question) -> HistoryRows[Tenant]:
        question = replace(question, by="tenant", measure="pickup", points=1)
        runs = self.runs(question)
        found = [row for row in runs.rows if row.part is not None]
        tenants = frozenset(row.part for row in found)
        question = replace(question, since=runs.since, until=runs.until, tenants=tenants)
        waits, shares, costs = (self.waits(question), self.shares(question), self.costs(question))
        wait_of = {row.part: row for row in waits.rows}
        share_of = {row.part: row for row in shares.rows}
        cost_of = {row.part: row for row in costs.rows}
        rows = [
            Tenant(
                tenant=row.part or "",
                started=row.started,
                failed=row.failed,
                busy_us=row.busy_us,
                entitled_us=share.entitled_us if (share := share_of.get(row.part)) else None,
                starved=share.starved if share else None,
                wait_p50_us=wait.p50_us if (wait := wait_of.get(row.part)) else None,
                wait_p99_us=wait.p99_us if wait else None,
                amount=cost.amount if (cost := cost_of.get(row.part)) else None,
            )
            for row in found
        ]
        notes = dict.fromkeys(each.note for each in (runs, waits, shares, costs) if each.note)
        return HistoryRows(rows, runs.since, runs.until, runs.step_s, runs.as_of, "; ".join(notes))

    def _steps(self, question: Question, least_s: int) -> Steps:
        """Return the steps of a period, limited to the hours of which the lake has runs."""
        if not 1 <= question.points <= MOST_POINTS:
            raise ConfigurationError(f"points {question.points}: use 1 to {MOST_POINTS}")
        extent = self.extent() or Extent(0, HOUR_US)
        begin = extent.since if question.since is None else question.since
        end = extent.until if question.until is None else question.until
        if not 0 <= begin < end <= _LATEST:
            raise ConfigurationError(
                f"period from {begin} to {end}: use microseconds since 1970, the start before the"
                f" end, and no year after 9999; the lake has {extent.since} to {extent.until}"
            )
        if max(begin, extent.since) < min(end, extent.until):
            begin, end = max(begin, extent.since), min(end, extent.until)
        if question.points > 1:
            return steps_between(begin, end, least_s, question.points)
        unit_s = max(least_s, MINUTE if step_for((end - begin) / MICROS) == MINUTE else HOUR)
        begin, end = rounded(begin, end, unit_s)
        return Steps(begin, end, (end - begin) // MICROS)

    def _read(
        self,
        statement: str,
        table: Table,
        steps: Steps,
        kind: Callable[..., Row],
        question: Question,
        most: int = 0,
    ) -> HistoryRows[Row]:
        """Run a statement over the partitions of the period, for at most `most` rows if it limits
        them. Try again if another process replaced files meanwhile. Raise ConfigurationError for
        parts that are unknown or too many."""
        if not 1 <= question.top <= MOST_PARTS:
            raise ConfigurationError(f"top {question.top}: use 1 to {MOST_PARTS}")
        _check_choice("by", question.by, get_args(By))
        _check_choice("measure", question.measure, get_args(Measure))
        values: dict[str, Any] = {
            **asdict(question),
            "most": most,
            "growth": GROWTH,
            "since": steps.since,
            "until": steps.until,
            "step_us": steps.step_s * MICROS,
            "tenants": None if question.tenants is None else sorted(question.tenants),
        }
        for attempt in range(1, _TRIES + 1):
            seen = self._present(table)
            values["window_s"] = steps.window_s
            at = seen.tables.get(table)
            files = [] if at is None else _files_between(at, table, steps)
            try:
                rows = self._rows(statement, table, values | {"files": files}) if files else []
            except BrokenLake:
                if attempt == _TRIES or self._present(table).tables.get(table) is at:
                    raise
                continue
            break
        made, as_of = [kind(*row) for row in rows], _as_of(seen, table)
        return HistoryRows(made, *steps, as_of, not_made(table) if at is None else "")

    def _rows(self, statement: str, table: Table, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        files = reader_of(table, "$files")
        text = self._statements[statement].format(
            rows=rows_between(table, files), all_rows=files, sound=f"({IS_SOUND})"
        )
        with as_our_errors(self._memory), self._connection.cursor() as cursor:
            return cursor.execute(text, parameters_of(text, values)).fetchall()

    def _present(self, table: Table) -> Seen:
        """Return the present state of a table."""
        seen = self._snapshots.read([table], as_built=True)
        if self._store is not None and table in seen.tables:
            self._store.replace(table.name, seen.tables[table])
        return seen


def _as_of(seen: Seen, table: Table) -> AsOf:
    at = seen.tables.get(table)
    return AsOf(None if at is None else at.written_at, seen.build.until or None)


def _files_between(at: TableAt, table: Table, steps: Steps) -> list[str]:
    """Return the patterns of the files of the partitions of the period; of incidents, also of those
    before it, because an incident that overlaps the period may begin at any time."""
    length = unit_of(table)
    after = -1 if table == INCIDENTS else steps.since - length
    parts = {file.part for file in at.files if after < micros_of(file.part) < steps.until}
    return patterns(file_names(at, parts))


def steps_between(begin: int, end: int, least_s: int, points: int = MOST_POINTS) -> Steps:
    """Return at most `points` whole steps, each of at least `least_s` seconds, that have the
    period."""
    step_s = max(step_for((end - begin) / MICROS, points), least_s)
    return Steps(*rounded(begin, end, step_s), step_s)


def rounded(begin: int, end: int, unit_s: int) -> tuple[int, int]:
    """Return a period in whole units: the start rounded down and the end up."""
    unit = unit_s * MICROS
    return begin // unit * unit, -(-end // unit) * unit


def _check_choice(what: str, given: str, allowed: Sequence[str]) -> None:
    if given not in allowed:
        raise ConfigurationError(f"{what} {given!r}: use {', '.join(allowed)}")
