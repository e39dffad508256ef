"""`ingest --stream`: writes attempts from Kafka into the lake, each exactly once, by Spark's
structured streaming.

The checkpoint only records where Spark continues to read; the lake's cursors decide which rows
count (see `stream.intake_batch`). A lost checkpoint, a repeated batch, a kill at any moment or a
second stream therefore loses and duplicates nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fairlead.backends.kafka.endpoint import KafkaEndpoint
from fairlead.clock import Clock
from fairlead.errors import FairleadError
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.errors import fairlead_error
from fairlead.pipeline.jobs.follow_loop import follow
from fairlead.pipeline.runs import JobRun, recorded
from fairlead.pipeline.source.options import MOST_ROWS_PER_BATCH
from fairlead.pipeline.stream.cursors import cursors_of
from fairlead.pipeline.stream.intake import PartitionResult, Plan, take_arrow
from fairlead.pipeline.stream.intake_batch import Counted, IntakeBatch
from fairlead.pipeline.stream.topic import AttemptsTopic
from fairlead.pipeline.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVERY = 30.0
"""Seconds between two batches."""

RUN_SECONDS = 600.0
"""Seconds of streaming that one row of ops.pipeline_runs covers."""

_POLL_SECONDS = 1


@dataclass
class IngestStream:
    """Stream from one topic into one lake."""

    spark: SparkSession
    lake: Warehouse
    url: str = field(repr=False)
    """URL of the topic: kafka://..."""
    checkpoint: Path
    clock: Clock
    every: float = EVERY
    """Seconds between two batches, and between two calls of `on_interval`."""
    most: int = MOST_ROWS_PER_BATCH
    """Maximum number of messages per batch."""
    on_rows: Callable[[Counted], None] = lambda counted: None
    """Callback with the counts of each batch."""
    on_interval: Callable[[], None] = lambda: None
    """Callback between batches, in this thread, for other work."""
    stops: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        from fairlead.pipeline.source import FairleadSource

        self.spark.dataSource.register(FairleadSource)
        self._topic = AttemptsTopic(KafkaEndpoint.of(self.url))
        self._intake = IntakeBatch(self.lake, self._topic, self.clock)
        self._runs = _RunRecords(self)
        self._failure: FairleadError | None = None
        self._on_batch: Callable[[], None] = lambda: None

    def run(self) -> None:
        """Take batches until `stops` is set, and retry while Kafka or a store is unavailable. Raise
        CheckFailed for a gap, BrokenLake, ConfigurationError, and repeated failures of Spark."""

        def query(on_batch: Callable[[], None]) -> None:
            self._on_batch = on_batch
            self._query(is_once=False)

        follow(query, self.stops, min(self.every, EVERY), "stream interrupted, retrying")
        self._runs.close()

    def once(self) -> None:
        """Take everything that is in the topic now. Raise the errors of `run`, and
        StoreUnavailable."""
        ends = self._topic.ends()
        while not self.stops.is_set():
            known = cursors_of(self.lake.table(ATTEMPTS).state(), self._topic.name)
            if all(n in known and known[n].next >= end for n, end in ends.items() if end):
                break
            # Spark before 4.2 takes all available rows in one batch.
            self._query(is_once=True)
        self._runs.close()

    def _query(self, is_once: bool) -> None:
        """Run one query until it ends, fails or is stopped."""
        self._failure = None
        try:
            self.on_interval()
            query = self._start(is_once)
            try:
                interval_at = time.monotonic() + self.every
                while not query.awaitTermination(_POLL_SECONDS) and not self.stops.is_set():
                    if time.monotonic() >= interval_at:
                        self.on_interval()
                        interval_at = time.monotonic() + self.every
            finally:
                query.stop()
            self.on_interval()
        except Exception as error:
            failure = self._failure or fairlead_error(error)
            self._runs.close(failure or error)
            if failure is None:
                raise
            raise failure from None

    def _start(self, is_once: bool) -> StreamingQuery:
        starts = {str(n): offset for n, offset in self._intake.starts().items()}
        frame = self.spark.readStream.format("fairlead").options(
            url=self.url,
            table="messages",
            startingOffsets=json.dumps(starts),
            max_rows_per_batch=self.most,
        )
        writer = frame.load().writeStream.foreachBatch(self._batch).queryName("fairlead ingest")
        writer = writer.option("checkpointLocation", str(self.checkpoint.absolute()))
        if is_once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self.every:g} seconds").start()

    def _batch(self, messages: DataFrame, number: int) -> None:
        """Take a batch. Spark calls this method in a thread of its own."""

        def run(plan: Plan) -> list[PartitionResult]:
            # Use one action only, because each action reads the batch again.
            rows = messages.mapInArrow(partial(take_arrow, plan), "outcome binary").collect()
            return [msgspec.msgpack.decode(row.outcome, type=PartitionResult) for row in rows]

        try:
            counted = self._intake.take(run)
        except Exception as error:
            self._failure = fairlead_error(error)
            raise
        self._on_batch()
        self._runs.add(counted)
        self.on_rows(counted)


class _RunRecords:
    """Rows of ops.pipeline_runs: one for each RUN_SECONDS in which messages arrived."""

    def __init__(self, stream: IngestStream) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._under_way = ExitStack()
        self._run: JobRun | None = None
        self._began = 0.0

    def add(self, counted: Counted) -> None:
        """Count a batch that was taken."""
        with self._lock:
            if self._run is None:
                one = self._stream
                params = {
                    "topic": KafkaEndpoint.of(one.url).attempts,
                    "checkpoint": str(one.checkpoint),
                }
                self._run = self._under_way.enter_context(
                    recorded(one.lake, one.clock, "ingest --stream", params)
                )
                self._run.spark_version = one.spark.version
                self._began = time.monotonic()
            self._run.rows_in += counted.messages
            self._run.rows_out += counted.attempts
            if time.monotonic() - self._began < RUN_SECONDS:
                return
        self.close()

    def close(self, failure: BaseException | None = None) -> None:
        """End the current row, with the failure that ended the stream, if any."""
        with self._lock:
            run, self._run = self._run, None
            if run is None:
                return
            under_way, self._under_way = self._under_way, ExitStack()
            try:
                under_way.__exit__(type(failure) if failure else None, failure, None)
            except BaseException as same:
                if same is not failure:
                    raise
