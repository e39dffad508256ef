"""A build of generated attempts shows what they were generated from, and Spark SQL, DuckDB and
PyIceberg read the same rows of its tables."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest

from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.jobs.build import JobContext, build
from fairlead.pipeline.models import ATTEMPTS, LATENCY_HIST, QUARANTINE, SERVICE, TABLES, TASKS
from fairlead.pipeline.reading.history import History
from fairlead.pipeline.reading.query import open_views
from fairlead.pipeline.reading.snapshots import Snapshots
from fairlead.pipeline.schema import Table
from fairlead.pipeline.settings import Bill, Cost, Latency, PipelineSettings, Slo
from fairlead.pipeline.warehouse.builds import Builds
from fairlead.pipeline.warehouse.location import CATALOG, NAMESPACE, flat_name
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.lake_history import Question
from tests.generate import Truth, write_lake
from tests.pipeline.conftest import SparkOn
from tests.pipeline.warehouses import lake_in, root_of

TRUTH = Truth(
    rows=20_000,
    start=datetime(2026, 3, 2, 17, tzinfo=UTC),
    days=0.5,
    tenants=9,
    burst_pickup_s=90.0,
    burst_times=10.0,
    doubled=0.0,
    stepped=0.002,
    late_hours=3.0,
)
BILLS = [
    Bill(date(2026, 3, 2), Decimal("100.01"), 60.0),
    Bill(date(2026, 3, 2), Decimal("33.333333"), 9.0, "media"),
    Bill(date(2026, 3, 3), Decimal("7"), 400.0),
]
SLOS = [
    Slo("quick", "mail", "2s", 0.9),
    Slo("ends", "default", "5m", 0.99, measure="e2e"),
    Slo("short", "media", "1s", 0.5),
]
LEAST = 20
SETTINGS = PipelineSettings(
    slo=SLOS, cost=Cost(method="usage"), bill=BILLS, latency=Latency(least=LEAST)
)


@pytest.fixture(scope="module")
def lake(spark_on: SparkOn, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    lake = lake_in(tmp_path_factory.mktemp("lake"))
    spark = spark_on(lake)
    write_lake(spark, lake, TRUTH)
    build(JobContext(spark, lake, SYSTEM_CLOCK), SETTINGS)
    return lake


@pytest.fixture(scope="module")
def attempts(lake: Warehouse) -> pd.DataFrame:
    return rows(lake, ATTEMPTS)


def rows(lake: Warehouse, table: Table) -> pd.DataFrame:
    """Return the whole table, with instants as microseconds."""
    found = lake.table(table).load()
    for position, field in enumerate(found.schema):
        if pa.types.is_timestamp(field.type):
            found = found.set_column(position, field.name, found[field.name].cast(pa.int64()))
    frame = found.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return frame.astype(
        {
            name: "int64"
            for name in frame
            if frame[name].dtype == "Int64" and frame[name].notna().all()
        }
    )


def test_only_attempts_whose_clock_jumped_are_quarantined(
    lake: Warehouse, attempts: pd.DataFrame
) -> None:
    broken = attempts[(attempts.finished_at < attempts.started_at).fillna(False)]
    assert len(broken) > 10
    assert sorted(rows(lake, QUARANTINE).ordinal) == sorted(
        broken.task_id + "/" + broken.version.astype(str)
    )


def test_tables_show_the_generated_parameters(lake: Warehouse, attempts: pd.DataFrame) -> None:
    """Shares of tenants, and run times and failure rates of works, equal the parameters within five
    standard errors."""
    served = rows(lake, SERVICE).groupby("name")[["busy_us", "attempts_started", "failed"]].sum()
    for work in TRUTH.works:
        busy_us, started, failed = served.loc[work.name]
        assert abs(busy_us / 1e6 / started - work.mean_s) < 5 * work.deviation_s / started**0.5
        assert abs(failed / started - work.failing) <= 5 * (work.failing / started) ** 0.5
    tasks = rows(lake, TASKS).groupby("fairness_key").size()
    for tenant in range(TRUTH.tenants):
        expected = TRUTH.tasks * TRUTH.share(tenant)
        assert abs(tasks[TRUTH.key(tenant)] - expected) < 5 * expected**0.5


# three engines ------------------------------------------------------------


def ordered(table: Table, rows: pa.Table) -> pa.Table:
    """Return the rows with the types of the dictionary, in the order of the key."""
    typed = pa.Table.from_arrays(
        [rows[field.name].cast(field.type) for field in table.arrow()],
        schema=pa.schema([field.with_nullable(True) for field in table.arrow()]),
    )
    return typed.sort_by([(name, "ascending") for name in table.key]).combine_chunks()


def test_three_engines_read_the_same_rows(lake: Warehouse, spark_on: SparkOn) -> None:
    plain = spark_on(lake)  # knows the catalog, and nothing of Fairlead
    made = Snapshots(lake).read().tables
    counts = {}
    with open_views(lake) as views:
        for table in made:
            name = f"{NAMESPACE}.{flat_name(table)}"
            by_duckdb = ordered(table, views.sql(f"FROM {table.name}").to_arrow_table())
            by_pyiceberg = ordered(table, lake.catalog.load_table(name).scan().to_arrow())
            by_spark = ordered(table, plain.sql(f"SELECT * FROM {CATALOG}.{name}").toArrow())
            assert by_duckdb == by_pyiceberg, table.name
            assert by_spark == by_pyiceberg, table.name
            counts[table.name] = len(by_pyiceberg)
    assert {table.name for table in TABLES} >= counts.keys() >= {"gold.cost", "silver.service"}
    assert counts["bronze.attempts"] > 15_000
    assert sum(count > 0 for count in counts.values()) >= 12, counts


def test_the_history_of_a_lake_adds_up_what_the_build_made(lake: Warehouse) -> None:
    served, history = rows(lake, SERVICE), History(root_of(lake))
    for by in ("queue", "tenant", "name"):
        runs = history.runs(Question(by=by)).rows  # type: ignore[arg-type]
        assert sum(r.started for r in runs) == served["attempts_started"].sum()
        assert sum(r.busy_us for r in runs) == served["busy_us"].sum()
    hist = rows(lake, LATENCY_HIST)
    pickups = hist[(hist.measure == "pickup") & (hist.fairness_key == "*")].groupby("queue").n.sum()
    assert {row.part: row.n for row in history.waits(Question(points=1)).rows} == pickups.to_dict()
    assert history.as_of().history_until == Builds(lake).newest()[0].until
