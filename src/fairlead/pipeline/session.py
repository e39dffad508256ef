"""The Spark session, with the settings our tables rely on. See pipeline.md, section 2, for each."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGING = Path(__file__).with_name("log4j2.properties")
_JAVA = "-XX:+UseParallelGC -XX:-DontCompileHugeMethods"
"""A batch job wants throughput, not short pauses; and Java would interpret methods of more than
8,000 bytes for ever, such as a query over all columns makes."""

_DRIVER = "-Xss16m"
"""A stream that is stopped within a batch searches what Python told of it with a regular
expression, a few calls a character: with Java's usual stack a thousand lines of StackOverflowError
are told to whoever pressed Ctrl-C."""

_ON_ONE_MACHINE = {
    # A driver with its executors on this machine listens to nobody else.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # For tables of nobody's catalog, which we never make: else an empty folder appears wherever a
    # command is called.
    "spark.sql.warehouse.dir": os.path.join(tempfile.gettempdir(), "fairlead-spark-warehouse"),
    # Put together to parts of like size, as Spark does, three of them would keep one of two cores
    # waiting.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
}


def session(
    master: str | None = None, app_name: str = "fairlead", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session in force, or a new one on `master` (default: what spark-submit says, else
    local[*]).

    Instants are read and written in UTC, Arrow carries what passes to Python, and each write says
    itself which partitions it replaces. Raises ConfigurationError when PySpark or Java is missing.
    """
    from fairlead.pipeline.extra import need

    need("pyspark")
    from pyspark.sql import SparkSession

    # Workers must be of this very interpreter: another one has other libraries, or none.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    elif "SPARK_MASTER" not in os.environ and not os.environ.get("PYSPARK_SUBMIT_ARGS"):
        builder = builder.master("local[*]")
    on_one_machine = (master or "local").startswith("local")
    if on_one_machine:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # for the workers of a local-cluster
    cores = os.cpu_count() or 2
    for key, value in {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.sources.partitionOverwriteMode": "dynamic",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",
        # A build has more than the default 100 pieces of generated code: the next one would compile
        # them all again.
        "spark.sql.codegen.cache.maxEntries": "2000",
        # Files of a task's partitions are written side by side, without sorting its rows by
        # partition first.
        "spark.sql.maxConcurrentOutputFileWriters": "64",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile=file:{_LOGGING} {_DRIVER} {_JAVA}"
        ),
        "spark.executor.extraJavaOptions": _JAVA,
        **(_ON_ONE_MACHINE if on_one_machine else {}),
        **(settings or {}),
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
