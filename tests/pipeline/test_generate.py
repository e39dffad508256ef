"""The generator makes attempts as its parameters say, whatever the machine and the partitions."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from math import sqrt
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from fairlead.clock import to_micros
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.history_rows import fingerprint
from fairlead.pipeline.quality import quarantined
from fairlead.pipeline.warehouse.builds import last_export
from fairlead.pipeline.warehouse.data_files import TableFile
from fairlead.pipeline.warehouse.table import TableState, WarehouseTable
from tests.generate import Truth, arrivals, attempts, write_lake
from tests.pipeline.conftest import SparkOn
from tests.pipeline.warehouses import lake_in

TRUTH = Truth(rows=20_000, days=2, tenants=40, late=0.05, doubled=0.02, stepped=0.005)
NOON = TRUTH.start + timedelta(days=1, hours=12)
FIVE = 5
"""Allowed deviation in standard errors; by chance, one figure in two million exceeds it."""

KEY = list(ATTEMPTS.key)
DAY = 86_400


@pytest.fixture(scope="module")
def made(spark: SparkSession) -> pd.DataFrame:
    return frame_of(spark, TRUTH)


@pytest.fixture(scope="module")
def once(made: pd.DataFrame) -> pd.DataFrame:
    """Return each attempt once."""
    return made.drop_duplicates(KEY)


@pytest.fixture(scope="module")
def runs(once: pd.DataFrame) -> pd.DataFrame:
    """Return the attempts that ran and whose clock did not go back, with their run times in seconds."""
    ran = once[once.started_at.notna() & (once.finished_at >= once.started_at)]
    return ran.assign(run_s=(ran.finished_at - ran.started_at).dt.total_seconds())


class InLake(NamedTuple):
    """The table after each of two exports: one up to noon of the second day, one of the rest."""

    table: WarehouseTable
    first: TableState
    second: TableState


@pytest.fixture(scope="module")
def lake(spark_on: SparkOn, tmp_path_factory: pytest.TempPathFactory) -> InLake:
    lake = lake_in(tmp_path_factory.mktemp("lake"))
    table, spark = lake.table(ATTEMPTS), spark_on(lake)
    write_lake(spark, lake, TRUTH, until=NOON)
    first = table.state()
    write_lake(spark, lake, TRUTH, since=NOON)
    return InLake(table, first, table.state())


def frame_of(spark: SparkSession, truth: Truth) -> pd.DataFrame:
    return ordered(attempts(spark, truth).toArrow().to_pandas())


def ordered(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values([*KEY, "exported_at"], ignore_index=True)


def assert_mean(found: float, expected: float, deviation: float, n: float) -> None:
    """Check that the mean of n values of this standard deviation is near the expected one."""
    assert abs(found - expected) <= FIVE * deviation / sqrt(n), f"{found} is not {expected}"


def test_the_same_parameters_make_the_same_attempts_in_any_partitions(
    spark: SparkSession, made: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "_SLICES", 3)
    monkeypatch.setattr(arrivals, "_BATCH", 777)
    pd.testing.assert_frame_equal(frame_of(spark, TRUTH), made)


def test_another_seed_makes_other_attempts(spark: SparkSession, made: pd.DataFrame) -> None:
    other = frame_of(spark, replace(TRUTH, seed=2))
    assert set(other.finished_at).isdisjoint(made.finished_at[:100])


def test_the_number_of_attempts_is_about_the_requested_one(made: pd.DataFrame) -> None:
    assert_mean(len(made), TRUTH.rows, 1.5, 1 / TRUTH.rows)


def test_each_tenant_has_its_share_of_the_tasks(once: pd.DataFrame) -> None:
    tasks = once.groupby("fairness_key").task_id.nunique()
    for tenant in range(TRUTH.tenants):
        expected = TRUTH.tasks * TRUTH.share(tenant)
        assert_mean(tasks[TRUTH.key(tenant)], expected, sqrt(expected), 1)


def test_shares_follow_zipf_and_add_up_to_one() -> None:
    shares = [TRUTH.share(tenant) for tenant in range(TRUTH.tenants)]
    assert sum(shares) == pytest.approx(1)
    assert shares[0] / shares[9] == pytest.approx(10**TRUTH.zipf)


def test_each_kind_of_work_has_its_part_of_the_tasks_in_its_queue(once: pd.DataFrame) -> None:
    tasks = once.groupby("name").task_id.nunique()
    for work in TRUTH.works:
        assert_mean(tasks[work.name] / TRUTH.tasks, work.part, sqrt(work.part), TRUTH.tasks)
        assert set(once[once.name == work.name].queue) == {work.queue}


def test_run_times_have_the_mean_and_the_spread_of_their_kind_of_work(runs: pd.DataFrame) -> None:
    for work in TRUTH.works:
        seconds = runs[runs.name == work.name].run_s
        assert_mean(seconds.mean(), work.mean_s, work.deviation_s, len(seconds))
        logs = np.log(seconds)
        assert_mean(logs.mean(), np.log(work.median_s), work.sigma, len(logs))
        assert_mean(logs.std(), work.sigma, work.sigma / sqrt(2), len(logs))


def test_runs_fail_at_the_rate_of_their_kind_of_work_independently(runs: pd.DataFrame) -> None:
    for work in TRUTH.works:
        for attempt in (1, 2):
            of_work = runs[(runs.name == work.name) & (runs.attempt == attempt)]
            if len(of_work):
                assert_mean(
                    of_work.error_type.notna().mean(),
                    work.failing,
                    sqrt(work.failing),
                    len(of_work),
                )


def test_a_failed_run_is_retried_until_no_tries_are_left(once: pd.DataFrame) -> None:
    for _, task in once[once.name == "webhook"].groupby("task_id"):
        *earlier, last = task.sort_values("version").itertuples()
        assert [run.attempt for run in (*earlier, last)] in ([0], [*range(1, len(task) + 1)])
        assert {(run.outcome, run.next_state) for run in earlier} <= {("retried", "WAITING")}
        given_up = last.attempt == TRUTH.most_runs and isinstance(last.error_type, str)
        ends = {("failed", "ERROR")} if given_up else {("done", "DONE"), ("cancelled", "CANCELLED")}
        assert (last.outcome, last.next_state) in ends
    assert (once.outcome == "failed").any()


def test_a_retry_is_due_after_a_delay_that_doubles(runs: pd.DataFrame) -> None:
    by_task = runs.sort_values(["task_id", "version"]).groupby("task_id")
    follows = by_task.attempt.shift(1) == runs.attempt - 1
    delays = (runs.ready_at - by_task.finished_at.shift(1)).dt.total_seconds()[follows]
    assert delays.tolist() == pytest.approx(
        (TRUTH.first_delay_s * 2.0 ** (runs.attempt[follows] - 2)).tolist()
    )


def test_the_instants_of_an_attempt_ascend(once: pd.DataFrame, runs: pd.DataFrame) -> None:
    assert (once.submitted_at <= once.ready_at).all() and (runs.ready_at <= runs.claimed_at).all()
    assert (runs.claimed_at < runs.started_at).all() and (once.finished_at < once.exported_at).all()
    assert once.submitted_at.between(TRUTH.start, TRUTH.end).all()


def test_waits_are_longer_in_a_burst(runs: pd.DataFrame) -> None:
    waits = (runs.claimed_at - runs.ready_at).dt.total_seconds()
    in_bursts = (
        TRUTH.burst_s * TRUTH.burst_times / (TRUTH.burst_s * TRUTH.burst_times + TRUTH.quiet_s)
    )
    assert waits.quantile(0.1) == pytest.approx(0.1 * TRUTH.pickup_s, rel=2)
    assert waits.mean() == pytest.approx(in_bursts * TRUTH.burst_pickup_s, rel=0.6)


def test_a_cancelled_task_ends_without_a_run(once: pd.DataFrame) -> None:
    cancelled = once[once.outcome == "cancelled"]
    assert_mean(len(cancelled) / TRUTH.tasks, TRUTH.cancelled, sqrt(TRUTH.cancelled), TRUTH.tasks)
    assert cancelled[["claimed_at", "started_at", "node"]].isna().all(axis=None)
    assert (cancelled.attempt == 0).all()


def test_late_attempts_are_exported_hours_after_the_others(once: pd.DataFrame) -> None:
    delay = (once.exported_at - once.finished_at).dt.total_seconds()
    late = delay > 60
    assert_mean(late.mean(), TRUTH.late, sqrt(TRUTH.late), len(once))
    assert (
        delay[late].between(3600, TRUTH.late_hours * 3600 + 60).all()
        and delay[late].max() > 12 * 3600
    )


def test_a_doubled_attempt_has_two_equal_rows(made: pd.DataFrame, once: pd.DataFrame) -> None:
    assert_mean((len(made) - len(once)) / len(once), TRUTH.doubled, sqrt(TRUTH.doubled), len(once))
    twice = made[made.duplicated(KEY, keep=False)].drop(columns=["exported_at", "seq"])
    assert (twice.groupby(KEY).size() == 2).all() and twice.duplicated().sum() == len(twice) / 2


def test_exactly_the_attempts_of_a_clock_set_back_are_quarantined(
    spark: SparkSession, once: pd.DataFrame
) -> None:
    stepped = once[once.finished_at < once.started_at]
    assert_mean(len(stepped) / len(once), TRUTH.stepped, sqrt(TRUTH.stepped), len(once))
    broken = quarantined(attempts(spark, TRUTH)).select("ordinal").distinct().toPandas()
    assert sorted(broken.ordinal) == sorted(stepped.task_id + "/" + stepped.version.astype(str))


def test_errors_of_one_kind_of_work_have_one_fingerprint(runs: pd.DataFrame) -> None:
    failed = runs[runs.error_type.notna()]
    assert failed.error_text.nunique() > failed.name.nunique() == failed.error_fp.nunique()
    assert list(map(fingerprint, failed.error_type, failed.error_text)) == failed.error_fp.tolist()


def test_every_column_that_may_not_be_null_has_a_value(made: pd.DataFrame) -> None:
    assert list(made.columns) == ATTEMPTS.column_names
    assert (
        made[[column.name for column in ATTEMPTS.columns if not column.nullable]]
        .notna()
        .all(axis=None)
    )


def test_ids_are_uuid7_with_the_time_of_the_submit(once: pd.DataFrame) -> None:
    assert once.task_id.str.fullmatch(
        r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}"
    ).all()
    ms = once.task_id.str.replace("-", "").str[:12].map(lambda text: int(text, 16))
    assert (ms == once.submitted_at.map(to_micros) // 1000).all()


# arrivals -----------------------------------------------------------------------------------------


def test_arrivals_follow_the_day_and_the_week() -> None:
    truth = Truth(rows=400_000, days=28, tenants=1, burst_times=1.0)
    seconds = arrivals.of_tenant(truth, 0).submitted / 1e6
    hours = np.bincount((seconds % DAY / 3600).astype(int), minlength=24)
    assert hours.argmax() in (13, 14) and hours[13:15].sum() / hours[1:3].sum() == pytest.approx(
        3, rel=0.03
    )
    start = truth.start.timestamp()
    days = np.bincount(((seconds - start) % (7 * DAY) / DAY).astype(int), minlength=7)
    assert days.argmax() == 2 and days[2] / days.mean() == pytest.approx(1.29, rel=0.02)


def test_the_rate_in_a_burst_is_the_promised_multiple() -> None:
    truth = Truth(rows=400_000, days=28, tenants=1, daily=0.0, weekly=0.0)
    found = arrivals.of_tenant(truth, 0)
    minutes = np.bincount(((found.submitted / 1e6 - truth.start.timestamp()) / 60).astype(int))
    quiet = np.median(minutes)
    assert np.percentile(minutes, 99) == pytest.approx(truth.burst_times * quiet, rel=0.15)
    in_bursts = minutes[minutes > 5 * quiet].sum() / minutes.sum()
    assert found.burst.mean() == pytest.approx(in_bursts, abs=0.01)


def test_a_tenant_has_its_share_with_any_bursts() -> None:
    truth = Truth(rows=1_000_000, days=3, tenants=100)
    found = [len(arrivals.of_tenant(replace(truth, seed=seed), 30).task) for seed in range(30)]
    expected = truth.tasks * truth.share(30)
    assert_mean(float(np.mean(found)), expected, sqrt(expected), len(found))
    assert np.std(found) < 2 * sqrt(expected)


# in a lake ----------------------------------------------------------------------------------------


def files_of(lake: InLake, state: TableState) -> dict[str, list[TableFile]]:
    found: dict[str, list[TableFile]] = {}
    for file in lake.table.files(snapshot=state.snapshot):
        found.setdefault(file.part, []).append(file)
    return found


def test_the_lake_holds_the_generated_attempts_in_the_hour_of_their_end(
    lake: InLake, made: pd.DataFrame
) -> None:
    found = ordered(lake.table.load().to_pandas())
    pd.testing.assert_frame_equal(found.astype(made.dtypes), made)
    for hour in files_of(lake, lake.second):
        finished = lake.table.load([hour], ["finished_at"]).to_pandas().finished_at
        assert set(finished.dt.strftime("%Y-%m-%d/%H")) == {hour}


def test_each_export_writes_one_file_for_an_hour_in_the_order_of_queue_and_key(
    lake: InLake,
) -> None:
    assert {len(files) for files in files_of(lake, lake.first).values()} == {1}
    assert {len(files) for files in files_of(lake, lake.second).values()} == {1, 2}, (
        "late rows are in a separate file"
    )
    for hour in files_of(lake, lake.first):
        columns = ["queue", "fairness_key", "finished_at"]
        rows = lake.table.load([hour], columns, snapshot=lake.first.snapshot).to_pylist()
        order = [tuple(row.values()) for row in rows]
        assert order == sorted(order)


def test_an_export_holds_the_attempts_of_its_export_time(lake: InLake, made: pd.DataFrame) -> None:
    rows = lake.table.load(columns=["exported_at"], snapshot=lake.first.snapshot)
    assert rows.num_rows == (made.exported_at < NOON).sum()
    assert rows.to_pandas().exported_at.max() < NOON


def test_the_history_is_known_up_to_the_export_not_the_generation(
    lake: InLake, made: pd.DataFrame
) -> None:
    assert lake.first.stored is not None and lake.second.stored is not None
    assert last_export(lake.first.stored) == to_micros(NOON)
    assert last_export(lake.second.stored) == to_micros(made.exported_at.max())
