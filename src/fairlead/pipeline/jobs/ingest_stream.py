"""`ingest --stream`: attempts from Kafka into the lake by Spark's structured streaming, each
exactly once.

The checkpoint only says where Spark reads on; what counts is the lake's manifest (see
`stream.intake_batch`). So a lost checkpoint, a batch that is repeated, a kill at any moment and a
second stream change nothing.
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
from fairlead.pipeline.jobs.follow_loop import follow, told_by
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.runs import Run, recorded
from fairlead.pipeline.source.kafka_tables import MESSAGES_SENT
from fairlead.pipeline.source.options import MOST_ROWS_PER_BATCH
from fairlead.pipeline.stream.cursors import cursors_of
from fairlead.pipeline.stream.intake import Outcome, Plan, take_arrow
from fairlead.pipeline.stream.intake_batch import Counted, IntakeBatch
from fairlead.pipeline.stream.topic import AttemptsTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVERY = 30.0
"""Seconds between two batches."""

KEPT_EVERY = 600.0
"""Seconds of streaming that are one row of ops.pipeline_runs."""

_LOOK_SECONDS = 1


@dataclass
class IngestStream:
    """From one topic into one lake."""

    spark: SparkSession
    lake: Lake
    url: str = field(repr=False)
    """kafka://..."""
    checkpoint: Path
    clock: Clock
    every: float = EVERY
    """Seconds between two batches, and between two calls of `beside`."""
    most: int = MOST_ROWS_PER_BATCH
    """Messages of a batch."""
    on_rows: Callable[[Counted], None] = lambda counted: None
    """Hears of each batch."""
    beside: Callable[[], None] = lambda: None
    """Called now and then in this thread: what else there is to do."""
    stops: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        from fairlead.pipeline.source import FairleadSource

        self.spark.dataSource.register(FairleadSource)
        self._topic = AttemptsTopic(KafkaEndpoint.of(self.url))
        self._intake = IntakeBatch(self.lake, self._topic, self.clock)
        self._runs = _Runs(self)
        self._failure: FairleadError | None = None
        self._came_through: Callable[[], None] = lambda: None

    def run(self) -> None:
        """Until `stops` is set. A Kafka or a store that is away is waited for. Raises CheckFailed
        for a gap, BrokenLake, ConfigurationError, and what Spark fails by again and again."""

        def query(came_through: Callable[[], None]) -> None:
            self._came_through = came_through
            self._query(is_once=False)

        follow(query, self.stops, min(self.every, EVERY), "the stream waits")
        self._runs.close()

    def once(self) -> None:
        """All that is in the topic now. Raises as `run`, and StoreUnavailable."""
        ends = self._topic.ends()
        while not self.stops.is_set():
            known = cursors_of(self.lake.table(ATTEMPTS).manifests.newest(), self._topic.name)
            if all(n in known and known[n].next >= end for n, end in ends.items() if end):
                break
            # Before 4.2 Spark takes one batch for all there is.
            self._query(is_once=True)
        self._runs.close()

    def _query(self, is_once: bool) -> None:
        """One query, until it ends, fails or is told to stop."""
        self._failure = None
        try:
            self.beside()
            query = self._start(is_once)
            try:
                beside_at = time.monotonic() + self.every
                while not query.awaitTermination(_LOOK_SECONDS) and not self.stops.is_set():
                    if time.monotonic() >= beside_at:
                        self.beside()
                        beside_at = time.monotonic() + self.every
            finally:
                query.stop()
            self.beside()
        except Exception as error:
            failure = error if isinstance(error, FairleadError) else self._failure or told_by(error)
            self._runs.close(failure or error)
            if failure is None:
                raise
            raise failure from None

    def _start(self, is_once: bool) -> StreamingQuery:
        starts = {str(n): offset for n, offset in self._intake.starts().items()}
        frame = self.spark.readStream.format("fairlead").options(
            url=self.url,
            table=MESSAGES_SENT.table.name,
            startingOffsets=json.dumps(starts),
            max_rows_per_batch=self.most,
        )
        writer = frame.load().writeStream.foreachBatch(self._batch).queryName("fairlead ingest")
        writer = writer.option("checkpointLocation", str(self.checkpoint.absolute()))
        if is_once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self.every:g} seconds").start()

    def _batch(self, messages: DataFrame, number: int) -> None:
        """In a thread of Spark's."""

        def run(plan: Plan) -> list[Outcome]:
            # One action: each one reads the batch again.
            rows = messages.mapInArrow(partial(take_arrow, plan), "outcome string").collect()
            return [msgspec.json.decode(row.outcome, type=Outcome) for row in rows]

        try:
            counted = self._intake.take(run)
        except Exception as error:
            self._failure = error if isinstance(error, FairleadError) else told_by(error)
            raise
        self._came_through()
        self._runs.add(counted)
        self.on_rows(counted)


class _Runs:
    """What was done, as rows of ops.pipeline_runs: one for each stretch of some minutes in which
    rows came."""

    def __init__(self, stream: IngestStream) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._under_way = ExitStack()
        self._run: Run | None = None
        self._began = 0.0

    def add(self, counted: Counted) -> None:
        """A batch was let in."""
        with self._lock:
            if self._run is None:
                one = self._stream
                told = {
                    "topic": KafkaEndpoint.of(one.url).attempts,
                    "checkpoint": str(one.checkpoint),
                }
                self._run = self._under_way.enter_context(
                    recorded(one.lake, one.clock, "ingest --stream", told)
                )
                self._run.spark_version = one.spark.version
                self._began = time.monotonic()
            self._run.rows_in += counted.messages
            self._run.rows_out += counted.attempts
            if time.monotonic() - self._began < KEPT_EVERY:
                return
        self.close()

    def close(self, failure: BaseException | None = None) -> None:
        """The stretch has ended, maybe by a failure."""
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
