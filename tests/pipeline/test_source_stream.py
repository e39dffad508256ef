"""Attempts as a stream have no gap and no double, also with late commits and crashes."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from fairlead.backends.sql.history import SqlHistory
from fairlead.core.ids import id_text
from fairlead.errors import ConfigurationError
from fairlead.model.history import Position
from fairlead.pipeline import FairleadSource
from fairlead.pipeline.source.options import ONLY_BATCH, ReadOptions
from fairlead.pipeline.source.stream import FairleadStreamReader
from tests import tiers
from tests.pipeline.filling import add_attempts, adding, connected, migrated
from tests.waiting import wait_until


def reader(url: str, **given: str) -> FairleadStreamReader:
    return FairleadStreamReader(
        ReadOptions.parse({"url": url, "table": "attempts", **given}, ONLY_BATCH)
    )


def rows(stream: FairleadStreamReader, start: dict[str, int], end: dict[str, int]) -> list[str]:
    """Return the task ids of a batch, as an executor reads it."""
    parts = stream.partitions(start, end)
    return [
        row["task_id"] for part in parts for batch in stream.read(part) for row in batch.to_pylist()
    ]


class Query:
    """A stand-in for a Spark query, with a checkpoint that outlives its reader."""

    def __init__(self, url: str, **given: str) -> None:
        self.url = url
        self.given = given
        self.ends: list[dict[str, int]] = []
        """Log of offsets: the ends of the planned batches."""
        self.batches: list[list[str]] = []
        """Task ids read by each committed batch."""
        self.stream = reader(url, **given)

    @property
    def read(self) -> list[str]:
        return [task_id for batch in self.batches for task_id in batch]

    def restart(self) -> None:
        """Start a new reader, as Spark does after a crash; plan the empty batch at the end of the
        log."""
        self.stream = reader(self.url, **self.given)
        if self.ends:
            assert self.stream.partitions(self.ends[-1], self.ends[-1]) == []

    def plan(self) -> bool:
        """Plan the next batch, unless one is under way; return False without new attempts."""
        if len(self.ends) == len(self.batches):
            end = self.stream.latestOffset()
            if end == (self.ends[-1] if self.ends else self.stream.initialOffset()):
                return False
            if len(self.ends) > 1:
                self.stream.commit(self.ends[-2])
            self.ends.append(end)
        return True

    def run(self) -> list[str]:
        """Read the planned batch."""
        start = self.ends[-2] if len(self.ends) > 1 else self.stream.initialOffset()
        return rows(self.stream, start, self.ends[-1])

    def batch(self) -> list[str]:
        """Plan, read and commit the next batch."""
        if not self.plan():
            return []
        self.batches.append(self.run())
        return self.batches[-1]

    def finish(self, count: int) -> None:
        """Read batches until `count` attempts are read. An empty batch is no end: a stream waits
        behind each transaction of the server, such as its own ANALYZE."""
        wait_until(lambda: not self.batch() and len(self.read) >= count)


# no gap, no double --------------------------------------------------------------------------------


def test_each_attempt_is_in_one_batch_while_more_are_added_and_readers_die(
    store: Any, store_url: str
) -> None:
    query = Query(store_url, max_rows_per_batch="40")
    with adding(store_url, 0.0005, 1500) as added:
        while len(added) < 1500:
            assert len(query.batch()) <= 40
            if random.random() < 0.2:
                query.restart()
            if random.random() < 0.2 and query.plan():
                query.run()  # the reader dies before the commit
                query.restart()
    query.finish(len(added))
    assert query.read == [id_text(n) for n in added]


def test_a_batch_that_is_planned_again_has_the_same_rows(store: Any, store_url: str) -> None:
    query = Query(store_url, max_rows_per_batch="300", columns="task_id,seq")
    with connected(store_url) as connection:
        add_attempts(connection, range(1000))
        first = [query.batch(), query.batch()]
        add_attempts(connection, range(1000, 1100))
    again = reader(store_url, columns="task_id")
    assert [rows(again, again.initialOffset(), query.ends[0]), rows(again, *query.ends)] == first
    assert [len(batch) for batch in first] == [300, 300]


def test_a_batch_is_split_without_a_gap_or_a_double(
    store: Any, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.pipeline.source.sqlite.ROWS_PER_PIECE", 64)
    monkeypatch.setattr("fairlead.pipeline.source.postgres.ROWS_PER_PIECE", 64)
    stream = reader(store_url)
    with connected(store_url) as connection:
        for n in range(0, 640, 80):
            add_attempts(connection, range(n, n + 80))
    start, end = stream.initialOffset(), stream.latestOffset()
    assert len(stream.partitions(start, end)) == 10
    assert rows(stream, start, end) == [id_text(n) for n in range(640)]


def test_a_cleaned_history_has_nothing_to_plan(sqlite_url: str) -> None:
    migrated(sqlite_url).database.close()
    query = Query(sqlite_url)
    with connected(sqlite_url) as connection:
        add_attempts(connection, range(5))
        connection.execute("UPDATE fairlead_attempts SET seq = seq + 5000000000")
    assert query.plan()
    assert len(query.stream.partitions(query.stream.initialOffset(), query.ends[-1])) == 1
    assert len(query.batch()) == 5


def test_a_stream_loses_no_attempt_of_transactions_that_commit_in_any_order(
    postgres_url: str,
) -> None:
    migrated(postgres_url).database.close()
    chance = random.Random()
    seed = tiers.seed()
    chance.seed(seed)
    query = Query(postgres_url, max_rows_per_batch="7")
    committed: list[int] = []
    number = 0
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connected(postgres_url)) for _ in range(4)]
        under_way: dict[int, list[int]] = {}
        for _ in range(300):
            which = chance.randrange(4)
            if which in under_way and chance.random() < 0.4:
                end = "COMMIT" if chance.random() < 0.8 else "ROLLBACK"
                connections[which].execute(end)
                numbers = under_way.pop(which)
                committed += numbers if end == "COMMIT" else []
            else:
                if which not in under_way:
                    connections[which].execute("BEGIN")
                add_attempts(connections[which], [number])
                under_way.setdefault(which, []).append(number)
                number += 1
            if chance.random() < 0.3:
                query.batch()
            if chance.random() < 0.05:
                query.restart()
    query.finish(len(committed))
    assert Counter(query.read) == Counter(id_text(n) for n in committed), f"seed {seed}"


def test_a_stream_continues_from_its_checkpoint_while_attempts_are_added(
    spark: SparkSession, store: Any, store_url: str, tmp_path: Path
) -> None:
    spark.dataSource.register(FairleadSource)
    read: dict[int, list[str]] = {}
    frame = spark.readStream.format("fairlead").options(
        url=store_url, table="attempts", max_rows_per_batch=250
    )

    def start() -> StreamingQuery:
        return (
            frame.load()
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(
                lambda batch, n: read.__setitem__(n, [row.task_id for row in batch.collect()])
            )
            .start()
        )

    with adding(store_url, 0.02, 1200) as added:
        query = start()
        wait_until(lambda: len(read) >= 2 or not query.isActive)
        query.stop()
        query = start()
        wait_until(lambda: len(added) >= 1200)
    query.processAllAvailable()
    query.stop()
    assert len(read) > 3
    assert max(map(len, read.values())) <= 250
    assert [task_id for n in sorted(read) for task_id in read[n]] == [id_text(n) for n in added]


def test_a_run_with_the_trigger_available_now_reads_everything(
    spark: SparkSession, store: Any, store_url: str, tmp_path: Path
) -> None:
    spark.dataSource.register(FairleadSource)
    frame = spark.readStream.format("fairlead").options(url=store_url, table="attempts")
    checkpoint = str(tmp_path / "checkpoint")
    read: list[str] = []
    for low in (0, 500):
        with connected(store_url) as connection:
            add_attempts(connection, range(low, low + 500))
        writing = frame.load().writeStream.option("checkpointLocation", checkpoint)
        writing = writing.trigger(availableNow=True).foreachBatch(
            lambda batch, n: read.extend(row.task_id for row in batch.collect())
        )
        writing.start().awaitTermination()
    assert sorted(read) == [id_text(n) for n in range(1000)]


# starts and positions of streams --------------------------------------------


def test_a_stream_begins_at_the_start(store: Any, store_url: str) -> None:
    with connected(store_url) as connection:
        add_attempts(connection, range(10))
        everything = Query(store_url, reader="news")
        everything.plan()
        add_attempts(connection, [10])
        everything.restart()  # the first batch was not committed
    assert [len(everything.batch()), everything.batch()] == [10, [id_text(10)]]


def test_without_new_attempts_the_offset_does_not_change(postgres_url: str) -> None:
    migrated(postgres_url).database.close()
    query = Query(postgres_url)
    with connected(postgres_url) as connection:
        add_attempts(connection, range(10))
        query.batch()
        end = query.ends[-1]
        connection.execute(
            "CREATE TABLE other (n integer)"
        )  # another transaction moves the horizon
    assert query.stream.latestOffset() == end


def test_attempts_that_a_named_stream_has_not_read_are_kept_from_its_first_offset(
    store: Any, store_url: str
) -> None:
    query = Query(store_url, reader="follower", max_rows_per_batch="60")
    assert query.batch() == []

    def left() -> int:
        with connected(store_url) as connection:
            count: int = connection.execute("SELECT count(*) FROM fairlead_attempts").fetchone()[0]
            return count

    async def clean() -> None:
        await store.clean(1 << 62, 10_000)

    with connected(store_url) as connection:
        add_attempts(connection, range(150))
    asyncio.run(clean())
    assert left() == 150
    query.batch()
    query.batch()
    asyncio.run(clean())
    assert left() == 150  # read, but not committed by Spark
    query.plan()
    asyncio.run(clean())
    assert left() == 90
    query.restart()  # the batch under way is repeated, and its rows still exist
    asyncio.run(clean())
    assert query.batch() == [id_text(n) for n in range(120, 150)]
    (registered,) = store.database.read_now(SqlHistory(store.database).readers())
    assert (registered.name, registered.kind) == ("follower", "stream")
    position = registered.position
    query.stream.commit(query.ends[0])
    (registered,) = store.database.read_now(SqlHistory(store.database).readers())
    assert registered.position == position


def test_a_stream_does_not_take_the_name_of_a_lake(store: Any, store_url: str) -> None:
    store.database.run(SqlHistory(store.database).advance("lake", "lake", Position(0, 7), 1))
    with pytest.raises(ConfigurationError, match="reader 'lake' is the name of a lake"):
        reader(store_url, reader="lake").initialOffset()


def test_a_checkpoint_of_another_kind_of_store_is_refused(store: Any, store_url: str) -> None:
    other = {"xid": 7, "seq": 3} if store_url.startswith("sqlite") else {"rowid": 3}
    with pytest.raises(ConfigurationError, match="the checkpoint's offset .* is not of this store"):
        reader(store_url).partitions(other, other)


def test_only_attempts_can_be_streamed(sqlite_url: str) -> None:
    with pytest.raises(ConfigurationError, match="table tasks cannot be streamed"):
        FairleadStreamReader(ReadOptions.parse({"url": sqlite_url, "table": "tasks"}, ONLY_BATCH))


def test_a_stream_reads_the_requested_columns_and_queue(store: Any, store_url: str) -> None:
    with connected(store_url) as connection:
        add_attempts(connection, range(10))
    stream = reader(store_url, columns="queue,task_id", queue="queue-1")
    parts = stream.partitions(stream.initialOffset(), stream.latestOffset())
    found = [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]
    assert found == [{"queue": "queue-1", "task_id": id_text(n)} for n in range(1, 10, 2)]
