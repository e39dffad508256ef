"""Compute silver and gold from bronze: the partitions that changed since the last build, and all
that depend on them.

Because whole partitions are recomputed, full and incremental builds share one code path and give
the same result, and late rows need no special case. Readers see nothing before the checks have
passed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from fairlead.pipeline import parts as p
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS, QUARANTINE
from fairlead.pipeline.build_plan import BuildPlan
from fairlead.pipeline.business_days import (
    Days,
    begin_date,
    days_again,
    days_of,
    hours_within,
    with_neighbours,
)
from fairlead.pipeline.definitions.backlog import BACKLOG
from fairlead.pipeline.definitions.cost import COST
from fairlead.pipeline.definitions.failures import FAILURES
from fairlead.pipeline.definitions.fairness import FAIRNESS
from fairlead.pipeline.definitions.latency import LATENCY, LATENCY_HIST
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.slo import SLO, SLO_COUNTS
from fairlead.pipeline.definitions.tasks import OPEN_TASKS, TASKS
from fairlead.pipeline.definitions.tenant_share import TENANT_SHARE
from fairlead.pipeline.definitions.windows import ALL, DAY, HOUR
from fairlead.pipeline.gold.cost import cost
from fairlead.pipeline.gold.failures import failures
from fairlead.pipeline.gold.fairness import fairness
from fairlead.pipeline.gold.latency import latency, latency_hist
from fairlead.pipeline.gold.measures import has_failed
from fairlead.pipeline.gold.slo import Objective, slo, slo_counts
from fairlead.pipeline.gold.tenant_share import tenant_share
from fairlead.pipeline.quality import quarantined, sound, sound_events
from fairlead.pipeline.runs import OnRows
from fairlead.pipeline.schema import Table
from fairlead.pipeline.settings import PipelineSettings
from fairlead.pipeline.silver.backlog import backlog
from fairlead.pipeline.silver.service import service
from fairlead.pipeline.silver.tasks import continued, tasks
from fairlead.pipeline.silver.waiting import waiting
from fairlead.pipeline.spark_rows import between, overlapping, within
from fairlead.pipeline.warehouse_tables import WarehouseTables

SLO_DAYS_BACK = 3
"""Days of counts that the longest burn rate covers."""


ROWS_OF_A_SLICE = 100_000
"""Attempts of an hour that one task of Spark takes in; a larger hour is divided into slices."""


class Build:
    """One build: the tables of the plan. `rows` counts the rows written, by table."""

    def __init__(
        self,
        spark: SparkSession,
        tables: WarehouseTables,
        plan: BuildPlan,
        settings: PipelineSettings,
        on_rows: OnRows,
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._plan = plan
        self._settings = settings
        self._on_rows = on_rows
        self._failed = False
        self.rows: dict[str, int] = {}
        self.parts: dict[str, Collection[str] | None] = {}
        """Rebuilt partitions, by table; None for all."""
        self.touched = Touched(set(), set(), set(), set()) if plan.full else touched(tables, plan)

    def run(self) -> None:
        """Build all tables without publishing them.

        Tables that do not need each other are built at the same time: Spark plans and compiles a
        query in one thread, so that the cores would wait for most of a small build.
        """
        self._side_by_side(self._tasks_and_waits, self._served, self._ended)
        self._side_by_side(self._shares, self._cost)

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
        rows = tasks(attempts, self._submitted(hours), self._slices)
        if before:
            attempts = self._sound().where(within("submitted_at", before))
            known = self._tables.read(TASKS, before)
            rows = rows.unionByName(continued(known, attempts, self._slices))
            hours = self.touched.tasks | before
        self._replace(TASKS, rows, hours)
        self._replace(OPEN_TASKS, waiting(self._tables.read(TASKS, hours)), hours)

        open_tasks = self._tables.read(OPEN_TASKS)
        hours = sorted(self._backlog_hours(open_tasks))
        if not hours:
            return
        runs = list(p.runs_of(hours))
        waited = overlapping(
            ["ready_at", "finished_at"], "finished_at", self._hours(self.touched.backlog)
        )
        rows = backlog(
            self._sound().where(waited),
            open_tasks,
            runs[0][0],
            runs[-1][1],
            datetime.fromtimestamp(self._plan.until / 1e6, UTC),
            None if len(runs) == 1 else [p.start_of(hour) for hour in hours],
            self._slices,
        )
        self._replace(BACKLOG, rows, self._hours(self.touched.backlog))

    def _served(self) -> None:
        """Build the table of the service that each key received."""
        hours = self._hours(self.touched.service)
        served = service(self.runs(hours), self._slices).where(within("window_start", hours))
        self._replace(SERVICE, served, hours)

    def _ended(self) -> None:
        """Build tables of the attempts that ended in the changed hours."""
        hours = self._hours(self._plan.changed_attempts | self._plan.changed_events)
        broken = quarantined(self._tables.read(ATTEMPTS, hours)).unionByName(
            quarantined(self._tables.read(EVENTS, hours), EVENTS)
        )
        self._replace(QUARANTINE, broken, hours)

        days = self._days_again(self._plan.changed_attempts)
        # Tables made from silver and gold have whole days, also those that bronze has in part.
        known = self._days_again(self._plan.changed_attempts, self._plan.first_day)
        hist = latency_hist(self._of_days(ATTEMPTS, known).transform(sound), self._zone)
        self._replace_days(LATENCY_HIST, hist, known)
        percentiles = latency(
            self._of_days(LATENCY_HIST, days),
            HOUR,
            DAY,
            least=self._settings.latency.least,
            zone=self._zone,
        )
        self._replace_days(LATENCY, percentiles, days)

        dates = self._dates(self._plan.changed_attempts)
        attempts = self._days(ATTEMPTS, dates).transform(sound)
        # The table of failures needs many passes, and nothing failed in most small builds.
        nothing_failed = attempts.where(has_failed()).isEmpty()
        self._replace(FAILURES, None if nothing_failed else failures(attempts), dates)
        objectives = self._objectives()
        counts = slo_counts(attempts, objectives) if objectives else None
        self._replace(SLO_COUNTS, counts, dates)
        self._slo(dates)

    @property
    def _slices(self) -> int:
        """Number of Spark's tasks for an hour, so that the largest hour has work for several
        cores."""
        return max(1, -(-self._plan.largest // ROWS_OF_A_SLICE))

    def runs(self, hours: Collection[str] | None) -> DataFrame:
        """Return the sound attempts that ran in these hours; None for all."""
        ran = overlapping(["started_at", "finished_at"], "finished_at", hours)
        return self._sound().where(ran)

    def _sound(self) -> DataFrame:
        return self._tables.read(ATTEMPTS).transform(sound)

    def _submitted(self, hours: Collection[str] | None) -> DataFrame:
        return submitted(self._tables.read(EVENTS, hours))

    def _backlog_hours(self, open_tasks: DataFrame) -> Collection[str]:
        """Return the hours whose backlog is rebuilt; in a full build, all hours since the first
        task became ready."""
        if not self._plan.full:
            return self.touched.backlog
        instants = [self._plan.first("ready_at", "finished_at")]
        first_open = open_tasks.agg(F.min(F.unix_micros("ready_at")).alias("first")).first()
        if first_open is not None:
            instants.append(first_open["first"])
        known = [at for at in instants if at is not None]
        return p.hours_between(min(known), self._plan.until) if known else []

    def _shares(self) -> None:
        """Build the tables of each key's share, which need the service, the waits and the
        latencies."""
        days = self._days_again(self.touched.service | self.touched.backlog)
        shares = tenant_share(
            self._of_days(SERVICE, days),
            self._of_days(BACKLOG, days),
            median_pickups(self._of_days(LATENCY, days)),
            self._zone,
        )
        self._replace_days(TENANT_SHARE, shares, days)
        dates = None if days is None else days.dates
        self._replace(FAIRNESS, fairness(self._days(TENANT_SHARE, dates)), dates)

    def _slo(self, dates: list[str] | None) -> None:
        if not self._settings.slo:
            self._replace(SLO, None, dates and p.days_from(dates, SLO_DAYS_BACK))
            return
        if dates is None:
            self._replace(SLO, slo(self._tables.read(SLO_COUNTS), self._objectives()), None)
            return
        later = p.days_from(dates, SLO_DAYS_BACK)
        needed = set(later) | {
            (p.start_of(d) - timedelta(days=SLO_DAYS_BACK)).strftime("%Y-%m-%d") for d in later
        }
        burnt = slo(self._days(SLO_COUNTS, sorted(needed)), self._objectives())
        self._replace(SLO, burnt.where(within("window_start", later)), later)

    def _cost(self) -> None:
        """Build the costs of the business days in which something ran."""
        hours = None if self._plan.all_days else self._hours(self.touched.service)
        zone = self._settings.zone
        days = days_of(self._tables.parts(SERVICE), zone)
        of_days = parts = None
        if hours is not None:
            changed = days_of(hours, zone)
            # A day of these hours on which nothing ran has no costs, as in a full build.
            days.intersection_update(with_neighbours(changed, zone))
            of_days = hours_within(days, zone)
            parts = sorted({begin_date(day, zone) for day in changed})
        bills = self._spark.createDataFrame(
            self._settings.bills_for(days),
            "day date, queue string, worker_us bigint, amount decimal(18,6)",
        )
        costs = cost(
            self._tables.read(SERVICE, of_days), bills, self._settings.cost.method, zone.key
        )
        self._replace(COST, costs.where(within("day", parts)), parts)

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

    def _days_again(self, hours: Collection[str], first: str = "") -> Days | None:
        """Return the business days of these hours, from the date `first` on; None for all."""
        if self._plan.full or (self._plan.all_days and not first):
            return None
        return days_again(hours, self._settings.zone, first)

    @property
    def _zone(self) -> str:
        return self._settings.zone.key

    def _days(self, table: Table, dates: list[str] | None) -> DataFrame:
        if dates is None:
            return self._tables.read(table)
        return self._tables.read(table, p.hours_of(dates) if table.by == "hour" else dates)

    def _of_days(self, table: Table, days: Days | None) -> DataFrame:
        """Return the rows of business days, and others of the same hours or dates."""
        if days is None:
            return self._tables.read(table)
        parts = days.hours if table.by == "hour" else p.dates_of(days.hours)
        return self._tables.read(table, parts)

    def _replace_days(self, table: Table, rows: DataFrame, days: Days | None) -> None:
        """Replace the rows of business days; the other rows of their partitions stay."""
        if days is not None:
            inside = between(table.instant, days.spans)
            rows = rows.where(inside)
            if self._zone != "UTC":
                rows = rows.unionByName(self._tables.read(table, days.dates).where(~inside))
        self._replace(table, rows, None if days is None else days.dates)

    def _replace(self, table: Table, rows: DataFrame | None, parts: Collection[str] | None) -> None:
        """Replace partitions of a table; without a job of Spark if there are no rows (None). Raise
        _Stopped after the error of another chain."""
        if self._failed:
            raise _Stopped
        if rows is None:
            self._tables.clear(table, parts)
        self.rows[table.name] = 0 if rows is None else self._tables.replace(table, rows, parts)
        self.parts[table.name] = parts
        self._on_rows(table.name, self.rows[table.name])


class _Stopped(Exception):
    """Another chain of the build has failed."""


class Touched(NamedTuple):
    """Hours whose rows change, by table."""

    tasks: set[str]
    service: set[str]
    backlog: set[str]
    continued: set[str]
    """Hours of forgotten days in which tasks were submitted that have ended later."""


def submitted(events: DataFrame) -> DataFrame:
    """Return the events of submits that make sense."""
    return events.where(F.col("kind") == "submitted").transform(sound_events)


def touched(tables: WarehouseTables, plan: BuildPlan) -> Touched:
    """Return the hours that depend on the changed partitions: the hours of their submits, runs and
    waits, and every hour since the last build, because tasks may still wait."""
    attempts = tables.read(ATTEMPTS, plan.changed_attempts).transform(sound)
    events = submitted(tables.read(EVENTS, plan.changed_events))
    first_ready = F.least(F.coalesce("ready_at", "finished_at"), "finished_at")
    until = F.timestamp_micros(F.lit(plan.until))
    waits_from = F.greatest("at", "run_at")
    of_attempts = attempts.transform(
        _hours_of,
        ("tasks", F.col("submitted_at"), F.col("submitted_at")),
        ("service", F.least("started_at", "finished_at"), F.col("finished_at")),
        ("backlog", first_ready, F.col("finished_at")),
    )
    of_events = events.transform(
        _hours_of,
        ("tasks", F.col("at"), F.col("at")),
        ("backlog", F.when(waits_from <= until, waits_from), until),
    )
    found = of_attempts.union(of_events).distinct().collect()  # one row for each hour touched
    hours: dict[str, set[str]] = {"tasks": set(), "service": set(), "backlog": set()}
    for row in found:
        hours[row["what"]].add(row["hour"])
    for each in hours.values():
        each.update(plan.again)
    if plan.since:
        hours["backlog"].update(p.hours_between(plan.since, plan.until))
    # Bronze has no rows of the days before the first one, so their tables stay as they are.
    kept = {what: {hour for hour in each if hour >= plan.first_day} for what, each in hours.items()}
    return Touched(**kept, continued=hours["tasks"] - kept["tasks"])


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


def _hours_of(rows: DataFrame, *spans: tuple[str, Column, Column]) -> DataFrame:
    """Return (what, hour) of the hours that the spans of the rows touch. A span is what it touches,
    its first and its last instant; it touches nothing if one is null."""
    each = F.array(
        *(
            F.struct(
                F.lit(what).alias("what"),
                F.date_trunc("hour", first).alias("begin"),
                F.date_trunc("hour", last).alias("end"),
            )
            for what, first, last in spans
        )
    )
    return (
        rows.select(F.inline(each))
        .where(F.col("begin") <= F.col("end"))
        .distinct()
        .select(
            "what", F.explode(F.sequence("begin", "end", F.expr("interval 1 hour"))).alias("at")
        )
        .select("what", F.date_format("at", "yyyy-MM-dd/HH").alias("hour"))
    )
