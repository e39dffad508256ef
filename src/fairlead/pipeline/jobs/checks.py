"""Checks that the totals of the layers agree. A failed check fails the run before it publishes any
table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from zoneinfo import ZoneInfo

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.bronze import ATTEMPTS, QUARANTINE
from fairlead.pipeline.definitions.cost import COST
from fairlead.pipeline.definitions.latency import LATENCY_HIST
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.tasks import OPEN_TASKS, TASKS
from fairlead.pipeline.definitions.tenant_share import TENANT_SHARE
from fairlead.pipeline.definitions.windows import HOUR
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.gold import window_start
from fairlead.pipeline.parts import days_from, hours_of, runs_of
from fairlead.pipeline.quality import is_sound, sound
from fairlead.pipeline.runs import Check
from fairlead.pipeline.spark_rows import within
from fairlead.pipeline.warehouse_tables import WarehouseTables

_UTC = ZoneInfo("UTC")


def require(checks: Sequence[Check]) -> None:
    """Raise CheckFailed with the name of every check that failed."""
    failed = [
        f"{c.name}: expected {c.expected:,.0f}, found {c.found:,.0f}" for c in checks if not c.holds
    ]
    if failed:
        raise CheckFailed("; ".join(failed))


def bronze_checks(
    tables: WarehouseTables, parts: Collection[str] | None, listed: int
) -> list[Check]:
    """Check the hours `parts` of bronze, or all hours. The files have as many rows as their list
    says (`listed`), each key is unique, and each row is valid or in quarantine."""
    attempts = tables.read(ATTEMPTS, parts)
    # Count hashes of the keys, which is cheaper than counting keys. If there are as many distinct
    # hashes as rows, all keys differ; otherwise count the keys themselves.
    counted = _one(
        attempts.select(is_sound().alias("sound"), F.xxhash64(*ATTEMPTS.key).alias("key")).agg(
            F.count(F.lit(1)).alias("rows"),
            F.count_if("sound").alias("sound"),
            F.count_distinct("key").alias("keys"),
        )
    )
    rows, keys = counted["rows"], counted["keys"]
    if keys != rows:
        keys = attempts.select(*ATTEMPTS.key).distinct().count()
    quarantined = tables.read(QUARANTINE, parts).count()
    return [
        Check("bronze.attempts: rows in the files", listed, rows),
        Check("bronze.attempts: keys are unique", rows, keys),
        Check("rows are sound or in quarantine", rows, counted["sound"] + quarantined),
    ]


def latency_checks(
    tables: WarehouseTables, dates: Collection[str] | None, zone: ZoneInfo = _UTC
) -> list[Check]:
    """Check that the histogram counts each run of these dates once. The hours of the histogram are
    those of business days of `zone`."""
    # The last hour of a date ends on the next one where the zone is half an hour off.
    hours = None
    if dates is not None:
        hours = [*hours_of(dates), *(f"{date}/00" for date in days_from(dates, 1))]
    runs = _one(
        tables.read(ATTEMPTS, hours)
        .transform(sound)
        .select("started_at", window_start(F.col("finished_at"), HOUR, zone.key).alias("hour"))
        .where(within("hour", dates))
        .agg(F.count("started_at").alias("n"))
    )
    counted = _one(
        tables.read(LATENCY_HIST, dates)
        .where((F.col("measure") == "run") & (F.col("fairness_key") == "*"))
        .agg(F.sum("n").alias("n"))
    )
    return [Check("gold.latency_hist: runs in the histogram", runs["n"], counted["n"])]


def service_checks(
    tables: WarehouseTables, attempts: DataFrame, hours: Collection[str] | None
) -> list[Check]:
    """Check that the worker time in silver.service equals the time that the runs spend inside these
    hours, to 1 us."""
    begin, end = F.unix_micros("started_at"), F.unix_micros("finished_at")
    if hours is None:
        inside = end - begin
    else:
        inside = _inside(begin, end, hours)
    # Omit attempts that never started: `greatest` ignores nulls, so such an attempt would seem to
    # run in all hours.
    spent = _one(attempts.where(F.col("started_at").isNotNull()).agg(F.sum(inside).alias("us")))
    served = _one(tables.read(SERVICE, hours).agg(F.sum("busy_us").alias("us")))
    return [Check("silver.service: worker time in microseconds", spent["us"], served["us"])]


def layer_checks(tables: WarehouseTables) -> list[Check]:
    """Check the totals of the layers against each other, over all rows."""
    attempts = tables.read(ATTEMPTS).transform(sound)
    runs = F.unix_micros("finished_at") - F.unix_micros("started_at")
    bronze = _one(
        attempts.agg(
            F.sum(runs).alias("us"), F.count_distinct("store_id", "task_id").alias("tasks")
        )
    )
    silver = _one(
        tables.read(TASKS).agg(
            F.sum("run_us").alias("us"),
            F.count_if(F.col("last_finished_at").isNotNull()).alias("tasks"),
            F.count_if(F.col("last_finished_at").isNull()).alias("open"),
            F.count(F.lit(1)).alias("rows"),
            F.count_distinct("store_id", "task_id").alias("keys"),
        )
    )
    served = _one(
        tables.read(SERVICE).agg(F.sum("busy_us").alias("us"), F.sum("attempts_started").alias("n"))
    )
    open_tasks = tables.read(OPEN_TASKS).count()
    checks = [
        Check("silver.tasks: tasks with an attempt", bronze["tasks"], silver["tasks"]),
        Check("silver.tasks: keys are unique", silver["rows"], silver["keys"]),
        Check("silver.tasks: worker time in microseconds", bronze["us"], silver["us"]),
        Check("silver.open_tasks: tasks without an attempt", silver["open"], open_tasks),
        Check("silver.service: worker time in microseconds", bronze["us"], served["us"]),
    ]
    for window in (
        tables.read(TENANT_SHARE).groupBy("window_s").agg(F.sum("busy_us").alias("us")).collect()
    ):
        checks.append(
            Check(
                f"gold.tenant_share: worker time by {window['window_s']} s",
                served["us"] or 0,
                window["us"] or 0,
            )
        )
    costs = _one(tables.read(COST).agg(F.sum("busy_us").alias("us")))
    checks.append(Check("gold.cost: worker time in microseconds", served["us"], costs["us"]))
    return checks


def _inside(begin: Column, end: Column, hours: Collection[str]) -> Column:
    total = F.lit(0).cast("bigint")
    for since, until in runs_of(hours):
        low, high = round(since.timestamp() * 1_000_000), round(until.timestamp() * 1_000_000)
        total = total + F.greatest(
            F.lit(0), F.least(end, F.lit(high)) - F.greatest(begin, F.lit(low))
        )
    return total


def _one(frame: DataFrame) -> dict[str, int]:
    """Return the only row of an aggregation; a sum over no rows is 0."""
    row = frame.first()
    assert row is not None
    return {name: int(value or 0) for name, value in row.asDict().items()}
