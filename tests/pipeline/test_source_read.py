"""Batch reads of the data source `fairlead` return each requested row once, and a filter affects one use
only."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import traceback
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceReader
from pyspark.testing import assertSchemaEqual

from fairlead import App
from fairlead.core.ids import id_text
from fairlead.errors import ConfigurationError, SchemaMismatch, StoreUnavailable
from fairlead.pipeline import FairleadSource
from fairlead.pipeline.source.batch import FairleadReader, scan_of
from fairlead.pipeline.source.options import (
    ATTEMPTS_READ,
    ONLY_BATCH,
    ONLY_ON_REQUEST,
    ONLY_STREAM,
    TASKS_READ,
    ReadOptions,
)
from fairlead.pipeline.source.scan import Piece
from fairlead.pipeline.source.stream import FairleadStreamReader
from tests.builders import idle
from tests.pipeline.filling import (
    COLUMNS,
    START,
    add_attempts,
    attempt,
    connected,
    migrated,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def load(spark: SparkSession, url: str, table: str, **options: Any) -> DataFrame:
    spark.dataSource.register(FairleadSource)
    return spark.read.format("fairlead").options(url=url, table=table, **options).load()


def options(url: str, table: str, **given: str) -> ReadOptions:
    return ReadOptions.parse({"url": url, "table": table, **given}, ONLY_STREAM)


def rows_of(scan: Any, pieces: list[Piece]) -> list[dict[str, Any]]:
    return [row for piece in pieces for batch in scan.read(piece) for row in batch.to_pylist()]


def micros(value: datetime | None) -> int | None:
    return None if value is None else (value.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)


# rows and columns -------------------------------------------------------------------------------------


def test_the_package_can_be_imported_without_pyspark() -> None:
    program = "import sys, fairlead.pipeline; assert 'pyspark' not in sys.modules; fairlead.pipeline.FairleadSource"
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ)


def test_every_column_of_an_attempt_is_read_as_it_was_written(
    spark: SparkSession, store: Any, store_url: str
) -> None:
    with connected(store_url) as connection:
        add_attempts(connection, range(1, 4))
    frame = load(spark, store_url, "attempts")
    assertSchemaEqual(frame.schema, ATTEMPTS_READ.spark())
    rows = frame.orderBy("task_id").collect()
    # A connection of PostgreSQL takes many numbers of a sequence at once.
    first = rows[0]["seq"]
    assert first == 1 or not store_url.startswith("sqlite")
    for n, row in enumerate(rows, 1):
        read = row.asDict()
        assert read.pop("seq") == first + n - 1
        assert (read.pop("xid") > 0) == (not store_url.startswith("sqlite"))
        for column in ATTEMPTS_READ.columns:
            if column.type == "timestamp":
                read[column.name] = micros(read[column.name])
        assert read == dict(zip(COLUMNS, attempt(n), strict=True))


def test_tasks_are_read_with_their_payload_only_on_request(
    spark: SparkSession, store_url: str
) -> None:
    app = App(store_url)
    app.queue("shop", partitions=3)
    app.migrate()

    @app.task(queue="shop")
    async def work(text: str) -> None: ...

    texts = ["short", "long " * 1000]  # the store compresses the second text
    at = datetime(2030, 1, 1, tzinfo=UTC)
    ids = [work.options(fairness_key="acme", run_at=at).submit(text=text).id for text in texts]
    app.close()
    frame = load(spark, store_url, "tasks")
    assert set(frame.columns) == set(TASKS_READ.column_names) - ONLY_ON_REQUEST
    found = {row.task_id: row for row in frame.collect()}
    assert {(row.state, row.queue, row.fairness_key, row.attempt) for row in found.values()} == {
        ("WAITING", "shop", "acme", 0)
    }
    assert {micros(row.run_at) for row in found.values()} == {micros(at)}
    payloads = load(spark, store_url, "tasks", columns="payload,task_id").collect()
    decoded = spark.createDataFrame(payloads).select(
        "task_id", F.get_json_object("payload", "$.text").alias("text")
    )
    assert {row.task_id: row.text for row in decoded.collect()} == dict(
        zip(ids, texts, strict=True)
    )


def test_columns_are_read_in_the_order_in_which_they_are_named(
    spark: SparkSession, store: Any, store_url: str
) -> None:
    with connected(store_url) as connection:
        add_attempts(connection, [7])
    assert load(spark, store_url, "attempts", columns="queue, attempt").collect() == [
        ("queue-1", 1)
    ]
    spark.dataSource.register(FairleadSource)
    reader = spark.read.format("fairlead").options(url=store_url, table="attempts")
    assert reader.schema("name string, priority tinyint").load().collect() == [("work", 4)]
    with pytest.raises(Exception, match="column priority of attempts is tinyint, not string"):
        reader.schema("priority string").load().collect()


def test_only_the_requested_queue_and_time_are_read(store: Any, store_url: str) -> None:
    with connected(store_url) as connection:
        add_attempts(connection, range(100))
    at = [
        datetime.fromtimestamp((START + n * 1000 + 6) / 1e6, UTC) for n in (10, 20)
    ]  # finished_at of the tenth and the twentieth attempt
    given = {"since": at[0].isoformat(), "until": at[1].isoformat(), "queue": "queue-1"}
    scan = scan_of(options(store_url, "attempts", **given))
    assert sorted(row["task_id"] for row in rows_of(scan, scan.plan())) == [
        id_text(n) for n in range(11, 20, 2)
    ]


def test_a_queue_with_any_name_can_be_read(store: Any, store_url: str) -> None:
    awkward = """O'Neil"; DROP TABLE fairlead_attempts; -- \\ {queue} %s $1 ?1"""
    with connected(store_url) as connection:
        add_attempts(connection, [1, 2])
        marker = "?" if store_url.startswith("sqlite") else "%s"
        connection.execute(
            f"UPDATE fairlead_attempts SET queue = {marker} WHERE seq = 1", (awkward,)
        )
    scan = scan_of(options(store_url, "attempts", queue=awkward, columns="queue"))
    assert rows_of(scan, scan.plan()) == [{"queue": awkward}]


# every row once -----------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [None, 1, 30])
def test_each_attempt_is_in_one_piece_while_more_are_added(
    store: Any, store_url: str, partitions: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.pipeline.source.sqlite.ROWS_PER_PIECE", 700)
    monkeypatch.setattr("fairlead.pipeline.source.postgres.BLOCKS_PER_PIECE", 9)
    chosen = {} if partitions is None else {"partitions": str(partitions)}
    scan = scan_of(options(store_url, "attempts", columns="task_id", **chosen))
    with connected(store_url) as connection:
        add_attempts(connection, range(3000))
        connection.execute("DELETE FROM fairlead_attempts WHERE seq <= 500")  # numbers for new rows
        if not store_url.startswith("sqlite"):
            connection.execute("VACUUM fairlead_attempts")
        pieces = scan.plan()
        assert len(pieces) > 1 or partitions == 1
        read = []
        for n, piece in enumerate(pieces):
            read += [row["task_id"] for row in rows_of(scan, [piece])]
            if n < 20:
                add_attempts(connection, range(3000 + 100 * n, 3100 + 100 * n))
    assert sorted(read) == [id_text(n) for n in range(500, 3000)]


def test_an_attempt_that_commits_late_is_read_by_all_pieces_or_none(postgres_url: str) -> None:
    migrated(postgres_url).database.close()
    with connected(postgres_url) as late, connected(postgres_url) as connection:
        late.execute("BEGIN")
        add_attempts(late, range(500))
        add_attempts(connection, range(500, 1000))
        scan = scan_of(options(postgres_url, "attempts", columns="task_id", partitions="5"))
        pieces = scan.plan()
        before = rows_of(scan, pieces)
        late.execute("COMMIT")
        assert rows_of(scan, pieces) == before
        assert len(rows_of(scan, scan.plan())) == 1000


@pytest.mark.parametrize("partitions", [None, 3])
def test_each_task_that_does_not_change_is_in_one_piece(
    store: Any, store_url: str, partitions: int | None
) -> None:
    app = App(store_url)
    app.queue("shop")
    work = idle(app, "work", queue="shop")
    ids = [submitted.id for n in range(5) for submitted in work.submit_many([{"n": n}] * 100)]
    app.close()
    chosen = {} if partitions is None else {"partitions": str(partitions)}
    scan = scan_of(options(store_url, "tasks", columns="task_id", **chosen))
    assert sorted(row["task_id"] for row in rows_of(scan, scan.plan())) == sorted(ids)


@pytest.mark.parametrize("table", ["tasks", "attempts"])
def test_an_empty_table_has_no_rows(
    spark: SparkSession, store: Any, store_url: str, table: str
) -> None:
    assert load(spark, store_url, table).count() == 0


def test_large_gaps_between_numbers_do_not_make_many_pieces(sqlite_url: str) -> None:
    migrated(sqlite_url).database.close()
    with connected(sqlite_url) as connection:
        add_attempts(connection, range(10))
        connection.execute("UPDATE fairlead_attempts SET seq = seq * 1000000000 WHERE seq > 5")
    scan = scan_of(options(sqlite_url, "attempts", columns="task_id"))
    pieces = scan.plan()
    assert len(pieces) <= 200
    assert sorted(row["task_id"] for row in rows_of(scan, pieces)) == [
        id_text(n) for n in range(10)
    ]


def test_batches_have_at_most_the_requested_number_of_rows(store: Any, store_url: str) -> None:
    with connected(store_url) as connection:
        add_attempts(connection, range(1000))
    scan = scan_of(options(store_url, "attempts", batch_rows="300", partitions="1"))
    sizes = [batch.num_rows for piece in scan.plan() for batch in scan.read(piece)]
    assert sum(sizes) == 1000
    assert max(sizes) <= 300


# filters ------------------------------------------------------------------------------------------


def test_no_reader_of_fairlead_accepts_filters() -> None:
    assert FairleadReader.pushFilters is DataSourceReader.pushFilters
    assert not hasattr(FairleadStreamReader, "pushFilters")


# errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"tabel": "tasks"},
            "unknown option tabel; known: url, table, columns, queue",
        ),
        ({}, "missing required field `table`"),
        ({"table": "task"}, "Invalid enum value 'task' - at `\\$.table`"),
        (
            {"table": "tasks", "columns": "id, queue"},
            "tasks has no column 'id'; known: task_id, queue",
        ),
        ({"table": "tasks", "columns": ""}, "tasks has no column ''"),
        ({"table": "tasks", "columns": "queue,queue"}, "names a column twice"),
        (
            {"table": "tasks", "partitions": "0"},
            "Expected `int` >= 1 - at `\\$.partitions`",
        ),
        (
            {"table": "tasks", "batch_rows": "many"},
            "Expected `int`, got `str` - at `\\$.batch_rows`",
        ),
        (
            {"table": "tasks", "since": "yesterday"},
            "Invalid RFC3339 encoded datetime - at `\\$.since`",
        ),
        (
            {"table": "tasks", "until": "2026-01-31T12:00:00"},
            "with a timezone component - at `\\$.until`",
        ),
        (
            {"table": "tasks", "since": "2026-02-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
            "since must be before until",
        ),
        ({"table": "attempts", "reader": "me"}, "unknown option reader"),
    ],
)
def test_an_unknown_option_is_refused_with_the_known_ones(
    given: dict[str, str], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){expected}"):
        ReadOptions.parse({"url": "sqlite:///tasks.db", **given}, ONLY_STREAM)


def test_names_of_options_ignore_case_and_streams_have_more_options() -> None:
    parsed = ReadOptions.parse(
        {"URL": "sqlite:///tasks.db", "Table": "attempts", "READER": "news"}, ONLY_BATCH
    )
    assert parsed.reader == "news"
    with pytest.raises(ConfigurationError, match="unknown option partitions, since"):
        ReadOptions.parse(
            {"url": "sqlite:///t", "table": "attempts", "partitions": "3", "since": "x"},
            ONLY_BATCH,
        )


def test_without_a_url_the_one_of_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAIRLEAD_URL", "sqlite:///here.db")
    assert ReadOptions.parse({"table": "tasks"}).url == "sqlite:///here.db"
    monkeypatch.delenv("FAIRLEAD_URL")
    with pytest.raises(ConfigurationError, match="set the option url, or FAIRLEAD_URL"):
        ReadOptions.parse({"table": "tasks"})


def test_reading_creates_no_file_and_the_error_names_the_missing_one(
    sqlite_url: str, tmp_path: Path
) -> None:
    scan = scan_of(options(sqlite_url, "attempts"))
    with pytest.raises(StoreUnavailable, match=r"cannot read .*tasks\.db"):
        scan.plan()
    path = tmp_path / "tasks.db"
    assert not path.exists()
    path.touch()
    with pytest.raises(SchemaMismatch, match="run `fairlead migrate`"):
        scan.plan()


def test_a_column_that_a_table_of_sqlite_lacks_is_named_with_the_cure(sqlite_url: str) -> None:
    scan = scan_of(options(sqlite_url, "attempts"))
    App(sqlite_url).migrate()
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        connection.execute("ALTER TABLE fairlead_attempts DROP COLUMN trigger_path")
    with pytest.raises(SchemaMismatch, match="trigger_path.*run `fairlead migrate`"):
        [list(scan.read(piece)) for piece in scan.plan()]


def test_the_error_about_missing_tables_in_postgresql_names_the_command(postgres_url: str) -> None:
    scan = scan_of(options(postgres_url, "attempts"))
    with pytest.raises(SchemaMismatch, match="run `fairlead migrate`"):
        scan.plan()
    with pytest.raises(SchemaMismatch, match="run `fairlead migrate`"):
        list(scan.read(Piece("attempts", {"first": "(0,0)", "past": "(1,0)", "horizon": "1"})))


def test_no_error_shows_a_password(spark: SparkSession, postgres_url: str) -> None:
    secret = "s3cret-word"
    parts = urlsplit(postgres_url)
    url = postgres_url.replace(parts.password or "", secret)
    with pytest.raises(Exception, match="PostgreSQL at") as planning:
        load(spark, url, "attempts").count()
    with pytest.raises(StoreUnavailable, match="PostgreSQL at") as reading:
        list(
            scan_of(options(url, "attempts")).read(
                Piece("attempts", {"first": "", "past": "", "horizon": "1"})
            )
        )
    with pytest.raises(ConfigurationError) as parsing:
        scan_of(options(f"mysql://me:{secret}@host/db", "attempts"))
    for raised in (planning, reading, parsing):
        assert secret not in "".join(traceback.format_exception(raised.value))
    assert secret not in repr(options(url, "attempts"))


# connections --------------------------------------------------------------------------------------


def test_a_connection_lost_during_a_read_is_named_in_the_error(postgres_url: str) -> None:
    migrated(postgres_url).database.close()
    with connected(postgres_url) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute(
            "INSERT INTO fairlead_attempts (task_id, attempt, tries, queue, name, partition, priority, fairness_key, weight, "
            "version, submitted_at, run_at, finished_at, outcome, next_state, trigger_path, payload_bytes, error_text) "
            "SELECT gen_random_uuid(), 1, 1, 'q', 'n', 1, 5, 'k', 1, 2, 1, 1, 1, 'done', 'DONE', 'hook', 1, repeat('x', 1000) "
            "FROM generate_series(1, 50000)"
        )
        scan = scan_of(options(postgres_url, "attempts"))
        batches = scan.read(scan.plan()[0])
        next(batches)
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY%'"
        )
        with pytest.raises(StoreUnavailable, match="PostgreSQL at"):
            list(batches)


def test_a_read_abandoned_half_way_leaves_no_connection(store: Any, store_url: str) -> None:
    with connected(store_url) as connection:
        add_attempts(connection, range(5000))
    store.database.close()
    before = _connections(store_url)
    scan = scan_of(options(store_url, "attempts", batch_rows="100"))
    batches = scan.read(scan.plan()[0])
    assert next(batches).num_rows == 100
    assert _connections(store_url) == before + 1
    batches.close()
    assert _connections(store_url) == before


def _connections(url: str) -> int:
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        return sum(
            os.path.realpath(f"/proc/self/fd/{fd}") == path for fd in os.listdir("/proc/self/fd")
        )
    with connected(url) as connection:
        statement = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        for _ in range(100):  # a backend ends a moment after its client
            if (count := connection.execute(statement).fetchone()[0]) == 0:
                break
            connection.execute("SELECT pg_sleep(0.01)")
        return int(count)
