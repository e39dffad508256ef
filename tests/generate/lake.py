"""Writer of generated attempts to a lake, with the tables and properties of an exporter."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fairlead.clock import to_micros
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.warehouse.location import CATALOG, NAMESPACE, flat_name
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.generate.record import recorded
from tests.generate.runs import of_work, timed
from tests.generate.truth import Truth


def write_lake(
    spark: SparkSession,
    lake: Warehouse,
    truth: Truth,
    since: datetime | None = None,
    until: datetime | None = None,
) -> int:
    """Write the attempts whose export time is in [since, until), by default all attempts, one file
    for each hour; return the number of rows. The history is then known up to `until`.

    spark: session with the settings of `Location.spark`.
    """
    rows = timed(spark, truth)
    if since is not None:
        rows = rows.where(F.col("exported") >= to_micros(since))
    if until is not None:
        rows = rows.where(F.col("exported") < to_micros(until))
    table = lake.table(ATTEMPTS)
    table.write(ATTEMPTS.arrow().empty_table(), "none")  # creates the table
    before = {file.path for file in table.files()}
    # Shuffle and sort the narrow rows first, because complete attempts are several times as wide.
    placed = (
        rows.withColumn("hour", F.date_trunc("hour", F.timestamp_micros("finished")))
        .withColumn("queue", of_work([work.queue for work in truth.works]))
        .repartition("hour")
        .sortWithinPartitions("hour", "queue", "tenant", "finished")
    )
    writer = recorded(placed, truth).writeTo(f"{CATALOG}.{NAMESPACE}.{flat_name(ATTEMPTS)}")
    # The rows are in order already: a task writes one hour after another.
    writer.option("use-table-distribution-and-ordering", "false").append()
    new = [file for file in table.files() if file.path not in before]
    last = max((file.span["exported_at"][1] for file in new), default=0)
    known = last if until is None else to_micros(until)
    while not table.append([], {}, table.state(), known):
        pass
    return sum(file.rows for file in new)
