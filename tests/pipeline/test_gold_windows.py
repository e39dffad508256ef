"""Windows of business days, in zones whose clocks change and whose hours begin between those of UTC."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fairlead.pipeline.business_days import bounds_of
from fairlead.pipeline.definitions.backlog import BACKLOG
from fairlead.pipeline.definitions.latency import LATENCY_HIST
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.windows import DAY, HOUR, WINDOWS
from fairlead.pipeline.gold import window_length, window_start
from fairlead.pipeline.gold.latency import latency, latency_hist, latency_of_keys
from fairlead.pipeline.gold.tenant_share import tenant_share
from tests.pipeline.frames import attempt, attempts_frame, frame, records
from tests.pipeline.silver_rows import served, waited

ZONES = [
    "UTC",
    "Europe/Berlin",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "Atlantic/Azores",
]
CHANGES = [
    date(2026, 3, 28),
    date(2026, 4, 4),
    date(2026, 4, 23),
    date(2026, 10, 3),
    date(2026, 10, 24),
]
"""Days before clocks change in one of the zones."""


@pytest.mark.parametrize("name", ZONES)
def test_windows_of_any_zone_begin_and_end_as_in_plain_python(
    spark: SparkSession, name: str
) -> None:
    zone = ZoneInfo(name)
    instants = [
        datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(minutes=17 * n)
        for day in CHANGES
        for n in range(4 * 24 * 60 // 17)
    ]
    at = spark.createDataFrame([(int(i.timestamp()),) for i in instants], "s bigint").select(
        F.timestamp_seconds("s").alias("at"),
        F.explode(F.array(*map(F.lit, WINDOWS))).alias("window_s"),
    )
    start = window_start(F.col("at"), F.col("window_s"), name)
    length = window_length(F.unix_seconds(start), F.col("window_s"), name)
    for row in at.select("at", "window_s", start.alias("start"), length.alias("length")).collect():
        instant = row["at"].astimezone(UTC)
        begin, end = bounds_of(instant.astimezone(zone).date(), zone)
        step = (end - begin) if row["window_s"] == DAY else timedelta(seconds=row["window_s"])
        wanted = begin + (instant - begin) // step * step
        assert row["start"].astimezone(UTC) == wanted
        assert timedelta(seconds=row["length"]) == min(step, end - wanted)


@pytest.mark.parametrize("name", ZONES)
def test_runs_are_counted_on_the_day_of_the_zone_on_which_they_ended(
    spark: SparkSession, name: str
) -> None:
    """A run of a second ends in each quarter of an hour of three days in autumn."""
    zone = ZoneInfo(name)
    first = datetime(2026, 10, 24, tzinfo=UTC)
    ends = [first + timedelta(minutes=15 * n) for n in range(4 * 72)]
    rows = [
        attempt(task_id=str(n), started_at=end - timedelta(seconds=1), finished_at=end)
        for n, end in enumerate(ends)
    ]
    attempts = attempts_frame(spark, rows)
    hist = latency_hist(attempts, name)
    of_day = [bounds_of(end.astimezone(zone).date(), zone)[0] for end in ends]
    for made in (
        latency(hist, HOUR, DAY, zone=name),
        latency_of_keys(attempts, HOUR, DAY, zone=name),
    ):
        runs = [row for row in records(made) if row["measure"] == "run"]
        days = {row["window_start"]: row["n"] for row in runs if row["window_s"] == DAY}
        assert days == {day: of_day.count(day) for day in of_day}
        hours = [row for row in runs if row["window_s"] == HOUR]
        assert sum(row["n"] for row in hours) == len(ends)
        assert len({row["window_start"] for row in hours}) == len(hours)
    assert hist.columns == LATENCY_HIST.column_names


def test_a_day_of_25_hours_is_waited_throughout_and_lag_restarts_after_it(
    spark: SparkSession,
) -> None:
    begin, end = bounds_of(date(2026, 10, 25), ZoneInfo("Europe/Berlin"))
    minutes = [begin + timedelta(minutes=n) for n in range(25 * 60 + 1)]
    service = [served(0, "b", 10) | {"window_start": minute} for minute in minutes]
    backlog = [
        waited(0, key, arrived_us=100_000_000) | {"minute": minute}
        for minute in minutes
        for key in ("a", "b")
    ]
    made = records(
        tenant_share(
            frame(spark, SERVICE, service),
            frame(spark, BACKLOG, backlog),
            spark.createDataFrame([], "day bigint, queue string, pickup_p50_us bigint"),
            "Europe/Berlin",
        )
    )
    of_a = {
        (row["window_s"], row["window_start"]): row for row in made if row["fairness_key"] == "a"
    }
    day = of_a[DAY, begin]
    assert day["throughout"] and day["backlogged_fraction"] == 1
    assert not of_a[DAY, end]["throughout"]
    assert of_a[60, end - timedelta(minutes=1)]["lag_us"] == 1500 * of_a[60, begin]["lag_us"]
    assert of_a[60, end]["lag_us"] == of_a[60, begin]["lag_us"]
