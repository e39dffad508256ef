"""`ingest --stream`: writes attempts from Kafka into the lake, each exactly once, by Spark's
structured streaming.

The checkpoint only records where Spark continues to read; the lake's cursors decide which rows
count (see `stream.intake`). A lost checkpoint, a repeated batch, a kill at any moment or a
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
from queue import SimpleQueue
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
from fairlead.pipeline.stream.intake import Counted, IntakeBatch, PartitionResult, Plan, take_arrow
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
        self._failure: FairleadError | None = None
        self._on_batch: Callable[[], None] = lambda: None
        self._taken: SimpleQueue[Counted] = SimpleQueue()
        """Counts of batches that no run has yet."""
        self._run: JobRun | None = None
        self._recording = ExitStack()
        self._recorded_until = 0.0

    def run(self) -> None:
        """Take batches until `stops` is set, and retry while Kafka or a store is unavailable. Raise
        CheckFailed for a gap, BrokenLake, ConfigurationError, and repeated failures of Spark."""

        def query(on_batch: Callable[[], None]) -> None:
            self._on_batch = on_batch
            self._query(is_once=False)

        follow(query, self.stops, min(self.every, EVERY), "stream interrupted, retrying")
        self._record(is_over=True)

    def once(self) -> None:
        """Take everything that is in the topic now. Raise the errors of `run`, and
        StoreUnavailable."""
        ends = self._topic.ends()
        while not self.stops.is_set():
            known = cursors_of(self.lake.table(ATTEMPTS).state(), self._topic.name)
            if all(n in known and known[n].next >= end for n, end in ends.items() if end):
                break
            # Spark 4.1 takes one batch at most.
            self._query(is_once=True)
        self._record(is_over=True)

    def _query(self, is_once: bool) -> None:
        """Run one query until it ends, fails or is stopped."""
        self._failure = None
        try:
            self.on_interval()
            query = self._start(is_once)
            try:
                interval_at = time.monotonic() + self.every
                while not query.awaitTermination(_POLL_SECONDS) and not self.stops.is_set():
                    self._record()
                    if time.monotonic() >= interval_at:
                        self.on_interval()
                        interval_at = time.monotonic() + self.every
            finally:
                query.stop()
            self.on_interval()
        except Exception as error:
            failure = self._failure or fairlead_error(error) or error
            self._record(failure, is_over=True)
            raise failure from None

    def _record(self, failure: Exception | None = None, is_over: bool = False) -> None:
        """Count the new batches in ops.pipeline_runs, which has one row for each RUN_SECONDS in
        which messages arrived. `failure`: what ended the stream."""
        while not self._taken.empty():
            if self._run is None:
                params = {"topic": self._topic.name, "checkpoint": str(self.checkpoint)}
                self._run = self._recording.enter_context(
                    recorded(self.lake, self.clock, "ingest --stream", params)
                )
                self._run.spark_version = self.spark.version
                self._recorded_until = time.monotonic() + RUN_SECONDS
            counted = self._taken.get()
            self._run.rows_in += counted.messages
            self._run.rows_out += counted.attempts
        if self._run is not None and (is_over or time.monotonic() >= self._recorded_until):
            self._run = None
            self._recording.__exit__(type(failure) if failure else None, failure, None)

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
        self._taken.put(counted)
        self.on_rows(counted)
