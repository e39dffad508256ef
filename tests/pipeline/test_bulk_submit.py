"""A bulk submit writes the same tasks as single submits, once for each submission, and the tasks run."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fairlead import App
from fairlead.clock import SYSTEM_CLOCK, to_micros
from fairlead.errors import ConfigurationError, InvalidTask
from fairlead.pipeline import FairleadSource
from fairlead.pipeline.bulk.job import BulkJob
from fairlead.pipeline.bulk.jobs import (
    ContentDiffers,
    KeyTaken,
    RunSuperseded,
    SubmissionTotals,
)
from fairlead.pipeline.bulk.stage import DAY, sweep
from fairlead.pipeline.errors import RefusedRows
from fairlead.pipeline.jobs.submit import FileSubmission, run_submit
from fairlead.pipeline.submit import bulk_submit
from fairlead.ports.notification import Lane, Notification
from fairlead.testing import running
from fairlead.testing import settled as until_settled
from tests.pipeline.bulk import job_of, left_in_stage, numbers, numbers_in, rows, staged, submit
from tests.tiers import examples


def tasks_of(url: str) -> list[dict[str, Any]]:
    """Return all columns of all tasks, in the order of writing."""
    order = "seq" if url.startswith("sqlite") else "ready_seq NULLS LAST, id"
    found = rows(url, f"SELECT * FROM fairlead_tasks ORDER BY {order}")
    return [
        {k: bytes(v) if isinstance(v, memoryview) else v for k, v in row.items()} for row in found
    ]


# the same as single submits -----------------------------------------------------------------------

text = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=5
)
draft = st.fixed_dictionaries(
    {
        "n": st.integers(-(2**63), 2**63 - 1),
        "text": text | st.just("long" * 400) | st.none(),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "flags": st.lists(st.booleans(), max_size=2),
        "fairness_key": text | st.just(""),
        "priority": st.integers(0, 9),
        "weight": st.floats(0.001, 1000.0),
        "ordering_key": text | st.none(),
        "unique_key": st.sampled_from(["a", "b", None]),
        "context": st.dictionaries(text, text, min_size=1, max_size=2) | st.none(),
        "run_at": st.sampled_from(
            [None, datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 2, 3, 4, 5, 6, tzinfo=UTC)]
        ),
    }
)
ARGUMENTS = ("n", "text", "ratio", "flags")
SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "text": pa.string(),
        "ratio": pa.float64(),
        "flags": pa.list_(pa.bool_()),
        "fairness_key": pa.string(),
        "priority": pa.int32(),
        "weight": pa.float64(),
        "ordering_key": pa.string(),
        "unique_key": pa.string(),
        "context": pa.map_(pa.string(), pa.string()),
        "run_at": pa.timestamp("us", "UTC"),
    }
)
OWN = {
    "id",
    "partition",
    "submitted_at",
    "run_at",
    "ready_at",
    "triggered_at",
    "ready_seq",
    "order_at",
    "order_seq",
    "due_at",
    "due_seq",
    "seq",
}
"""Columns that depend on the id, the time or the position of a row, which tests check separately."""


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drafts=st.lists(draft, min_size=1, max_size=12))
def test_a_bulk_submit_writes_column_by_column_what_single_submits_write(
    app: App, drafts: list[dict[str, Any]]
) -> None:
    app.handlers.clear()
    app.queue("orders", order="fifo")  # a fair queue stores a submit in another order

    @app.task(name="pay", queue="orders", keep_result=True)
    def pay(n: int, text: str | None, ratio: float, flags: list[bool]) -> None: ...

    def both() -> list[list[dict[str, Any]]]:
        written = []
        for way in (one_by_one, in_bulk):
            with app.store.database.transaction() as connection:
                for table in ("tasks", "unique_keys", "bulk_jobs"):
                    connection.execute(f"DELETE FROM fairlead_{table}")
            way()
            written.append(tasks_of(app.url))
        return written

    def one_by_one() -> None:
        app.submit_many(
            [
                pay.options(**{k: v for k, v in d.items() if k not in ARGUMENTS}).draft(
                    **{k: d[k] for k in ARGUMENTS}
                )
                for d in drafts
            ]
        )

    def in_bulk() -> None:
        table = [
            {**d, "context": list(d["context"].items()) if d["context"] else None} for d in drafts
        ]
        half = len(table) // 2
        parts = [
            [pa.RecordBatch.from_pylist(part, SCHEMA)] for part in (table[:half], table[half:])
        ]
        submit(app.url, parts, args_columns=",".join(ARGUMENTS), keep_result="true")

    singly, bulk = both()
    key = lambda row: (row["state"], row["ready_seq"] or 0, row["id"])  # noqa: E731 - the order of their lanes
    singly.sort(key=key)
    bulk.sort(key=key)
    assert [{k: v for k, v in row.items() if k not in OWN} for row in bulk] == [
        {k: v for k, v in row.items() if k not in OWN} for row in singly
    ]
    for ours, theirs in zip(bulk, singly, strict=True):
        assert (ours["run_at"] == ours["submitted_at"]) == (
            theirs["run_at"] == theirs["submitted_at"]
        )
        for column in ("order_at", "order_seq", "due_seq"):  # SQLite has only the first
            assert (ours.get(column) is None) == (theirs.get(column) is None)
        assert ours["order_at"] in (None, ours["run_at"])
        if ours["run_at"] != ours["submitted_at"]:
            assert ours["run_at"] == theirs["run_at"]
        is_due = ours["state"] == "SUBMITTED"
        at = ours["submitted_at"] if is_due else None
        assert (ours["ready_at"], ours["triggered_at"], ours["ready_seq"] is not None) == (
            at,
            at,
            is_due,
        )
        assert ours.get("due_at") == (None if is_due or "due_at" not in ours else ours["run_at"])
        if ours["ordering_key"] is not None:
            assert ours["partition"] == theirs["partition"]


def test_rows_of_one_ordering_key_run_in_the_order_of_their_parts(app: App) -> None:
    keys = pa.array(["k"] * 500)
    submit(app.url, [[numbers(0, 500, ordering_key=keys)], [numbers(500, 1000, ordering_key=keys)]])
    found = rows(app.url, "SELECT payload FROM fairlead_tasks ORDER BY ordering_key, order_at, id")
    assert [json.loads(bytes(row["payload"]))["n"] for row in found] == list(range(1000))
    assert numbers_in(app.url) == list(range(1000))


def test_an_unknown_queue_is_registered_and_the_greatest_number_of_partitions_counts(
    app: App,
) -> None:
    submit(app.url, [[numbers(0, 100)]], submission_id="one")
    submit(app.url, [[numbers(0, 100)]], submission_id="two", partitions="6")
    submit(app.url, [[numbers(0, 100)]], submission_id="three", partitions="2")
    submit(
        app.url,
        [[numbers(0, 2, queue=pa.array(["own", None]))]],
        submission_id="four",
        partitions="3",
    )
    assert {
        row["queue"]: row["partitions"] for row in rows(app.url, "SELECT * FROM fairlead_queues")
    } == {
        "orders": 6,
        "own": 3,
    }
    counts = rows(
        app.url,
        "SELECT partition, count(*) AS n FROM fairlead_tasks WHERE queue = 'orders' GROUP BY partition",
    )
    assert {row["partition"] for row in counts} == set(range(6))


# repeated submissions ---------------------------------------------------------------------------------------------


def test_a_second_run_of_a_submission_changes_nothing_and_returns_the_same_totals(app: App) -> None:
    totals = submit(app.url, [[numbers(0, 50)], [numbers(50, 80)]])
    assert totals == SubmissionTotals(
        "march", staged=80, inserted=80, duplicate=0, rejected=0, publish="atomic"
    )
    before = tasks_of(app.url)
    again = job_of(app.url)
    again.open(numbers(0, 1).schema)
    assert not again.opened.needs_rows
    assert again.publish([]) == totals == again.totals()
    assert tasks_of(app.url) == before
    assert left_in_stage(app.url) == 0


def test_no_row_is_a_task_before_its_job_is_published(app: App) -> None:
    job = job_of(app.url)
    messages = staged(job, [[numbers(0, 50)]])
    assert tasks_of(app.url) == [] and job.totals() is None
    job.publish(messages)
    assert numbers_in(app.url) == list(range(50))


def test_an_abandoned_job_leaves_nothing_and_can_be_run_again(app: App) -> None:
    job = job_of(app.url)
    messages = staged(job, [[numbers(0, 50)]])
    job.abort()
    assert left_in_stage(app.url) == 0 and tasks_of(app.url) == []
    with pytest.raises(RunSuperseded):
        job.publish(messages)
    assert submit(app.url, [[numbers(0, 50)]]).inserted == 50


@pytest.mark.parametrize("publish", ["atomic", "chunked"])
def test_a_submission_without_rows_commits_nothing_and_later_rows_are_submitted(
    app: App, publish: str
) -> None:
    assert submit(app.url, [[numbers(0, 0)]], publish=publish).staged == 0
    job = job_of(app.url, publish=publish)
    job.open(numbers(0, 1).schema)
    assert job.publish([]).inserted == 0 and job.totals() is None
    assert submit(app.url, [[numbers(0, 5)]], publish=publish).inserted == 5
    assert numbers_in(app.url) == list(range(5))


# unique keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("publish", ["atomic", "chunked"])
def test_the_first_of_rows_with_one_unique_key_becomes_a_task(app: App, publish: str) -> None:
    @app.task(name="pay", queue="orders")
    def pay(n: int) -> None: ...

    pay.options(unique_key="taken").submit(n=-1)
    first = numbers(0, 4, unique_key=pa.array(["a", "b", "a", None]))
    second = numbers(4, 8, unique_key=pa.array(["b", "taken", "c", None]))
    totals = submit(app.url, [[first], [second]], publish=publish, rows_per_chunk="3")
    assert (totals.staged, totals.inserted, totals.duplicate, totals.rejected) == (8, 5, 3, 0)
    assert numbers_in(app.url) == [-1, 0, 1, 3, 6, 7]


def test_under_on_conflict_error_a_taken_key_fails_the_whole_job(app: App) -> None:
    submit(app.url, [[numbers(0, 1, unique_key=pa.array(["a"]))]], submission_id="first")
    batch = numbers(1, 4, unique_key=pa.array(["b", "a", None]))
    with pytest.raises(
        KeyTaken, match="1 of 3 rows have unique keys that are taken, and nothing was published"
    ):
        submit(app.url, [[batch]], on_conflict="error")
    assert numbers_in(app.url) == [0]
    assert submit(app.url, [[batch]]).inserted == 2, "the failed submission can be repeated"


# bad rows -----------------------------------------------------------------------------------------


def test_a_bad_row_fails_the_job_and_the_error_names_row_column_and_reason(app: App) -> None:
    batches = [numbers(0, 10), numbers(10, 20, priority=pa.array([5] * 7 + [77, 78, 5]))]
    job = job_of(app.url)
    job.open(batches[1].schema)
    with pytest.raises(RefusedRows) as caught:
        job.stage(batches, 3)
    assert str(caught.value) == (
        "bulk submit: 2 bad rows among the first 20 of partition 3: "
        "row 17: priority 77: use a whole number from 0 (first) to 9 (last) (column priority: 77); "
        "row 18: priority 78: use a whole number from 0 (first) to 9 (last) (column priority: 78)"
    )
    assert tasks_of(app.url) == [] and left_in_stage(app.url) == 0


def test_under_quarantine_bad_rows_are_stored_with_their_reasons_and_the_others_are_submitted(
    app: App,
) -> None:
    bad = numbers(10, 20, weight=pa.array([1.0] * 7 + [0.0, 0.0, 1.0]))
    job = job_of(app.url, on_error="quarantine")
    job.open(bad.schema)
    message, second = job.stage([numbers(0, 10), bad], 3), job.stage([numbers(0, 10), bad], 3)
    totals = job.publish([message])
    assert (totals.staged, totals.inserted, totals.duplicate, totals.rejected) == (18, 18, 0, 2)
    assert numbers_in(app.url) == [*range(17), 19]
    kept = rows(app.url, "SELECT * FROM fairlead_bulk_rejects WHERE published ORDER BY ordinal")
    assert [
        (row["submission_id"], row["part"], row["ordinal"], row["column_name"], row["value"])
        for row in kept
    ] == [
        ("march", 3, 17, "weight", "0.0"),
        ("march", 3, 18, "weight", "0.0"),
    ]
    assert kept[0]["reason"] == "weight 0.0: use a number from 0.001 to 1000"
    assert second.attempt not in {
        str(row["attempt"]) for row in rows(app.url, "SELECT attempt FROM fairlead_bulk_rejects")
    }


# in chunks ----------------------------------------------------------------------------------------


def test_in_chunks_each_row_is_submitted_once_and_in_order(app: App) -> None:
    parts = [[numbers(0, 25), numbers(25, 30)], [numbers(30, 30)], [numbers(30, 100)]]
    totals = submit(app.url, parts, publish="chunked", rows_per_chunk="7")
    assert totals == SubmissionTotals(
        "march", staged=100, inserted=100, duplicate=0, rejected=0, publish="chunked"
    )
    assert numbers_in(app.url) == list(range(100)) and left_in_stage(app.url) == 0


def test_a_half_published_job_continues_with_its_own_rows_in_the_next_run(
    app: App, monkeypatch
) -> None:
    job = job_of(app.url, publish="chunked", rows_per_chunk="30")
    messages = staged(job, [[numbers(0, 50)], [numbers(50, 100)]])
    stop_after(monkeypatch, 2)
    with pytest.raises(InterruptedError):
        job.publish(messages)
    monkeypatch.undo()
    assert numbers_in(app.url) == list(range(60))
    again = job_of(app.url)
    again.open(numbers(0, 1).schema)
    assert not again.opened.needs_rows
    totals = again.publish([])
    assert totals == SubmissionTotals(
        "march", staged=100, inserted=100, duplicate=0, rejected=0, publish="chunked"
    )
    assert numbers_in(app.url) == list(range(100))
    assert job.publish(messages) == totals, "the earlier run finds the job published"
    assert numbers_in(app.url) == list(range(100))


async def test_a_publish_waits_between_chunks_while_the_backlog_is_too_long(
    app: App, monkeypatch
) -> None:
    monkeypatch.setattr("fairlead.pipeline.bulk.job.BACKLOG_POLL_SECONDS", 0.02)

    @app.task(name="pay", queue="orders")
    async def pay(n: int) -> None: ...

    depths: list[int] = []
    job = job_of(app.url, publish="chunked", rows_per_chunk="50", max_backlog="60")
    messages = staged(job, [[numbers(0, 300)]])
    publishing = asyncio.create_task(asyncio.to_thread(job.publish, messages))
    try:
        async with asyncio.timeout(30):
            while len(numbers_in(app.url)) < 100:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        assert len(numbers_in(app.url)) == 100, "the third chunk is held back while 100 tasks wait"
        async with running(app) as node:
            while not publishing.done():
                depths.append(
                    len(rows(app.url, "SELECT 1 FROM fairlead_tasks WHERE state = 'SUBMITTED'"))
                )
                await asyncio.sleep(0.02)
            await until_settled(app, node)
    finally:
        job_of(app.url).open(
            numbers(0, 1).schema
        )  # takes over the job, so that the publisher that waits ends
    assert publishing.result().inserted == 300 and max(depths) <= 60 + 50
    assert len(rows(app.url, "SELECT * FROM fairlead_attempts WHERE outcome = 'done'")) == 300


# from a DataFrame ---------------------------------------------------------------------------------


def frame(spark: SparkSession, count: int) -> DataFrame:
    """Return `count` rows in two partitions."""
    return spark.range(0, count, 1, 2).select(
        F.col("id").alias("n"), F.concat(F.lit("tenant-"), F.col("id") % 7).alias("fairness_key")
    )


def pay(df: DataFrame, url: str, submission_id: str = "march", **options: Any) -> SubmissionTotals:
    return bulk_submit(
        df,
        url,
        queue="orders",
        task="pay",
        submission_id=submission_id,
        args_columns=["n"],
        **options,
    )


def test_a_waiting_worker_runs_each_task_of_a_dataframe_once(app: App, spark: SparkSession) -> None:
    runs: list[int] = []
    is_ready, is_submitted = threading.Event(), threading.Event()

    @app.task(name="pay", queue="orders")
    async def run(n: int) -> None:
        runs.append(n)

    async def work() -> None:
        async with running(app) as node:
            is_ready.set()
            await asyncio.to_thread(is_submitted.wait)
            await until_settled(app, node, 60)

    worker = threading.Thread(target=asyncio.run, args=(work(),))
    worker.start()
    is_ready.wait(60)
    totals = pay(frame(spark, 1000), app.url)
    is_submitted.set()
    worker.join()
    assert (totals.staged, totals.inserted, totals.duplicate, totals.rejected) == (1000, 1000, 0, 0)
    assert sorted(runs) == list(range(1000))
    keys = rows(app.url, "SELECT DISTINCT fairness_key FROM fairlead_attempts")
    assert {row["fairness_key"] for row in keys} == {f"tenant-{k}" for k in range(7)}


async def test_each_lane_is_announced_once_with_its_first_position_and_next_due_time(
    app: App,
) -> None:
    job = job_of(app.url)
    due = datetime(2100, 1, 1, tzinfo=UTC)
    ready = numbers(
        0, 40, priority=pa.array([3, 7] * 20), run_at=pa.nulls(40, pa.timestamp("us", "UTC"))
    )
    waiting = numbers(40, 41, priority=pa.array([0]), run_at=pa.array([due]))
    messages = staged(job, [[ready], [ready, waiting]])
    notifications: list[Notification] = []
    await app.notifier.listen(notifications.append)
    await asyncio.to_thread(job.publish, messages)
    async with asyncio.timeout(20):
        while not any(notification.ready for notification in notifications):
            await asyncio.sleep(0.01)
    await app.notifier.close()
    announced = [notification for notification in notifications if notification.ready]
    first = rows(
        app.url,
        "SELECT queue, partition, priority, min(ready_seq) AS seq FROM fairlead_tasks WHERE state = 'SUBMITTED' "
        "GROUP BY queue, partition, priority",
    )
    assert len(announced) == 1 and {Lane(*row.values()) for row in first} == set(announced[0].ready)
    assert len(announced[0].ready) == len(first) == 2 and announced[0].due == to_micros(due)


def test_a_second_run_of_a_submission_compares_its_rows_or_starts_no_spark_job(
    app: App, spark: SparkSession
) -> None:
    def jobs_of(group: str, count: int = 100, **options: str) -> int:
        spark.sparkContext.setJobGroup(group, group)
        assert pay(frame(spark, count), app.url, **options).inserted == 100
        return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))

    assert jobs_of(f"first {app.url}") > 0
    assert jobs_of(f"second {app.url}") > 0
    assert jobs_of(f"third {app.url}", on_repeat="skip") == 0
    with pytest.raises(ContentDiffers, match="'march' is committed with other content"):
        jobs_of(f"fourth {app.url}", 101)
    assert pay(frame(spark, 0), app.url, "april").staged == 0
    assert sorted(numbers_in(app.url)) == list(range(100)) and left_in_stage(app.url) == 0
    assert pay(frame(spark, 5), app.url, "april").inserted == 5


def test_with_order_by_the_tasks_of_one_ordering_key_keep_that_order_in_their_lane(
    app: App, spark: SparkSession
) -> None:
    df = frame(spark, 600).withColumn("ordering_key", F.concat(F.lit("key-"), F.col("n") % 20))
    df = df.withColumn("ordering_key", F.when(F.col("n") % 3 > 0, F.col("ordering_key")))
    shuffled = df.repartition(5, F.xxhash64("n"))
    assert pay(shuffled, app.url, order_by="n", partitions=3).inserted == 600
    by_key = rows(
        app.url,
        "SELECT * FROM fairlead_tasks WHERE ordering_key IS NOT NULL ORDER BY ordering_key, order_at, id",
    )
    in_lane = rows(
        app.url,
        "SELECT * FROM fairlead_tasks WHERE ordering_key IS NOT NULL ORDER BY partition, ready_seq",
    )
    for found, group in ((by_key, "ordering_key"), (in_lane, "partition")):
        order: dict[Any, list[int]] = {}
        for row in found:
            order.setdefault(row[group], []).append(json.loads(bytes(row["payload"]))["n"])
        assert len(order) > 1 and all(numbers == sorted(numbers) for numbers in order.values())
    with pytest.raises(ConfigurationError, match="no column when and no column ordering_key"):
        pay(frame(spark, 1), app.url, "other", order_by="when")


def test_the_data_source_appends_rows_and_refuses_to_overwrite(
    app: App, spark: SparkSession
) -> None:
    spark.dataSource.register(FairleadSource)
    writer = (
        frame(spark, 10)
        .write.format("fairlead")
        .options(url=app.url, queue="orders", task="pay", submission_id="march", args_columns="n")
    )
    with pytest.raises(Exception, match='fairlead takes mode "append" only'):
        writer.mode("overwrite").save()
    writer.mode("append").save()
    writer.mode("append").save()
    assert sorted(numbers_in(app.url)) == list(range(10))


def test_unusable_dataframes_raise_errors_of_fairlead(app: App, spark: SparkSession) -> None:
    df = frame(spark, 100)
    with pytest.raises(InvalidTask, match="unknown column colour; known: name, queue"):
        pay(df.withColumn("colour", F.lit("red")), app.url)
    with pytest.raises(ConfigurationError, match="unknown option colour"):
        pay(df, app.url, colour="red")
    with pytest.raises(
        RefusedRows,
        match="bad rows among the first 50 of partition [01]: row 0: priority [0-9]+: use",
    ):
        pay(df.withColumn("priority", F.col("n") + 10), app.url)
    pay(df.withColumn("unique_key", F.lit("the same")).limit(1), app.url, "one")
    with pytest.raises(KeyTaken, match="100 of 100 rows have unique keys that are taken"):
        pay(df.withColumn("unique_key", F.lit("the same")), app.url, "two", on_conflict="error")
    assert numbers_in(app.url) == [0] and left_in_stage(app.url) == 0


def test_without_a_submission_id_unique_keys_prevent_doubles_in_a_repeated_submit(
    app: App, spark: SparkSession
) -> None:
    spark.dataSource.register(FairleadSource)
    df = frame(spark, 20).withColumn("unique_key", F.col("n").cast("string"))
    for _ in range(2):
        df.write.format("fairlead").options(
            url=app.url, queue="orders", task="pay", args_columns="n"
        ).mode("append").save()
    assert sorted(numbers_in(app.url)) == list(range(20))


# from files ---------------------------------------------------------------------------------------


def test_files_of_each_format_give_the_values_that_they_hold(
    app: App, spark: SparkSession, tmp_path: Path
) -> None:
    def submitted(path: Path, types: str | None = None, **given: Any) -> list[Any]:
        before = len(rows(app.url, "SELECT id FROM fairlead_tasks"))
        found = FileSubmission(path, app.url, "orders", "pay", "account,n", types, **given)
        totals, used = run_submit(spark, found, lambda *_: None)
        shown.append(used)
        again = FileSubmission(path, app.url, "orders", "pay", "account,n", types, **given)
        assert run_submit(spark, again, lambda *_: None)[0] == totals
        found_rows = rows(app.url, "SELECT payload FROM fairlead_tasks ORDER BY id")[before:]
        return [json.loads(bytes(row["payload"])) for row in found_rows]

    shown: list[dict[str, str]] = []
    order = ["10", "9", "8"]
    csv, line = tmp_path / "jobs.csv", tmp_path / "jobs.jsonl"
    csv.write_text("account,n,ordering_key\n" + "".join(f"00123,{n},k\n" for n in order))
    line.write_text("".join(f'{{"account":"01","n":{n},"ordering_key":"k"}}\n' for n in order))
    assert submitted(csv, "n=int", order_by="n") == [
        {"account": "00123", "n": n} for n in (8, 9, 10)
    ]
    assert shown[-1] == {"account": "text", "n": "int", "ordering_key": "text"}
    assert submitted(line, order_by="n") == [{"account": "01", "n": n} for n in (8, 9, 10)]
    (tmp_path / "lake").mkdir()
    frame(spark, 3).select("n", F.lit("007").alias("account")).write.partitionBy("account").parquet(
        str(tmp_path / "lake" / "jobs")
    )
    by_number = sorted(submitted(tmp_path / "lake" / "jobs"), key=lambda task: task["n"])
    assert by_number == [{"account": "007", "n": n} for n in range(3)]
    assert shown[-1] == {"n": "bigint", "account": "text"}
    csv.write_text("account,n,weight\n1,2,nan\n")
    with pytest.raises(RefusedRows, match="jobs.csv line 2: weight 'nan': use a finite number"):
        submitted(csv)
    (tmp_path / "bad.csv").write_text('account,n\n1,"2\n')
    with pytest.raises(RefusedRows, match="a quote after line 1 is not closed"):
        submitted(tmp_path / "bad.csv")
    with pytest.raises(ContentDiffers):
        for path in (line, tmp_path / "lake" / "jobs"):
            submitted(path, submission_id="march")


# from a stream ------------------------------------------------------------------------------------


def write_stream(
    spark: SparkSession, folder: Path, url: str, checkpoint: str = "checkpoint"
) -> None:
    """Submit all files in micro-batches of one file, with a lasting checkpoint."""
    query = (
        spark.readStream.schema("n bigint")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder / "in"))
        .writeStream.format("fairlead")
        .options(url=url, queue="orders", task="pay", args_columns="n", submission_id="numbers")
        .option("checkpointLocation", str(folder / checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


def add_file(folder: Path, name: str, first: int, last: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_text("".join(f'{{"n":{n}}}\n' for n in range(first, last)))


def test_a_restarted_stream_submits_each_row_once(
    app: App, spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(FairleadSource)
    add_file(tmp_path, "1.json", 0, 30)
    add_file(tmp_path, "2.json", 30, 50)
    write_stream(spark, tmp_path, app.url)
    assert sorted(numbers_in(app.url)) == list(range(50))
    add_file(tmp_path, "3.json", 50, 90)
    # As after a crash between the commit of Fairlead and the one of Spark: the last micro-batch is
    # repeated under its number.
    last = max(
        (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name)
    )
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    write_stream(spark, tmp_path, app.url)
    assert sorted(numbers_in(app.url)) == list(range(90))
    jobs = rows(
        app.url,
        "SELECT submission_id, state, inserted FROM fairlead_bulk_jobs ORDER BY submission_id",
    )
    assert [(row["submission_id"].rpartition("/")[2], row["state"]) for row in jobs] == [
        ("0", "committed"),
        ("1", "committed"),
        ("2", "committed"),
    ]
    kept = json.loads((tmp_path / "checkpoint" / "metadata").read_text())
    assert {row["submission_id"].rpartition("/")[0] for row in jobs} == {f"numbers/{kept['id']}"}
    assert left_in_stage(app.url) == 0
    # A new checkpoint begins at batch 0 again; its batches are others than those before.
    (tmp_path / "in" / "1.json").unlink()
    (tmp_path / "in" / "2.json").unlink()
    add_file(tmp_path, "3.json", 90, 100)
    write_stream(spark, tmp_path, app.url, "new")
    assert sorted(numbers_in(app.url)) == list(range(100))


# cleaning ------------------------------------------------------------------------------


def test_abandoned_rows_are_deleted_after_a_day_and_jobs_after_a_month(
    app: App,
) -> None:
    def swept(later: float) -> int:
        return app.store.database.run(sweep(app.store, SYSTEM_CLOCK.now() + round(later * DAY)))

    submit(app.url, [[numbers(0, 5)]], submission_id="done")
    left = job_of(app.url, submission_id="left", on_error="quarantine")
    messages = staged(left, [[numbers(0, 5, priority=pa.array([1, 2, 3, 4, 50]))]])
    assert left_in_stage(app.url) > 0
    assert swept(0.9) == 0 and left_in_stage(app.url) > 0
    assert swept(1.1) == 2 and left_in_stage(app.url) == 0
    assert rows(app.url, "SELECT * FROM fairlead_bulk_rejects") == []
    with pytest.raises(RunSuperseded):
        left.publish(messages)
    assert swept(1.1) == 0
    assert submit(app.url, [[numbers(0, 5)]], submission_id="done").inserted == 5
    assert numbers_in(app.url) == list(range(5)), "a recorded job is not run again"
    assert swept(29) == 0 and swept(31) == 0
    assert rows(app.url, "SELECT * FROM fairlead_bulk_jobs") == []


def test_rows_of_a_half_published_job_are_kept_for_a_week(app: App, monkeypatch) -> None:
    job = job_of(app.url, publish="chunked", rows_per_chunk="30")
    messages = staged(job, [[numbers(0, 50)]])
    stop_after(monkeypatch, 1)
    with pytest.raises(InterruptedError):
        job.publish(messages)
    monkeypatch.undo()
    app.store.database.run(sweep(app.store, SYSTEM_CLOCK.now() + 6 * DAY))
    assert left_in_stage(app.url) > 0
    again = job_of(app.url)
    again.open(numbers(0, 1).schema)
    assert again.publish([]).inserted == 50


def stop_after(monkeypatch: pytest.MonkeyPatch, chunks: int) -> None:
    """Interrupt the publishing after this number of chunks."""
    waited = iter(range(chunks))

    def wait(self: BulkJob, stage: Any, job: Any) -> None:
        if next(waited, None) is None:
            raise InterruptedError

    monkeypatch.setattr(BulkJob, "_wait_for_room", wait)
