"""Compute silver and gold from bronze: the partitions that changed since the last build, and all
that depend on them.

Because whole partitions are recomputed, full and incremental builds share one code path and give
the same result, and late rows need no special case. Readers see nothing before the checks have
passed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from string import Template

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fairlead.pipeline import parts as p
from fairlead.pipeline.build_plan import BuildPlan
from fairlead.pipeline.gold.cost import BILLS, cost
from fairlead.pipeline.gold.failures import failures
from fairlead.pipeline.gold.fairness import fairness
from fairlead.pipeline.gold.latency import (
    latency,
    latency_hist,
    latency_of_keys,
)
from fairlead.pipeline.gold.measures import HAS_FAILED
from fairlead.pipeline.gold.slo import Objective, slo, slo_counts
from fairlead.pipeline.gold.tenant_share import tenant_share
from fairlead.pipeline.jobs.totals import TablesOfJob
from fairlead.pipeline.jobs.touched import Touched, touched
from fairlead.pipeline.models import (
    ATTEMPTS,
    BACKLOG,
    COST,
    EVENTS,
    FAILURES,
    FAIRNESS,
    LATENCY,
    LATENCY_HIST,
    OPEN_TASKS,
    QUARANTINE,
    SERVICE,
    SLO,
    SLO_COUNTS,
    TASKS,
    TENANT_SHARE,
)
from fairlead.pipeline.quality import IS_SOUND, IS_SOUND_EVENT, quarantined, sound, sound_events
from fairlead.pipeline.schema import Table
from fairlead.pipeline.settings import PipelineSettings
from fairlead.pipeline.silver.backlog import backlog
from fairlead.pipeline.silver.service import service
from fairlead.pipeline.silver.tasks import continued, tasks
from fairlead.pipeline.silver.waiting import waiting
from fairlead.pipeline.spark_rows import local_rows, overlapping, within
from fairlead.pipeline.warehouse_tables import WarehouseTables
from fairlead.pipeline.windows import ALL, DAY, HOUR

SLO_DAYS_BACK = 3
"""Days of counts that the longest burn rate covers."""


FEW_ROWS = 250_000
"""Rows that one task of Spark takes in, because shuffling them would take longer."""

ROWS_OF_A_SLICE = 100_000
"""Attempts of an hour that one task of Spark takes in; a larger hour is divided into slices."""

_ANY = Template("SELECT 1 AS n FROM $table WHERE $condition LIMIT 1")


class Build:
    """One build: the tables of the plan. `rows` counts the rows written, by table."""

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
        self._failed = False
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
        """Build all tables without publishing them.

        Tables that do not need each other are built at the same time: Spark plans and compiles a
        query in one thread, so that the cores would wait for most of a small build.
        """
        self._side_by_side(self._tasks_and_waits, self._served, self._ended)
        self._shares()

    def _side_by_side(self, *chains: Callable[[], None]) -> None:
        """Run the chains in threads. The first error ends the other chains at their next table."""
        with ThreadPoolExecutor(len(chains)) as pool:
            try:
                running = [pool.submit(chain) for chain in chains]
                wait(running, return_when=FIRST_EXCEPTION)
                for each in sorted(running, key=Future.done, reverse=True):
                    each.result()
            except BaseException:
                self._failed = True
                raise

    def _tasks_and_waits(self) -> None:
        """Build tables of tasks, and of the tasks that waited."""
        hours, before = self._hours(self.touched.tasks), self.touched.continued
        attempts = self._sound().where(within("submitted_at", hours))
        slices = self._slices(hours, EVENTS)
        rows = tasks(attempts, self._submitted(hours), slices)
        if before:
            attempts = self._sound().where(within("submitted_at", before))
            known = self._tables.read(TASKS, before)
            slices = max(slices, self._slices(before, TASKS))
            rows = rows.unionByName(continued(known, attempts, slices))
            hours = self.touched.tasks | before
        self._replace(TASKS, rows, hours, not slices)
        is_open = self._any("{silver.tasks}", "last_finished_at IS NULL", hours)
        still_open = waiting(self._tables.read(TASKS, hours)) if is_open else None
        self._replace(OPEN_TASKS, still_open, hours, not slices)

        open_tasks = self._tables.read(OPEN_TASKS)
        hours = sorted(self._backlog_hours())
        if not hours:
            return
        runs = list(p.runs_of(hours))
        waited = overlapping(
            ["ready_at", "finished_at"], "finished_at", self._hours(self.touched.backlog)
        )
        slices = self._slices(None, OPEN_TASKS)
        rows = backlog(
            self._sound().where(waited),
            open_tasks,
            runs[0][0],
            runs[-1][1],
            datetime.fromtimestamp(self._plan.until / 1e6, UTC),
            None if len(runs) == 1 else [p.start_of(hour) for hour in hours],
            slices,
        )
        self._replace(BACKLOG, rows, self._hours(self.touched.backlog), not slices)

    def _served(self) -> None:
        """Build the tables of the service that each key received, and of its cost."""
        hours = self._hours(self.touched.service)
        ran = overlapping(["started_at", "finished_at"], "finished_at", hours)
        slices = self._slices(hours)
        served = service(self._sound().where(ran), slices).where(within("window_start", hours))
        self._replace(SERVICE, served, hours, not slices)
        self._cost()

    def _ended(self) -> None:
        """Build tables of the attempts that ended in the changed hours."""
        hours = self._hours(self._plan.changed_attempts | self._plan.changed_events)
        unsound = [
            quarantined(self._tables.read(table, hours), table)
            for table, name, is_sound in (
                (ATTEMPTS, "{bronze.attempts}", IS_SOUND),
                (EVENTS, "{bronze.events} AS event", IS_SOUND_EVENT),
            )
            if self._any(name, f"NOT ({is_sound})", hours)
        ]
        broken = reduce(DataFrame.unionByName, unsound) if unsound else None
        self._replace(QUARANTINE, broken, hours)

        dates = self._dates(self._plan.changed_attempts)
        hours = dates and p.hours_of(dates)
        few = self._few(hours, ATTEMPTS)
        attempts = self._read(ATTEMPTS, hours).transform(sound)
        self._replace(LATENCY_HIST, latency_hist(attempts, few), dates, few)
        self._latencies(dates)

        has_failed = self._any("{bronze.attempts}", f"{IS_SOUND} AND {HAS_FAILED}", hours)
        self._replace(FAILURES, failures(attempts, few) if has_failed else None, dates, few)
        objectives = self._objectives()
        counts = slo_counts(attempts, objectives) if objectives else None
        self._replace(SLO_COUNTS, counts, dates, few)
        self._slo(dates)

    def _latencies(self, dates: list[str] | None) -> None:
        """Build the percentiles of these days, None for all."""
        hours = dates and p.hours_of(dates)
        few = self._few(hours, ATTEMPTS, LATENCY_HIST)
        together = latency(self._read(LATENCY_HIST, hours), HOUR, DAY, few=few)
        of_keys = latency_of_keys(
            self._read(ATTEMPTS, hours).transform(sound),
            HOUR,
            DAY,
            least=self._settings.latency.least,
            few=few,
        )
        self._replace(LATENCY, together.unionByName(of_keys), dates, few)

    def _slices(self, hours: Collection[str] | None, *more: Table) -> int:
        """Return the number of Spark's tasks for an hour, so that the largest hour has work for
        several cores; 0 if one task takes in all attempts, and the rows of other tables in these
        hours."""
        if sum(file.rows for file in self._recent) + self._rows_of(hours, *more) <= FEW_ROWS:
            return 0
        return max(1, -(-self._plan.largest // ROWS_OF_A_SLICE))

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

    def _any(self, table: str, condition: str, parts: Collection[str] | None) -> bool:
        """Return whether a row of these partitions meets a condition."""
        text = _ANY.substitute(table=table, condition=condition)
        return bool(self.totals.totals(text, lambda _: parts))

    def _sound(self) -> DataFrame:
        return self._tables.read(ATTEMPTS).transform(sound)

    def _submitted(self, hours: Collection[str] | None) -> DataFrame:
        return submitted(self._tables.read(EVENTS, hours))

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

    def _shares(self) -> None:
        """Build the tables of each key's share, which need the service, the waits and the
        latencies."""
        dates = self._dates(self.touched.service | self.touched.backlog)
        hours = dates and p.hours_of(dates)
        few = self._few(hours, SERVICE, BACKLOG)
        shares = tenant_share(
            self._read(SERVICE, hours),
            self._read(BACKLOG, hours),
            median_pickups(self._read(LATENCY, hours)),
            few,
        )
        self._replace(TENANT_SHARE, shares, dates, few)
        few = self._few(hours, TENANT_SHARE)
        shares = self._read(TENANT_SHARE, hours)
        self._replace(FAIRNESS, fairness(shares.coalesce(1) if few else shares), dates, few)

    def _slo(self, dates: list[str] | None) -> None:
        if not self._settings.slo:
            self._replace(SLO, None, dates and p.days_from(dates, SLO_DAYS_BACK))
            return
        if dates is None:
            self._replace(SLO, slo(self._read(SLO_COUNTS, None), self._objectives()), None)
            return
        later = p.days_from(dates, SLO_DAYS_BACK)
        needed = set(later) | {
            (p.start_of(d) - timedelta(days=SLO_DAYS_BACK)).strftime("%Y-%m-%d") for d in later
        }
        burnt = slo(self._tables.read(SLO_COUNTS, needed), self._objectives())
        self._replace(SLO, burnt.where(within("window_start", later)), later)

    def _cost(self) -> None:
        """Build the costs of the days in which something ran; other days have none."""
        dates = self._dates(self.touched.service)
        hours = dates and p.hours_of(dates)
        ran = {file.part[:10] for file in self._tables.files(SERVICE, hours) if file.rows}
        few = self._few(hours, SERVICE)
        costs = cost(
            self._read(SERVICE, hours),
            local_rows(self._spark, self._settings.bills_for(map(date.fromisoformat, ran)), BILLS),
            self._settings.cost.method,
            few,
        )
        self._replace(COST, costs, dates, few)

    def _objectives(self) -> list[Objective]:
        return [
            Objective(s.id, s.queue, s.name, s.measure, s.threshold_us, float(s.objective))
            for s in self._settings.slo
        ]

    # partitions -----------------------------------------------------------------------------------

    def _hours(self, hours: Collection[str]) -> Collection[str] | None:
        return None if self._plan.full else hours

    def _dates(self, hours: Collection[str]) -> list[str] | None:
        return None if self._plan.full else p.dates_of(hours)

    def _read(self, table: Table, hours: Collection[str] | None) -> DataFrame:
        """Return the rows of the partitions that have a part of these hours; None for all."""
        return self._tables.read(table, _parts(table, hours))

    def _few(self, hours: Collection[str] | None, *tables: Table) -> bool:
        """Return whether one task of Spark takes in the rows of these hours."""
        return self._rows_of(hours, *tables) <= FEW_ROWS

    def _rows_of(self, hours: Collection[str] | None, *tables: Table) -> int:
        files = (self._tables.files(table, _parts(table, hours)) for table in tables)
        return sum(file.rows for each in files for file in each)

    def _replace(
        self,
        table: Table,
        rows: DataFrame | None,
        parts: Collection[str] | None,
        few: bool = False,
    ) -> None:
        """Replace partitions of a table; without a job of Spark if there are no rows (None). Raise
        _Stopped after the error of another chain."""
        if self._failed:
            raise _Stopped
        if rows is None:
            self._tables.clear(table, parts)
            self.rows[table.name] = 0
        else:
            self.rows[table.name] = self._tables.replace(table, rows, parts, few)


class _Stopped(Exception):
    """Another chain of the build has failed."""


def submitted(events: DataFrame) -> DataFrame:
    """Return the events of submits that make sense."""
    return events.where(F.col("kind") == "submitted").transform(sound_events)


def median_pickups(latency: DataFrame) -> DataFrame:
    """Return (day, queue, pickup_p50_us): the median pickup of each queue on each day, as the
    median over its task names."""
    return (
        latency.where(
            (F.col("window_s") == DAY)
            & (F.col("measure") == "pickup")
            & (F.col("fairness_key") == ALL)
        )
        .groupBy(F.unix_seconds("window_start").alias("day"), "queue")
        .agg(F.expr("cast(percentile_approx(p50, 0.5) as bigint)").alias("pickup_p50_us"))
    )


def _parts(table: Table, hours: Collection[str] | None) -> Collection[str] | None:
    """Return the partitions of a table with these hours."""
    return hours if hours is None or table.by == "hour" else p.dates_of(hours)
