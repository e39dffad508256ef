"""One measured process of bench/pipeline.py that runs Spark; prints a line of JSON.

python bench/pipeline_spark.py generate LAKE --rows 100000               a lake with that many
    attempts
python bench/pipeline_spark.py build LAKE --rows 100000 --first SMALL    SMALL cold, LAKE warm
python bench/pipeline_spark.py aggregate LAKE --out FOLDER               the aggregates of DuckDB,
    twice
"""

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src"), str(HERE.parent)]

from process_tree import Peak, cpu_seconds  # noqa: E402
from pyspark.sql import DataFrame, SparkSession, Window  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402, N812

from fairlead.clock import SYSTEM_CLOCK  # noqa: E402
from fairlead.pipeline.bronze import ATTEMPTS  # noqa: E402
from fairlead.pipeline.definitions.windows import ALL, WINDOWS  # noqa: E402
from fairlead.pipeline.gold import window_start  # noqa: E402
from fairlead.pipeline.gold.latency import latency, latency_hist  # noqa: E402
from fairlead.pipeline.jobs.build import JobContext, build  # noqa: E402
from fairlead.pipeline.session import session  # noqa: E402
from fairlead.pipeline.settings import Cost, PipelineSettings, Slo  # noqa: E402
from fairlead.pipeline.silver.service import service  # noqa: E402
from fairlead.pipeline.warehouse.location import Location  # noqa: E402
from fairlead.pipeline.warehouse.warehouse import Warehouse  # noqa: E402
from services import iceberg  # noqa: E402
from tests.generate import Truth, write_lake  # noqa: E402

ROWS_A_DAY = 10_000_000 / 28
"""Attempts per day, equal at every size: more rows are more days."""

HOUR = timedelta(hours=1)
SETTINGS = PipelineSettings(
    slo=[Slo("mail", "mail", "5s", 0.99), Slo("media", "media", "10m", 0.95, measure="e2e")],
    cost=Cost(workers=40, worker_hour=1),
)


def truth_of(rows: int) -> Truth:
    """Return the parameters to generate `rows` attempts and two more hours of them; without
    doubles, because the exporter never writes any and the build refuses them."""
    days = rows / ROWS_A_DAY + 2 / 24
    return Truth(rows=round(days * ROWS_A_DAY), days=days, doubled=0.0)


def generate(spark: SparkSession, lake: Warehouse, rows: int) -> dict[str, Any]:
    """Write all attempts but those of the last two hours, which `build_all` adds later."""
    truth = truth_of(rows)
    began = time.perf_counter()
    written = write_lake(spark, lake, truth, until=truth.end - 2 * HOUR)
    seconds = time.perf_counter() - began
    files = lake.table(ATTEMPTS).files()
    return {
        "attempts": written,
        "seconds": seconds,
        "mb": sum(file.bytes for file in files) / 1e6,
        "hours": len({file.part for file in files}),
    }


def build_all(
    spark: SparkSession, lake: Warehouse, rows: int, first: Warehouse, hours: bool
) -> dict[str, Any]:
    """Build the small lake `first`, then the whole `lake`. With `hours`, add an hour with late rows
    of the day before and build again, then add an hour without late rows and build again. The small
    build shows the cost of the first build of a process, in which Java compiles."""
    job, truth = JobContext(spark, lake, SYSTEM_CLOCK), truth_of(rows)
    other = spark.newSession()
    for name, value in first.location.spark().items():
        if name.startswith("spark.sql.catalog."):
            other.conf.set(name, value)
    found = {
        "cold": built(JobContext(other, first, SYSTEM_CLOCK), full=True),
        "warm": built(job, full=True),
    }
    if not hours:
        return found
    write_lake(spark, lake, truth, truth.end - 2 * HOUR, truth.end - HOUR)
    found["hour with late rows"] = built(job)
    write_lake(spark, lake, replace(truth, late=0.0), truth.end - HOUR, truth.end)
    found["hour"] = built(job)
    return found


def built(job: JobContext, full: bool = False) -> dict[str, Any]:
    """Run one build, and return the time of each table, and of `checks` after the last."""
    steps: dict[str, float] = {}
    last = began = time.perf_counter()

    def on_table(table: str, rows: int) -> None:
        nonlocal last
        now = time.perf_counter()
        steps[table] = round(steps.get(table, 0.0) + now - last, 3)
        last = now

    cpu = cpu_seconds()
    run = build(job, SETTINGS, full, on_table)
    on_table("checks", 0)
    return {
        "attempts": run.rows_in,
        "rows_out": run.rows_out,
        "quarantined": run.quarantined,
        "checks": len(run.checks),
        "seconds": time.perf_counter() - began,
        "cpu_s": cpu_seconds() - cpu,
        "steps": steps,
        "rows": run.tables,
    }


def aggregate(spark: SparkSession, lake: Warehouse, out: pathlib.Path) -> dict[str, Any]:
    """Compute the share of each key by minute, hour and day, and percentiles of each name by hour,
    from the same files as DuckDB."""
    paths = [file.path for file in lake.table(ATTEMPTS).files()]

    def once() -> None:
        attempts = (
            spark.read.schema(ATTEMPTS.spark())
            .parquet(*paths)
            .where("started_at is null or finished_at >= started_at")
        )
        shares(attempts).write.mode("overwrite").parquet(str(out / "shares"))
        percentiles(attempts).write.mode("overwrite").parquet(str(out / "percentiles"))

    return {"cold": timed(once), "warm": timed(once)}


def shares(attempts: DataFrame) -> DataFrame:
    """Return (window_start, window_s, queue, fairness_key, busy_us, share)."""
    minutes = service(attempts)
    return reduce(DataFrame.unionByName, [_share(minutes, window_s) for window_s in WINDOWS])


def _share(minutes: DataFrame, window_s: int) -> DataFrame:
    of_queue = F.sum("busy_us").over(Window.partitionBy("window_start", "queue"))
    return (
        minutes.groupBy(
            window_start(F.col("window_start"), window_s).alias("window_start"),
            "queue",
            "fairness_key",
        )
        .agg(F.sum("busy_us").alias("busy_us"))
        .withColumn("share", F.coalesce(F.try_divide("busy_us", of_queue), F.lit(0.0)))
        .withColumn("window_s", F.lit(window_s))
    )


def percentiles(attempts: DataFrame) -> DataFrame:
    """Return (window_start, queue, name, measure, n, p50, p90, p99, p999, max_us) over all keys."""
    together = attempts.withColumn("fairness_key", F.lit(ALL))
    return latency(latency_hist(together), 3600).drop("window_s", "fairness_key", "error_bound")


def timed(call: Callable[[], None]) -> dict[str, float]:
    """Return the seconds of wall time and of processor time."""
    cpu, began = cpu_seconds(), time.perf_counter()
    call()
    return {"seconds": time.perf_counter() - began, "cpu_s": cpu_seconds() - cpu}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["generate", "build", "aggregate"])
    parser.add_argument("lake", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="4g", help="heap of the JVM")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--first", type=pathlib.Path, help="another lake, to be built before")
    parser.add_argument("--hours", action="store_true", help="then build an hour more, twice")
    parser.add_argument("--events", type=pathlib.Path, help="a folder for Spark's event log")
    wanted = parser.parse_args()
    jars = [iceberg.jar(), *iceberg.catalog_jars()]
    settings = {
        "spark.driver.memory": wanted.memory,
        "spark.jars": ",".join(map(str, jars)),
    }
    if wanted.events:
        wanted.events.mkdir(exist_ok=True)
        settings |= {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": wanted.events.absolute().as_uri(),
        }
    with Peak() as peak:
        began = time.perf_counter()
        lake = Warehouse(Location.of(wanted.lake))
        spark = session(f"local[{wanted.cores}]", "bench", settings, lake)
        spark.range(1).count()
        start = time.perf_counter() - began
        if wanted.what == "generate":
            found = generate(spark, lake, wanted.rows)
        elif wanted.what == "build":
            found = build_all(
                spark, lake, wanted.rows, Warehouse(Location.of(wanted.first)), wanted.hours
            )
        else:
            found = aggregate(spark, lake, wanted.out)
        spark.stop()
    print(json.dumps({"start_s": start, "peak_mb": peak.mb, "spark": spark.version, **found}))


if __name__ == "__main__":
    main()
