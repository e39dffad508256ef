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
from fairlead.errors import ConfigurationError
from fairlead.pipeline import FairleadSource
from fairlead.pipeline.bulk.stage import DAY, StageLost, SubmissionTotals, sweep
from fairlead.pipeline.errors import RefusedRows
from fairlead.pipeline.submit import bulk_submit
from fairlead.ports.notification import Notification, joined
from fairlead.testing import running
from fairlead.testing import settled as until_settled
from tests.pipeline.bulk import (
    OPTIONS,
    left_in_stage,
    numbers,
    numbers_in,
    publish,
    rows,
    stage,
    submit,
)
from tests.tiers import examples
from tests.waiting import until


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

    @app.task(name="keep", queue="orders")
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
        submit(app.url, parts)

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


def test_an_unknown_queue_is_registered_and_the_partitions_of_a_known_one_are_used(
    app: App,
) -> None:
    submit(app.url, [[numbers(0, 10)]], "one")
    assert rows(app.url, "SELECT queue, partitions FROM fairlead_queues") == [
        {"queue": "orders", "partitions": 1}
    ]
    app.store.database.run(app.sql_store.registration({"orders": 6}))
    submit(app.url, [[numbers(0, 100)]], "two")
    counts = {
        row["partition"]: row["n"]
        for row in rows(
            app.url, "SELECT partition, count(*) AS n FROM fairlead_tasks GROUP BY partition"
        )
    }
    assert sum(counts.values()) == 110
    assert counts.keys() == set(range(6)) and {counts[n] for n in range(1, 6)} <= {16, 17}


# repeated submissions ---------------------------------------------------------------------------------------------


def test_a_submission_without_rows_publishes_nothing_and_later_rows_are_submitted(
    app: App,
) -> None:
    assert submit(app.url, [[numbers(0, 0)]]) == SubmissionTotals("march")
    assert publish(app.url, []) == SubmissionTotals("march")
    assert submit(app.url, [[numbers(0, 5)]]) == SubmissionTotals("march", inserted=5)
    assert submit(app.url, [[numbers(0, 0)]]).is_repeat
    assert numbers_in(app.url) == list(range(5))


def test_the_first_of_rows_with_one_unique_key_becomes_a_task(app: App) -> None:
    @app.task(name="pay", queue="orders")
    def pay(n: int) -> None: ...

    pay.options(unique_key="taken").submit(n=-1)
    first = numbers(0, 4, unique_key=pa.array(["a", "b", "a", None]))
    second = numbers(4, 8, unique_key=pa.array(["b", "taken", "c", None]))
    totals = submit(app.url, [[first], [second]])
    assert totals == SubmissionTotals("march", inserted=5, duplicate=3)
    assert numbers_in(app.url) == [-1, 0, 1, 3, 6, 7]


def test_a_bad_row_stages_no_piece_of_its_batch_and_the_submission_can_be_repeated(
    app: App,
) -> None:
    with pytest.raises(RefusedRows, match="partition 3: row 17: priority 77: use"):
        bad = numbers(10, 20, priority=pa.array([5] * 7 + [77, 5, 5]))
        stage(app.url, [numbers(0, 10), bad], 3)
    assert tasks_of(app.url) == []
    assert submit(app.url, [[numbers(0, 20)]]).inserted == 20


# from a DataFrame ---------------------------------------------------------------------------------


def frame(spark: SparkSession, count: int) -> DataFrame:
    """Return `count` rows in two partitions."""
    return spark.range(0, count, 1, 2).select(
        F.col("id").alias("n"), F.concat(F.lit("tenant-"), F.col("id") % 7).alias("fairness_key")
    )


def pay(df: DataFrame, url: str, submission_id: str = "march", **options: Any) -> SubmissionTotals:
    given = OPTIONS | {"submission_id": submission_id, **options}
    return bulk_submit(df, url=url, **given)


def test_a_waiting_worker_runs_each_task_of_a_dataframe_once(app: App, spark: SparkSession) -> None:
    runs: list[int] = []
    is_ready, is_submitted = threading.Event(), threading.Event()

    @app.task(name="keep", queue="orders")
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
    assert totals == SubmissionTotals("march", inserted=1000)
    assert sorted(runs) == list(range(1000))
    keys = rows(app.url, "SELECT DISTINCT fairness_key FROM fairlead_attempts")
    assert {row["fairness_key"] for row in keys} == {f"tenant-{k}" for k in range(7)}


async def test_each_lane_is_announced_with_its_first_position_and_next_due_time(app: App) -> None:
    due = datetime(2100, 1, 1, tzinfo=UTC)
    ready = numbers(0, 40, priority=pa.array([3, 7] * 20))
    waiting = numbers(40, 41, priority=pa.array([0]), run_at=pa.array([due]))
    parts = [stage(app.url, part, n) for n, part in enumerate([[ready], [ready, waiting]])]
    notifications: list[Notification] = []
    await app.notifier.listen(notifications.append)
    await asyncio.to_thread(publish, app.url, parts)
    await until(lambda: joined(notifications).due is not None)
    await app.notifier.close()
    first = rows(
        app.url,
        "SELECT queue, partition, priority, min(ready_seq) AS seq FROM fairlead_tasks"
        " WHERE state = 'SUBMITTED' GROUP BY queue, partition, priority",
    )
    found = joined(notifications)
    announced = {
        (lane.queue, lane.partition, lane.priority): lane.first_seq for lane in found.ready
    }
    for row in first:
        assert announced.pop((row["queue"], row["partition"], row["priority"])) <= row["seq"]
    assert not announced and found.due == to_micros(due)


def test_a_second_run_of_a_submission_starts_no_spark_job(app: App, spark: SparkSession) -> None:
    def jobs_of(group: str, count: int) -> int:
        spark.sparkContext.setJobGroup(group, group)
        assert pay(frame(spark, count), app.url).inserted == 100
        return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))

    assert jobs_of(f"first {app.url}", 100) > 0
    assert jobs_of(f"second {app.url}", 101) == 0
    assert pay(frame(spark, 0), app.url, "april").inserted == 0
    assert sorted(numbers_in(app.url)) == list(range(100)) and left_in_stage(app.url) == 0
    assert pay(frame(spark, 5), app.url, "april").inserted == 5


def test_tasks_have_the_order_of_a_sorted_dataframe(app: App, spark: SparkSession) -> None:
    df = frame(spark, 600).withColumn("ordering_key", F.concat(F.lit("key-"), F.col("n") % 20))
    shuffled = df.repartition(5, F.xxhash64("n"))
    assert pay(shuffled.orderBy("n"), app.url).inserted == 600
    assert numbers_in(app.url) == list(range(600))


def test_the_data_source_appends_rows_once_and_refuses_to_overwrite(
    app: App, spark: SparkSession
) -> None:
    spark.dataSource.register(FairleadSource)
    writer = frame(spark, 10).write.format("fairlead").options(url=app.url, **OPTIONS)
    with pytest.raises(Exception, match='fairlead takes mode "append" only'):
        writer.mode("overwrite").save()
    writer.mode("append").save()
    writer.mode("append").save()
    assert sorted(numbers_in(app.url)) == list(range(10)) and left_in_stage(app.url) == 0


def test_unusable_dataframes_raise_errors_of_fairlead(app: App, spark: SparkSession) -> None:
    df = frame(spark, 100)
    with pytest.raises(ConfigurationError, match="unknown field `colour`"):
        pay(df, app.url, colour="red")
    with pytest.raises(ConfigurationError, match="unknown: fairness; known: account, amount"):
        pay(df.withColumn("fairness", F.lit("a")), app.url, task="pay")
    with pytest.raises(
        RefusedRows, match="first 50 of partition [01]: row 0: priority [0-9]+: use"
    ):
        pay(df.withColumn("priority", F.col("n") + 10), app.url)
    assert numbers_in(app.url) == [] and left_in_stage(app.url) == 0


# from a stream ------------------------------------------------------------------------------------


def write_stream(
    spark: SparkSession, folder: Path, url: str, checkpoint: str = "checkpoint"
) -> None:
    """Submit all files in micro-batches of one file, with a lasting checkpoint."""

    def each(rows: DataFrame, batch: int) -> None:
        given = OPTIONS | {"submission_id": f"numbers/{checkpoint}/{batch}"}
        bulk_submit(rows, url=url, **given)

    query = (
        spark.readStream.schema("n bigint")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder / "in"))
        .writeStream.foreachBatch(each)
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
        app.url, "SELECT submission_id, inserted FROM fairlead_bulk_jobs ORDER BY submission_id"
    )
    assert [row["submission_id"].rpartition("/")[2] for row in jobs] == ["0", "1", "2"]
    assert sorted(row["inserted"] for row in jobs) == [20, 30, 40]
    assert left_in_stage(app.url) == 0
    # A new checkpoint begins at batch 0 again; its batches are others than those before.
    (tmp_path / "in" / "1.json").unlink()
    (tmp_path / "in" / "2.json").unlink()
    add_file(tmp_path, "3.json", 90, 100)
    write_stream(spark, tmp_path, app.url, "new")
    assert sorted(numbers_in(app.url)) == list(range(100))


# cleaning ------------------------------------------------------------------------------


def test_abandoned_pieces_are_deleted_after_a_day_and_submissions_after_a_month(app: App) -> None:
    def sweep_after(days: float) -> None:
        now = SYSTEM_CLOCK.now() + round(days * DAY)
        app.store.database.run(sweep(app.sql_store, now))

    submit(app.url, [[numbers(0, 5)]], "done")
    left = [stage(app.url, [numbers(0, 5)], 0)]
    sweep_after(0.9)
    assert left_in_stage(app.url) == 1
    sweep_after(1.1)
    assert left_in_stage(app.url) == 0
    with pytest.raises(StageLost, match="no longer in the stage"):
        publish(app.url, left, "left")
    sweep_after(29)
    assert submit(app.url, [[numbers(0, 5)]], "done").is_repeat
    sweep_after(31)
    assert rows(app.url, "SELECT * FROM fairlead_bulk_jobs") == []
    assert numbers_in(app.url) == list(range(5))
