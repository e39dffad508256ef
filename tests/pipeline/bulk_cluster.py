"""A bulk submit on a standalone cluster of two executors, with speculation on; the first task to have staged is killed with
its executor before it can tell. Usage: bulk_cluster.py URL FOLDER"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pyspark.cloudpickle
from pyspark import TaskContext
from pyspark.sql import functions as F

from fairlead.pipeline.session import session
from fairlead.pipeline.source import FairleadSource
from fairlead.pipeline.source.sink import BulkWriter


class Killed(BulkWriter):
    """Kills the executor of the first attempt that has staged part 0, and lets part 1 be slow enough for a twin."""

    folder = ""

    def write(self, iterator: Any) -> Any:
        staged = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        (Path(self.folder) / f"staged-{context.partitionId()}-{context.attemptNumber()}").touch()
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            (Path(self.folder) / "killed").touch()
            daemon = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(daemon, signal.SIGKILL)  # the parent of Python's daemon: the executor
            time.sleep(60)
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            time.sleep(15)
        return staged


class KilledSource(FairleadSource):
    def writer(self, schema: Any, overwrite: bool) -> Any:
        writer = super().writer(schema, overwrite)
        writer.__class__ = Killed
        return writer


def main(url: str, folder: str) -> None:
    Killed.folder = folder
    pyspark.cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    spark = session(
        "local-cluster[2,1,1024]",
        "fairlead tests on a cluster",
        {
            "spark.speculation": "true", "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "1s", "spark.driver.memory": "512m", "spark.executor.memory": "512m",
        },
    )  # fmt: skip
    spark.dataSource.register(KilledSource)
    df = spark.range(0, 1000, 1, 8).select(F.col("id").alias("n"))
    options = {"url": url, "queue": "orders", "task": "pay", "submission_id": "march", "args_columns": "n"}
    df.write.format("fairlead").options(**options).mode("append").save()
    from tests.pipeline.bulk import job_of

    print(job_of(url).totals())
    spark.stop()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main(*sys.argv[1:])
