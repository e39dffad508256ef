"""Run the models: compute silver and gold from bronze, in the partitions that changed since the
last build and in all that depend on them.

Because whole partitions are recomputed, full and incremental builds share one code path and give
the same result, and late rows need no special case. Readers see nothing before the checks have
passed.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import date, timedelta
from functools import reduce
from graphlib import TopologicalSorter
from string import Template
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from fairlead.clock import MICROS
from fairlead.pipeline import partitions as p
from fairlead.pipeline.jobs.build_plan import BuildPlan
from fairlead.pipeline.jobs.totals import TablesOfJob
from fairlead.pipeline.jobs.touched import Touched, touched
from fairlead.pipeline.model_rows import names_in, rows_of
from fairlead.pipeline.models import (
    ATTEMPTS,
    BACKLOG,
    COST,
    EVENTS,
    FAILURES,
    LATENCY,
    OPEN_TASKS,
    QUARANTINE,
    SERVICE,
    SLO,
    SLO_COUNTS,
    TABLES,
    TASKS,
)
from fairlead.pipeline.quality import IS_SOUND, IS_SOUND_EVENT, quarantined, sound, sound_events
from fairlead.pipeline.schema import Table
from fairlead.pipeline.settings import PipelineSettings
from fairlead.pipeline.spark_rows import local_rows, overlapping, within
from fairlead.pipeline.warehouse.location import flat_name
from fairlead.pipeline.warehouse_tables import WarehouseTables

SLO_DAYS_BACK = 3
"""Days of counts that the longest burn rate covers."""

FEW_ROWS = 250_000
"""Rows that one task of Spark takes in, because shuffling them would take longer."""

_SIDE_BY_SIDE = 3
"""Models that run at the same time: Spark plans and compiles a query in one thread, so that the
cores would wait for most of a small build."""

_MODELS = {flat_name(table): table for table in TABLES if table.query}

_BEGINS = {TASKS: "submitted_at", SERVICE: "started_at", BACKLOG: "ready_at"}
"""Instant of an attempt from which, until its end, it has a part in the hours of a table. Tables
that are not named count an attempt in the partition of its end."""

_HAS_FAILED = "outcome IN ('failed', 'retried', 'timed_out', 'lost')"
_ANY = Template("SELECT 1 AS n FROM $table WHERE $condition LIMIT 1")


class Runner:
    """One run of all models. `rows` counts the rows written, by table."""

    def __init__(
        self,
        spark: SparkSession,
        tables: WarehouseTables,
        plan: BuildPlan,
        settings: PipelineSettings,
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._plan = plan
        self._settings = settings
        self.rows: dict[str, int] = {}
        self.totals = TablesOfJob(spark, tables)
        self.touched = (
            Touched(set(), set(), set(), set()) if plan.full else touched(self.totals, plan)
        )
        self._recent = plan.files
        """Files of bronze.attempts from the first hour on that is built again."""
        if not plan.full:
            hours = set().union(*self.touched)
            self._recent = tables.files(ATTEMPTS, since=min(hours)) if hours else []

    def run(self) -> None:
        """Build all tables without publishing them, each after the tables that its query reads.
        After an error, no other table begins."""
        order: TopologicalSorter[Table] = TopologicalSorter()
        for table in _MODELS.values():
            order.add(table, *(_MODELS[name] for name in names_in(table.query) & _MODELS.keys()))
        order.add(QUARANTINE)
        order.prepare()
        running: dict[Future[None], Table] = {}
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            try:
                while order.is_active():
                    for table in order.get_ready():
                        running[pool.submit(self._make, table)] = table
                    for made in wait(running, return_when=FIRST_COMPLETED).done:
                        made.result()
                        order.done(running.pop(made))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def parts_with_runs(self, hours: Collection[str] | None) -> list[str] | None:
        """Return the partitions of bronze with the runs of these hours, and others; None for all
        hours."""
        if not hours:
            return None if hours is None else []
        end = p.micros_of(max(hours)) + p.HOUR_US
        return [
            file.part
            for file in self._recent
            if file.part >= min(hours) and file.span.get("started_at", (end,))[0] < end
        ]

    def _make(self, table: Table) -> None:
        """Replace the affected partitions of a table; without a job of Spark if they get no
        rows."""
        parts = self.parts(table)
        self.rows[table.name] = 0
        if parts is not None and not parts:
            return
        rows, is_small = None, False
        if table is QUARANTINE:
            rows = self._unsound(parts)
        elif not self._is_empty(table, parts):
            rows, is_small = self._computed(table, parts)
        if rows is None:
            self._tables.clear(table, parts)
        else:
            self.rows[table.name] = self._tables.replace(table, rows, parts, is_small)

    def parts(self, table: Table) -> Collection[str] | None:
        """Return the partitions of a table that are computed again; None for all."""
        if self._plan.full:
            return None
        changed = self._plan.changed_attempts
        own: dict[Table, Collection[str]] = {
            QUARANTINE: changed | self._plan.changed_events,
            TASKS: self.touched.tasks | self.touched.continued,
            SERVICE: self.touched.service,
            BACKLOG: self.touched.backlog,
        }
        if table in own:
            return own[table]
        names = names_in(table.query)
        found = set(changed) if "measured_attempts" in names else set()
        for name in names & _MODELS.keys():
            found.update(self.parts(_MODELS[name]) or ())
        if table.by == "hour":
            return found
        dates = p.dates_of(found)
        return p.days_from(dates, SLO_DAYS_BACK) if table is SLO else dates

    def _computed(self, table: Table, parts: Collection[str] | None) -> tuple[DataFrame, bool]:
        """Return the rows of these partitions, and whether they are made from few rows."""
        frames, count = self._sources(table, parts)
        small, given = self._given(table, parts)
        is_small = count <= FEW_ROWS
        rows = rows_of(table, frames | small, is_small, **given)
        # Attempts and counts of other partitions have a part in these, and these in others.
        if table in (SERVICE, SLO):
            rows = rows.where(within(table.instant, parts))
        return rows, is_small

    def _is_empty(self, table: Table, parts: Collection[str] | None) -> bool:
        """Return whether these partitions get no rows, as far as a few small reads tell."""
        if table is OPEN_TASKS:
            return not self._any("{silver.tasks}", "last_finished_at IS NULL", parts)
        if table is FAILURES:
            condition = f"{IS_SOUND} AND {_HAS_FAILED}"
            return not self._any("{bronze.attempts}", condition, _hours_of(parts))
        return table in (SLO_COUNTS, SLO) and not self._settings.slo

    def _sources(
        self, table: Table, parts: Collection[str] | None
    ) -> tuple[dict[str, DataFrame], int]:
        """Return the tables that these partitions are computed from, by their names in the query,
        and their number of rows."""
        frames: dict[str, DataFrame] = {}
        count = 0
        wanted: Collection[str] | None
        for name in names_in(table.query):
            if name in ("sound_attempts", "measured_attempts"):
                frames["sound_attempts"] = self._attempts(table, parts)
                count += sum(file.rows for file in self._attempt_files(table, parts))
                continue
            if name == "sound_events":
                source = EVENTS
                wanted = None if self._plan.full else self.touched.tasks
            elif name == "known_tasks":
                source = TASKS
                wanted = self.touched.continued
            elif name in _MODELS:
                source = _MODELS[name]
                wanted = _needed(table, source, parts)
            else:
                continue
            rows = self._tables.read(source, wanted)
            frames[name] = sound_events(rows) if source is EVENTS else rows
            count += sum(file.rows for file in self._tables.files(source, wanted))
        return frames, count

    def _given(
        self, table: Table, parts: Collection[str] | None
    ) -> tuple[dict[str, DataFrame], dict[str, Any]]:
        """Return the small frames and the parameters that the query of a table needs."""
        if table is BACKLOG:
            hours = sorted(map(p.micros_of, self._backlog_hours()))
            frames = {"build_hours": self._local([(hour,) for hour in hours], "hour bigint")}
            first, last, minute = min(hours, default=0), max(hours, default=0), 60 * MICROS
            known = min(last + p.HOUR_US, -(-self._plan.until // minute) * minute)
            return frames, {"first": first, "last": last, "known": known}
        if table is COST:
            return {"cost_bills": self._bills(parts)}, {"method": self._settings.cost.method}
        if table is LATENCY:
            return {}, {"least": self._settings.latency.least}
        return {"slo_objectives": self._objectives()} if table in (SLO_COUNTS, SLO) else {}, {}

    def _attempts(self, table: Table, parts: Collection[str] | None) -> DataFrame:
        """Return the sound attempts that have a part in these partitions of a table."""
        if table not in _BEGINS:
            return sound(self._tables.read(ATTEMPTS, _hours_of(parts)))
        begin = _BEGINS[table]
        if table is TASKS:
            has_part = within(begin, parts)
        else:
            has_part = overlapping([begin, "finished_at"], "finished_at", parts)
        return sound(self._tables.read(ATTEMPTS)).where(has_part)

    def _attempt_files(self, table: Table, parts: Collection[str] | None) -> Collection[Any]:
        if table in _BEGINS:
            return self._recent
        return self._tables.files(ATTEMPTS, _hours_of(parts))

    def _any(self, table: str, condition: str, parts: Collection[str] | None) -> bool:
        """Return whether a row of these partitions meets a condition."""
        text = _ANY.substitute(table=table, condition=condition)
        return bool(self.totals.totals(text, lambda _: parts))

    def _unsound(self, hours: Collection[str] | None) -> DataFrame | None:
        sources = (
            (ATTEMPTS, "{bronze.attempts}", IS_SOUND),
            (EVENTS, "{bronze.events} AS event", IS_SOUND_EVENT),
        )
        unsound = [
            quarantined(self._tables.read(table, hours), table)
            for table, name, is_sound in sources
            if self._any(name, f"NOT ({is_sound})", hours)
        ]
        return reduce(DataFrame.unionByName, unsound) if unsound else None

    def _backlog_hours(self) -> Collection[str]:
        """Return the hours whose backlog is rebuilt; in a full build, all hours since the first
        task became ready."""
        if not self._plan.full:
            return self.touched.backlog
        text = "SELECT min(unix_micros(ready_at)) AS first FROM {silver.open_tasks}"
        [first_open] = self.totals.totals(text)
        instants = self._plan.first("ready_at", "finished_at"), first_open["first"]
        known = [at for at in instants if at is not None]
        return p.hours_between(min(known), self._plan.until) if known else []

    def _objectives(self) -> DataFrame:
        return self._local(
            [
                (s.id, s.queue, s.name, s.measure, s.threshold_us, float(s.objective))
                for s in self._settings.slo
            ],
            "slo_id string, queue string, name string, measure string, threshold_us bigint,"
            " objective double",
        )

    def _bills(self, dates: Collection[str] | None) -> DataFrame:
        """Return the bills of the days in which something ran; other days have no costs."""
        files = self._tables.files(SERVICE, _hours_of(dates))
        ran = {file.part[:10] for file in files if file.rows}
        return self._local(
            self._settings.bills_for(map(date.fromisoformat, ran)),
            "day date, queue string, worker_us bigint, amount decimal(18,6)",
        )

    def _local(self, rows: Any, columns: str) -> DataFrame:
        return local_rows(self._spark, rows, columns)


def _needed(table: Table, source: Table, parts: Collection[str] | None) -> Collection[str] | None:
    """Return the partitions of a source that these partitions of a table are computed from."""
    if parts is None or table is BACKLOG:
        return None
    if table is SLO:
        back = timedelta(days=SLO_DAYS_BACK)
        parts = set(parts) | {f"{p.start_of(day) - back:%Y-%m-%d}" for day in parts}
    return p.hours_of(parts) if table.by == "date" and source.by == "hour" else parts


def _hours_of(dates: Collection[str] | None) -> Collection[str] | None:
    """Return the hours of days; None, for all days, stays None."""
    return None if dates is None else p.hours_of(dates)
