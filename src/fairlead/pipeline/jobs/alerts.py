"""`alerts`: the stream of signs through the watch; what it raises goes to gold.incidents and to a
webhook."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.clock import to_datetime
from fairlead.pipeline.alerts.processor import alerts as alerts_of
from fairlead.pipeline.alerts.seen import incident_of, keep
from fairlead.pipeline.alerts.watch import Alert, Rules
from fairlead.pipeline.alerts.webhook import Notice, Webhook
from fairlead.pipeline.in_memory import SmallTables
from fairlead.pipeline.incidents.signs import ALL
from fairlead.pipeline.jobs.follow_loop import follow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME = "fairlead-alerts"
"""Of the query."""

EVERY = 10.0
"""Seconds between two batches."""

_LOOK_SECONDS = 1

Hear = Callable[[Sequence[Alert]], None]
"""Is told of each batch what it raised and ended, in the order in which it was noticed; often of
nothing."""


def alerts(
    signs: DataFrame, checkpoint: Path, rules: Rules, hears: Sequence[Hear], every: float = EVERY
) -> StreamingQuery:
    """Start the query over a stream of (store_id, queue, sign). What `checkpoint` knows goes on; a
    batch that was cut off is heard of again. What a hearer raises ends the query."""

    def hear(batch: DataFrame, _: int) -> None:
        # A few rows: queues, and keys of theirs, with which something began or ended within
        # seconds.
        rows = sorted(batch.collect(), key=lambda row: row["at"])
        told = [
            Alert(
                row["kind"],
                row["queue"],
                row["subject"],
                row["start"],
                row["at"],
                row["is_over"],
                row["tasks"],
            )
            for row in rows
        ]
        for each in hears:
            each(told)

    return (
        alerts_of(signs, rules)
        .writeStream.queryName(NAME)
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=f"{every} seconds")
        .foreachBatch(hear)
        .start()
    )


def signs_of(spark: SparkSession, url: str) -> DataFrame:
    """The stream of signs at a `kafka://` URL, from the first that is kept."""
    from fairlead.pipeline.source import FairleadSource

    spark.dataSource.register(FairleadSource)
    columns = ("store_id", "queue", "sign")
    return (
        spark.readStream.format("fairlead")
        .options(url=url, table="signs", columns=",".join(columns))
        .load()
    )


def watch(
    start: Callable[[], StreamingQuery], stops: threading.Event, pause: float = EVERY
) -> None:
    """Until `stops` is set, as `follow` says."""

    def query(came_through: Callable[[], None]) -> None:
        running = start()
        try:
            while not running.awaitTermination(_LOOK_SECONDS) and not stops.is_set():
                if running.lastProgress:
                    came_through()
        finally:
            running.stop()

    follow(query, stops, pause, "alerts wait: nobody sees what goes wrong")


def into_tables(tables: SmallTables) -> Hear:
    """Lets gold.incidents have them."""
    return lambda told: keep(tables, told)


def into_webhook(webhook: Webhook) -> Hear:
    """Posts them, and what waits."""

    def hear(told: Sequence[Alert]) -> None:
        webhook.send([notice_of(each) for each in told])

    return hear


def notice_of(alert: Alert) -> Notice:
    """For people and their programs."""
    of = (
        f"queue {alert.queue}"
        if alert.subject == ALL
        else f"{alert.subject} in queue {alert.queue}"
    )
    start, at = (
        to_datetime(instant).isoformat(timespec="seconds") for instant in (alert.start, alert.at)
    )
    told = f"{alert.kind}: {of}, since {start}" + (f", over at {at}" if alert.is_over else "")
    return Notice(
        incident_of(alert),
        "over" if alert.is_over else "open",
        alert.kind,
        alert.queue,
        alert.subject,
        start,
        at,
        alert.tasks,
        told,
    )
