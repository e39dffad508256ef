"""A script that copies attempts into Parquet, one folder for each micro-batch, until it is killed or
has read all attempts.

stream_until.py URL FOLDER forever|drain
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from fairlead.pipeline import FairleadSource
from fairlead.pipeline.session import session


def follow(spark: SparkSession, url: str, folder: Path, is_forever: bool) -> int:
    """Copy the existing attempts, with `is_forever` also all later ones, to `folder`; return the number
    of rows."""
    rows = 0

    def write(batch: DataFrame, number: int) -> None:
        nonlocal rows
        batch.write.mode("overwrite").parquet(str(folder / "batches" / str(number)))
        rows += spark.read.parquet(str(folder / "batches" / str(number))).count()

    frame = spark.readStream.format("fairlead").options(
        url=url, table="attempts", reader="test", max_rows_per_batch=400
    )
    writer = (
        frame.load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    trigger = {"processingTime": "100 milliseconds"} if is_forever else {"availableNow": True}
    writer.trigger(**trigger).start().awaitTermination()  # type: ignore[arg-type]
    return rows


if __name__ == "__main__":
    url, folder, how = sys.argv[1:]
    spark = session("local[2]", "follow", {"spark.sql.shuffle.partitions": "2"})
    spark.dataSource.register(FairleadSource)
    while follow(spark, url, Path(folder), how == "forever"):
        pass
