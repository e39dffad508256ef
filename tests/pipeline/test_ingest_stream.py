"""`ingest --stream` on real Spark and Kafka writes each attempt once, also after kills. The tests in
test_stream_intake.py cover the batches without Spark."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")

from pyspark.sql import SparkSession

from fairlead.clock import SYSTEM_CLOCK
from fairlead.core.ids import id_text
from fairlead.errors import ConfigurationError
from fairlead.pipeline import FairleadSource
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.jobs.ingest_stream import IngestStream
from fairlead.pipeline.runs import last_runs
from fairlead.pipeline.source.kafka import KafkaOptions, KafkaStreamReader
from tests.end_to_end.workers import ROOT
from tests.pipeline.filling import adding
from tests.pipeline.test_source_stream import _descendants
from tests.pipeline.topics import Relayed, relayed_at
from tests.pipeline.warehouses import root_of

PATIENCE = 1200.0  # timeout in seconds


@pytest.fixture
def relayed(sqlite_url: str, tmp_path: Path, kafka_url: str) -> Iterator[Relayed]:
    with relayed_at(sqlite_url, tmp_path, kafka_url, rows=100) as one:
        yield one


# the source, without Spark ------------------------------------------------------------------------


def reader(url: str, **given: str) -> KafkaStreamReader:
    return KafkaStreamReader(KafkaOptions.parse({"url": url, **given}))


def rows(
    stream: KafkaStreamReader, start: dict[str, int], end: dict[str, int]
) -> list[dict[str, Any]]:
    return [
        row
        for part in stream.partitions(start, end)
        for batch in stream.read(part)
        for row in batch.to_pylist()
    ]


def test_the_source_reads_each_message_once_from_its_offsets_on(relayed: Relayed) -> None:
    relayed.bring(range(30))
    stream = reader(
        relayed.kafka_url,
        max_rows_per_batch="10",
        columns="task_id,kafka_partition,kafka_offset,error_text",
    )
    ends = [stream.initialOffset()]
    found: list[dict[str, Any]] = []
    while (end := stream.latestOffset()) != ends[-1]:
        assert sum(end[n] - ends[-1][n] for n in end) <= 11, (
            "the limit is rounded up for each partition"
        )
        found += rows(stream, ends[-1], end)
        ends.append(end)
    assert sorted(row["task_id"] for row in found) == [id_text(n) for n in range(30)]
    assert len({(row["kafka_partition"], row["kafka_offset"]) for row in found}) == 30
    again = reader(relayed.kafka_url, columns="task_id")
    assert again.partitions(ends[1], ends[1]) == []  # as Spark starts on an old checkpoint
    assert len(rows(again, ends[1], again.latestOffset())) == 30 - len(
        rows(again, ends[0], ends[1])
    )
    given = reader(relayed.kafka_url, startingOffsets=json.dumps({"0": 3}))
    assert given.initialOffset() == {"0": 3, "1": 0}
    messages = reader(relayed.kafka_url, table="messages")
    kinds = [json.loads(row["value"])["kind"] for row in rows(messages, ends[0], ends[-1])]
    assert (kinds.count("attempt"), kinds.count("mark")) == (30, 2)


def test_the_source_refuses_missing_offsets_and_wrong_options(relayed: Relayed) -> None:
    relayed.bring(range(30))
    stream = reader(relayed.kafka_url)
    start, end = stream.initialOffset(), stream.latestOffset()
    relayed.trim(4, partitions=1)
    with pytest.raises(CheckFailed, match=r"partition 0 no longer has offset 0.*retention\.ms"):
        stream.partitions(start, end)
    with pytest.raises(CheckFailed, match="no longer has offset 99"):
        stream.partitions({**end, "1": 99}, {**end, "1": 100})
    with pytest.raises(ConfigurationError, match="has 2 partitions, and the checkpoint 3"):
        stream.partitions({**start, "2": 0}, {**end, "2": 1})
    for options, expected in (
        ({"startingOffsets": "latest"}, "use earliest"),
        ({"table": "tasks"}, "known: attempts, messages"),
        ({"columns": "colour"}, "no column 'colour'"),
        ({"reader": "me"}, "unknown option reader of a topic"),
    ):
        with pytest.raises(ConfigurationError, match=expected):
            reader(relayed.kafka_url, **options)
    with pytest.raises(
        ConfigurationError, match="the topic does not exist; `fairlead pipeline relay` creates it"
    ):
        reader(relayed.kafka_url + "nowhere.").initialOffset()


# on Spark -----------------------------------------------------------------------------------------


def test_batches_of_spark_bring_each_attempt_once(
    spark: SparkSession,
    relayed: Relayed,
    tmp_path: Path,
) -> None:
    relayed.bring(range(500))
    counts: list[int] = []

    def stream(checkpoint: str, most: int = 200) -> None:
        IngestStream(
            spark,
            relayed.lake,
            relayed.kafka_url,
            tmp_path / checkpoint,
            SYSTEM_CLOCK,
            most=most,
            on_rows=lambda counted: counts.append(counted.attempts),
        ).once()

    stream("checkpoint")
    assert relayed.differences() == [] and sum(counts) == 500 and len(counts) >= 3
    relayed.bring(range(500, 600))
    stream("checkpoint")
    relayed.bring(range(600, 700))
    stream("another", 1000)  # the first checkpoint is lost
    assert relayed.differences() == [] and sum(counts) == 700
    run = last_runs(relayed.lake)["ingest --stream"]
    assert (run["state"], run["rows_out"]) == ("done", 100)
    # With the first checkpoint again, attempts of the other one are skipped.
    stream("checkpoint")
    assert relayed.differences() == [] and sum(counts) == 700


def test_attempts_of_a_topic_can_be_read_as_a_stream(
    spark: SparkSession, relayed: Relayed, tmp_path: Path
) -> None:
    relayed.bring(range(50))
    spark.dataSource.register(FairleadSource)
    frame = spark.readStream.format("fairlead").option("url", relayed.kafka_url).load()
    found: list[Any] = []
    query = (
        frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(
            lambda batch, n: found.extend(
                batch.select("task_id", "fairness_key", "finished_at").collect()
            )
        )
        .start()
    )
    query.processAllAvailable()
    query.stop()
    assert sorted(row.task_id for row in found) == [id_text(n) for n in range(50)]


def test_a_gap_ends_the_stream_with_cause_and_cure(
    spark: SparkSession,
    relayed: Relayed,
    tmp_path: Path,
) -> None:
    relayed.bring(range(50))
    stream = IngestStream(
        spark, relayed.lake, relayed.kafka_url, tmp_path / "checkpoint", SYSTEM_CLOCK
    )
    stream.once()
    relayed.bring(range(50, 100))
    relayed.trim(40)
    with pytest.raises(CheckFailed, match=r"no longer has offset \d+.*take-over"):
        stream.once()


@pytest.mark.slow
@pytest.mark.spark
def test_a_stream_killed_three_times_while_attempts_end_leaves_no_gap_and_no_double(
    relayed: Relayed, tmp_path: Path
) -> None:
    deadline = time.monotonic() + PATIENCE
    command = [
        sys.executable,
        "-m",
        "fairlead",
        "pipeline",
        "ingest",
        "--stream",
        "--kafka",
        relayed.kafka_url,
        "--url",
        relayed.url,
        "--lake",
        str(root_of(relayed.lake)),
        "--checkpoint",
        str(tmp_path / "checkpoint"),
        "--master",
        "local[2]",
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    beside = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fairlead",
            "pipeline",
            "relay",
            "--kafka",
            relayed.kafka_url,
            "--url",
            relayed.url,
            "--every",
            "0.1",
        ],
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        with adding(relayed.url, 0.05, 10**6) as added:
            for _ in range(3):
                with (tmp_path / "log").open("a") as log:
                    driver = subprocess.Popen(
                        [*command, "--every", "1s"],
                        env=environment,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                    )
                try:
                    assert driver.stdout is not None
                    for _ in range(2):
                        assert driver.stdout.readline(), (tmp_path / "log").read_text()[-3000:]
                    time.sleep(random.random() * 2)  # kill the stream at a random moment
                finally:
                    for pid in [driver.pid, *_descendants(driver.pid)]:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    driver.communicate()
                assert time.monotonic() < deadline
            assert len(added) > 100
    finally:
        beside.kill()
        beside.wait()
    relayed.relay.round()
    ran = subprocess.run([*command, "--once"], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert relayed.differences() == []
    reader = relayed.history.database.read_now(relayed.history.reader(relayed.lake.reader))
    assert reader is not None and reader.position.seq == len(added), (
        "the store knows the position of the stream"
    )
