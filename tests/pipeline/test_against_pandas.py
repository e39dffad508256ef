"""The build equals an independent computation in plain pandas on the same generated attempts, exactly
or, for percentiles, within their stated error; and Spark SQL, DuckDB and PyIceberg read the same rows
of its tables."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.bronze import ATTEMPTS, QUARANTINE
from fairlead.pipeline.definitions.backlog import BACKLOG
from fairlead.pipeline.definitions.cost import COST
from fairlead.pipeline.definitions.failures import FAILURES
from fairlead.pipeline.definitions.fairness import FAIRNESS
from fairlead.pipeline.definitions.latency import ERROR_BOUND, LATENCY, LATENCY_HIST
from fairlead.pipeline.definitions.service import SERVICE
from fairlead.pipeline.definitions.slo import SLO, SPANS
from fairlead.pipeline.definitions.tasks import TASKS
from fairlead.pipeline.definitions.tenant_share import TENANT_SHARE
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.jobs.build import JobContext, build
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
from tests.pipeline import pandas_twin as twin
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
KEY = ["queue", "fairness_key"]


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


@pytest.fixture(scope="module")
def cut(attempts: pd.DataFrame) -> pd.DataFrame:
    return twin.pieces(twin.runs_of(attempts))


@pytest.fixture(scope="module")
def stays(attempts: pd.DataFrame) -> dict[tuple[str, str], twin.Stays]:
    return {key: twin.Stays(of_key) for key, of_key in twin.sound(attempts).groupby(KEY)}


def rows(lake: Warehouse, table: Table) -> pd.DataFrame:
    return twin.rows_of(lake.table(table))


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Assert that both have the same index, and equal values in the columns of `expected`."""
    found = found[expected.columns].sort_index()
    expected = expected.sort_index()
    pd.testing.assert_frame_equal(
        found, expected, check_dtype=False, check_index_type=False, check_column_type=False
    )


def test_only_attempts_whose_clock_jumped_are_quarantined(
    lake: Warehouse, attempts: pd.DataFrame
) -> None:
    broken = attempts[(attempts.finished_at < attempts.started_at).fillna(False)]
    assert len(broken) > 10
    assert sorted(rows(lake, QUARANTINE).ordinal) == sorted(
        broken.task_id + "/" + broken.version.astype(str)
    )


def test_a_task_is_the_sum_of_its_attempts(lake: Warehouse, attempts: pd.DataFrame) -> None:
    good = twin.sound(attempts).sort_values("version")
    waited = (good.claimed_at - good.ready_at).clip(lower=0)
    run_us = (good.finished_at - good.started_at).fillna(0)
    of_task = good.assign(
        run_us=run_us, queue_us=waited.fillna(0), ran=good.started_at.notna()
    ).groupby("task_id")
    expected = pd.DataFrame(
        {
            "attempts": of_task.ran.sum(),
            "run_us": of_task.run_us.sum(),
            "queue_us": of_task.queue_us.sum(),
            "state": of_task.next_state.last(),
            "first_ready_at": of_task.ready_at.min(),
            "first_claimed_at": of_task.claimed_at.min(),
            "last_finished_at": of_task.finished_at.max(),
        }
    )
    same(rows(lake, TASKS).set_index("task_id"), expected)


def test_service_has_every_run_cut_at_full_minutes(
    lake: Warehouse, attempts: pd.DataFrame, cut: pd.DataFrame
) -> None:
    found = rows(lake, SERVICE).rename(columns={"window_start": "minute"})
    same(found.set_index(["minute", *KEY, "name"]), twin.service(cut))
    assert found.busy_us.sum() == twin.runs_of(attempts).run_us.sum()


def test_every_task_that_became_ready_arrived_once(lake: Warehouse, attempts: pd.DataFrame) -> None:
    assert rows(lake, BACKLOG).arrived.sum() == twin.sound(attempts).ready_at.notna().sum()


@pytest.mark.parametrize("window_s", [60, 3600, 86_400])
def test_busy_time_and_share_of_a_key_follow_from_its_runs(
    lake: Warehouse, cut: pd.DataFrame, window_s: int
) -> None:
    window = window_s * twin.SECOND
    busy = (
        cut.assign(window_start=cut.minute // window * window)
        .groupby(["window_start", *KEY])
        .busy_us.sum()
    )
    expected = pd.DataFrame(
        {"busy_us": busy, "share": (busy / busy.groupby(level=[0, 1]).transform("sum")).fillna(0)}
    )
    found = shares(lake, window_s)
    same(found.loc[expected.index], expected)
    others = found.drop(expected.index)
    assert (others.busy_us == 0).all() and (others.share == 0).all()


def shares(lake: Warehouse, window_s: int) -> pd.DataFrame:
    found = rows(lake, TENANT_SHARE)
    return found[found.window_s == window_s].set_index(["window_start", *KEY])


@pytest.mark.parametrize("window_s", [60, 3600, 86_400])
def test_entitlement_is_water_filling_of_what_each_key_could_use(
    lake: Warehouse, stays: dict[Any, twin.Stays], window_s: int
) -> None:
    found, window = shares(lake, window_s), window_s * twin.SECOND
    starts = sorted(set(found.index.get_level_values(0)))
    for start in random.Random(7).sample(starts, min(80, len(starts))):
        for _, keys in found.loc[[start]].groupby("queue"):
            demands = [
                stays[key].demand(start, start + window)
                for _, *key in map(tuple, keys.index)
                for key in [tuple(key)]
            ]
            assert keys.demand_us.tolist() == demands
            shared = twin.entitlements(demands, keys.weight.tolist(), int(keys.busy_us.sum()))
            expected = [float(exact) for exact in shared]
            assert keys.entitled_us.tolist() == pytest.approx(expected, abs=1.5, rel=1e-9)


def test_lag_adds_up_deficits_until_nothing_waits(lake: Warehouse) -> None:
    for window_s in (60, 3600):
        for _, keys in shares(lake, window_s).reset_index().groupby(KEY):
            lag, last = 0, 0
            for row in keys.sort_values("window_start").itertuples():
                new_day = row.window_start // twin.DAY != last // twin.DAY
                follows = row.window_start == last + window_s * twin.SECOND and not new_day
                waited = row.backlogged_fraction > 0
                lag = (lag if follows else 0) + row.deficit_us if waited else 0
                assert row.lag_us == lag
                last = row.window_start


def test_fairness_covers_the_keys_that_waited_throughout(
    lake: Warehouse, stays: dict[Any, twin.Stays]
) -> None:
    found = rows(lake, FAIRNESS)
    minutes = found[found.window_s == 60].set_index(["window_start", "queue"])
    by_key = dict(list(shares(lake, 60).groupby(level=["window_start", "queue"])))
    compared = 0
    for (start, queue), row in minutes.iterrows():
        keys = by_key[start, queue].droplevel(["window_start", "queue"])
        throughout = [key for key in keys.index if stays[queue, key].throughout(start)]
        assert row.n_keys == len(throughout)
        got = (keys.busy_us / keys.entitled_us).loc[throughout]
        if len(throughout) >= 2:
            compared += 1
            assert row.jain == pytest.approx(got.sum() ** 2 / (len(got) * (got**2).sum()))
            per_weight = (keys.busy_us / keys.weight).loc[throughout]
            assert row.sfq_gap == pytest.approx(per_weight.max() - per_weight.min())
        assert row.max_lag_us == keys.lag_us.max()
    assert compared


@pytest.mark.parametrize("window_s", [3600, 86_400])
def test_percentiles_are_within_their_stated_error_of_the_exact_ones(
    lake: Warehouse, attempts: pd.DataFrame, window_s: int
) -> None:
    exact = twin.measured(attempts)
    exact = pd.concat([exact, exact.assign(fairness_key="*")])
    window = window_s * twin.SECOND
    group = ["window_start", "queue", "name", "fairness_key", "measure"]
    found = rows(lake, LATENCY)
    found = found[found.window_s == window_s].set_index(group)
    exact = exact.assign(window_start=exact.hour // window * window)
    if window_s == 3600:
        sizes = exact.groupby(group).us.transform("size")
        exact = exact[(exact.fairness_key == "*") | (sizes >= LEAST)]
        assert (exact.fairness_key != "*").any() and (sizes < LEAST).any()
    groups = exact.groupby(group).us
    assert len(groups) == len(found) and set(exact.measure) == set(twin.MEASURES)
    for key, us in groups:
        row = found.loc[key]
        bound = ERROR_BOUND if key[3] == "*" else 0.0
        assert (row.n, row.max_us, row.error_bound) == (len(us), us.max(), bound)
        for name, value in twin.nearest_ranks(us).items():
            assert row[name] == pytest.approx(value, rel=bound, abs=bound * 100), (key, name)


def test_failures_equal_a_count_in_pandas(lake: Warehouse, attempts: pd.DataFrame) -> None:
    expected = twin.failures(attempts)
    assert len(expected) > 50 and expected.recovered_at.isna().any()
    same(rows(lake, FAILURES).set_index(expected.index.names), expected)


def test_objectives_count_good_and_bad_runs_and_compute_burn_rates(
    lake: Warehouse, attempts: pd.DataFrame
) -> None:
    found = rows(lake, SLO)
    for slo in SLOS:
        expected = twin.good_and_bad(attempts, slo.queue, slo.measure, slo.threshold_us)
        of_slo = found[found.slo_id == slo.id].set_index("window_start")
        same(of_slo, expected.rename_axis("window_start"))
        by_time = expected.set_axis(pd.to_datetime(expected.index, unit="us"))
        for name, span_s in SPANS.items():
            spent = by_time.rolling(f"{span_s}s").sum()
            burn = spent.bad / (spent.good + spent.bad) / (1 - slo.objective)
            assert of_slo[name].sort_index().tolist() == pytest.approx(burn.tolist()), name


def test_costs_add_up_to_the_bill_and_follow_the_worker_time(
    lake: Warehouse, cut: pd.DataFrame
) -> None:
    found = rows(lake, COST)
    by_day = cut.assign(day=cut.minute // twin.DAY * twin.DAY).groupby(["day", *KEY])
    same(
        found.set_index(["day", *KEY]).query("fairness_key != '*'"),
        by_day[["busy_us", "wasted_us"]].sum(),
    )
    for bill in BILLS:
        day = (
            int(datetime(bill.day.year, bill.day.month, bill.day.day, tzinfo=UTC).timestamp())
            * twin.SECOND
        )
        own = {other.queue for other in BILLS if other.day == bill.day and other.queue != "*"}
        of_day = found[found.day == day]
        payers = (
            of_day[of_day.queue == bill.queue]
            if bill.queue != "*"
            else of_day[~of_day.queue.isin(own)]
        )
        assert sum(payers.amount) == bill.amount
        by_use = payers.busy_us / payers.busy_us.sum() * float(bill.amount)
        assert [float(amount) for amount in payers.amount] == pytest.approx(
            by_use.tolist(), abs=2e-6
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
    made = Snapshots(lake).look().tables
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
