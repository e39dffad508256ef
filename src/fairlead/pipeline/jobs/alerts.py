"""`alerts`: runs the rules over the stream of heartbeats, and passes the alerts on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.clock import to_datetime
from fairlead.pipeline.alerts.processor import ALERT_SCHEMA, Watch
from fairlead.pipeline.alerts.webhook import Notice
from fairlead.pipeline.incidents.watch import ALL, Alert, Rules
from fairlead.pipeline.jobs.follow_loop import follow
from fairlead.pipeline.jobs.incidents import incident_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME = "fairlead-alerts"
"""Name of the streaming query."""

EVERY = 10.0
"""Seconds between two batches."""

_POLL_SECONDS = 1


def alerts(
    heartbeats: DataFrame,
    checkpoint: Path,
    rules: Rules,
    on_alerts: Callable[[Sequence[Alert]], None],
    every: float = EVERY,
) -> StreamingQuery:
    """Start the query over a stream of (store_id, queue, kafka_offset, heartbeat).

    The query continues from `checkpoint`. An interrupted batch is passed on again. An error in
    `on_alerts` ends the query.

    on_alerts: callback with the alerts that a batch raised or ended, in the order of detection;
    often an empty list. every: seconds between two batches.
    """

    def pass_on(batch: DataFrame, _: int) -> None:
        # Collect all rows: few alerts begin or end within seconds.
        rows = sorted(batch.collect(), key=lambda row: row["at"])
        names = Alert.__struct_fields__
        on_alerts([Alert(**{name: row[name] for name in names}) for row in rows])

    return (
        heartbeats.groupBy("store_id", "queue")
        .transformWithState(
            statefulProcessor=Watch(rules),
            outputStructType=ALERT_SCHEMA,
            outputMode="Update",
            timeMode="ProcessingTime",
        )
        .writeStream.queryName(NAME)
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=f"{every} seconds")
        .foreachBatch(pass_on)
        .start()
    )


def heartbeats_of(spark: SparkSession, url: str) -> DataFrame:
    """Return the stream of heartbeats at a `kafka://` URL, from the oldest retained one."""
    from fairlead.pipeline.source import FairleadSource

    spark.dataSource.register(FairleadSource)
    columns = ("store_id", "queue", "kafka_offset", "heartbeat")
    return (
        spark.readStream.format("fairlead")
        .options(url=url, table="heartbeats", columns=",".join(columns))
        .load()
    )


def watch(
    start: Callable[[], StreamingQuery], stops: threading.Event, pause: float = EVERY
) -> None:
    """Run the query until `stops` is set, and restart it after a failure as `follow` does.

    pause: seconds before the first restart.
    """

    def query(on_batch: Callable[[], None]) -> None:
        running = start()
        try:
            while not running.awaitTermination(_POLL_SECONDS) and not stops.is_set():
                if running.lastProgress:
                    on_batch()
        finally:
            running.stop()

    follow(query, stops, pause, "alerts are interrupted; problems are reported after the retry")


def notice_of(alert: Alert) -> Notice:
    """Return the alert as a notice for people and their programs."""
    of = (
        f"queue {alert.queue}"
        if alert.subject == ALL
        else f"{alert.subject} in queue {alert.queue}"
    )
    start, at = (
        to_datetime(instant).isoformat(timespec="seconds") for instant in (alert.start, alert.at)
    )
    text = f"{alert.kind}: {of}, since {start}" + (f", over at {at}" if alert.is_over else "")
    return Notice(
        incident_of(alert),
        "over" if alert.is_over else "open",
        alert.kind,
        alert.queue,
        alert.subject,
        start,
        at,
        alert.tasks,
        text,
    )
