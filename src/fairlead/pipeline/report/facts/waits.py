"""Waits: over time, by name, by hour of the week, and under load."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import TYPE_CHECKING

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.clock import MICROS, to_micros
from fairlead.pipeline.definitions.latency import LATENCY_HIST
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.tasks import TASKS
from fairlead.pipeline.definitions.tenant_share import TENANT_SHARE
from fairlead.pipeline.definitions.windows import ALL
from fairlead.pipeline.gold.latency import latency
from fairlead.pipeline.report.facts import collect
from fairlead.pipeline.report.facts.service import QUEUES_DRAWN
from fairlead.pipeline.report.period import Period
from fairlead.pipeline.steps import MOST_POINTS
from fairlead.pipeline.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

HOUR_S = 3600
HOURS_OF_WEEK = 168
_FIRST_MONDAY_S = 4 * 86_400
"""1970-01-05, in seconds since the epoch."""

LOAD_BINS = 20
SLOWDOWN_STEP = 1.1
"""Ratio of neighbouring bins of the slowdown; bin b starts at SLOWDOWN_STEP ** b."""
SLOWDOWN_BINS = 110
"""Last bin of the slowdown, which has no upper bound: 1.1 ** 110 is about 36,000."""


def pickup_over_time(tables: Tables, period: Period, queues: Sequence[str]) -> pd.DataFrame:
    """Return pickup in steps of at least an hour.

    Columns: at, queue, n, p50, p99, p999 (microseconds). At most 202 rows a queue.
    """
    rows = (
        latency(
            _of_all_keys(tables, period)
            .where((F.col("measure") == "pickup") & F.col("queue").isin(list(queues)))
            # Merge the buckets of all names, because percentiles of percentiles would be wrong.
            .withColumn("name", F.lit(ALL)),
            period.step_of(HOUR_S),
        )
        .select(F.col("window_start").alias("at"), "queue", "n", "p50", "p99", "p999")
        .orderBy("queue", "at")
    )
    return collect(rows, QUEUES_DRAWN * (MOST_POINTS + 2))


def by_name(tables: Tables, period: Period, top: int) -> pd.DataFrame:
    """Return pickup and run times by name over the whole period, longest pickup p99 first.

    Columns: queue, name, n; p50, p99, p999, max_us of pickup; run_p50, run_p99. All in
    microseconds. At most `top` rows.
    """
    measured = latency(
        _of_all_keys(tables, period)
        .where(F.col("measure").isin("pickup", "run"))
        .withColumn(LATENCY_HIST.instant, F.timestamp_seconds(F.lit(0))),
        HOUR_S,
    )
    pickup = measured.where(F.col("measure") == "pickup").select(
        "queue", "name", "n", "p50", "p99", "p999", "max_us"
    )
    run = measured.where(F.col("measure") == "run").select(
        "queue", "name", F.col("p50").alias("run_p50"), F.col("p99").alias("run_p99")
    )
    rows = (
        pickup.join(run, on=["queue", "name"], how="left")
        .orderBy(F.desc("p99"), "queue", "name")
        .limit(top)
    )
    return collect(rows, top)


def by_hour_of_week(tables: Tables, period: Period) -> pd.DataFrame:
    """Return load and pickup by hour of the week, all queues together.

    Columns: hour (0: Monday 00:00 UTC, to 167), busy_us (sum over all such hours of the period), n,
    p50 and p99 of pickup in microseconds (null if no run started). At most 168 rows.
    """
    hour = _hour_of_week("window_start")
    load = (
        period.rows(tables, TENANT_SHARE)
        .where(F.col("window_s") == HOUR_S)
        .groupBy(hour.alias("hour"))
        .agg(F.sum("busy_us").alias("busy_us"))
    )
    first_week = F.timestamp_seconds(_hour_of_week(LATENCY_HIST.instant).cast("bigint") * HOUR_S)
    waits = latency(
        _of_all_keys(tables, period)
        .where(F.col("measure") == "pickup")
        .withColumns({"queue": F.lit(ALL), "name": F.lit(ALL), LATENCY_HIST.instant: first_week}),
        HOUR_S,
    ).select((F.unix_seconds("window_start") / HOUR_S).cast("int").alias("hour"), "n", "p50", "p99")
    return collect(load.join(waits, on="hour", how="full").orderBy("hour"), HOURS_OF_WEEK)


def slowdown_by_load(tables: Tables, period: Period) -> pd.DataFrame:
    """Return the number of finished tasks by slowdown and by load of their queue in the minute in
    which they became ready.

    Columns: load (bin 0 to 19, each a twentieth of the queue's busiest minute), slowdown (bin, see
    SLOWDOWN_STEP), n. At most 20 x 111 rows. Source: Feitelson, Workload Modeling for Computer
    Systems Performance Evaluation, 2015, which judges a system under each load separately.
    """
    minutes = (
        period.rows(tables, SERVICE)
        .groupBy("queue", F.col("window_start").alias("minute"))
        .agg(F.sum("busy_us").alias("busy_us"))
    )
    busiest = minutes.groupBy("queue").agg(F.max("busy_us").alias("busiest_us"))
    load = F.coalesce(F.try_divide(F.col("busy_us"), F.col("busiest_us")), F.lit(0.0))
    slowdown = F.floor(F.log(F.col("slowdown")) / log(SLOWDOWN_STEP))
    rows = (
        period.rows(tables, TASKS)
        .where(F.col("e2e_us").isNotNull() & (F.col("attempts") > 0))
        .select(
            "queue",
            "slowdown",
            F.date_trunc("minute", F.coalesce("first_ready_at", "submitted_at")).alias("minute"),
        )
        .join(F.broadcast(minutes), on=["queue", "minute"], how="left")
        .join(F.broadcast(busiest), on="queue", how="left")
        .groupBy(
            _bin(load * LOAD_BINS, LOAD_BINS - 1).alias("load"),
            _bin(slowdown, SLOWDOWN_BINS).alias("slowdown"),
        )
        .agg(F.count(F.lit(1)).alias("n"))
        .orderBy("load", "slowdown")
    )
    return collect(rows, LOAD_BINS * (SLOWDOWN_BINS + 1))


def times_seen(period: Period) -> list[int]:
    """Return how often the period contains each hour of the week."""
    first, last = (
        (to_micros(at) // MICROS - _FIRST_MONDAY_S) // HOUR_S for at in (period.since, period.until)
    )
    whole_weeks, rest = divmod(last - first, HOURS_OF_WEEK)
    return [whole_weeks + ((hour - first) % HOURS_OF_WEEK < rest) for hour in range(HOURS_OF_WEEK)]


def slowdown_percentiles(tasks: pd.DataFrame, bands: int = LOAD_BINS) -> pd.DataFrame:
    """Return percentiles of the bins of `slowdown_by_load` in `bands` bands of load.

    Columns: load (band, from 0), n, p50, p90, p99 (bounded slowdown, the geometric middle of its
    bin: at most 5 % off).
    """
    band = (tasks["load"] * bands // LOAD_BINS).rename("band")
    bins = tasks.groupby([band, "slowdown"])["n"].sum().reset_index()
    total = bins.groupby("band")["n"].transform("sum")
    up_to = bins.groupby("band")["n"].cumsum()
    middle = SLOWDOWN_STEP ** (bins["slowdown"] + 0.5)
    # Show the first bin as 1, the slowdown of most tasks that did not wait.
    value = middle.where(bins["slowdown"] > 0, 1.0)
    columns = {"n": bins.groupby("band")["n"].sum()}
    for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        columns[name] = value[up_to >= part * total].groupby(bins["band"]).min()
    return bins.groupby("band")[[]].first().assign(**columns).rename_axis("load").reset_index()


def _of_all_keys(tables: Tables, period: Period) -> DataFrame:
    return period.rows(tables, LATENCY_HIST).where(F.col("fairness_key") == ALL)


def _hour_of_week(instant: str) -> Expression:
    hours = (F.unix_seconds(instant) - _FIRST_MONDAY_S) / HOUR_S
    return F.pmod(hours.cast("bigint"), F.lit(HOURS_OF_WEEK)).cast("int")


def _bin(value: Expression, last: int) -> Expression:
    return F.least(F.floor(value), F.lit(last)).cast("int")
