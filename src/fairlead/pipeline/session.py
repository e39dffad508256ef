"""The Spark session, with the settings that our tables rely on."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.pipeline.warehouse.location import CATALOG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fairlead.pipeline.warehouse.warehouse import Warehouse

_PACKAGES = "spark.jars.packages"
"""Setting of Spark with the packages that it fetches from Maven."""

_PASSWORD = f"spark.sql.catalog.{CATALOG}.jdbc.password"
_LOGGING = Path(__file__).with_name("log4j2.properties")
_JAVA = "-XX:+UseParallelGC -XX:-DontCompileHugeMethods"
"""Options for throughput instead of short pauses. Java interprets methods above 8,000 bytes without
compiling them, such as a query over all columns."""

_DRIVER = "-Xss16m"
"""Stack size: after a stop within a batch, a stream parses the output of Python with a recursive
regular expression, which overflows the default stack and prints a thousand lines."""

_ON_ONE_MACHINE = {
    # A local driver with local executors listens on loopback only.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Folder for tables without a catalog, which we never make; without this setting each command
    # leaves an empty folder.
    "spark.sql.warehouse.dir": os.path.join(tempfile.gettempdir(), "fairlead-spark-warehouse"),
    # Do not merge small partitions: with few partitions left, some cores would have no work.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 2)),
}

_ON_A_CLUSTER = {
    # Enough partitions for the cores of a large cluster, whatever those of the driver; Spark merges
    # small ones when it knows their sizes.
    "spark.sql.shuffle.partitions": "400",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.adaptive.skewJoin.enabled": "true",
}


def session(
    master: str | None = None,
    app_name: str = "fairlead",
    settings: Mapping[str, str] | None = None,
    warehouse: Warehouse | None = None,
) -> SparkSession:
    """Return the active session, or a new one on `master` (default: the one of spark-submit, else
    local[*]), with the catalog of the lake if one is given.

    Spark fetches the jars of Iceberg from Maven once, unless `settings` name jars. Instants are in
    UTC, and Arrow transfers data to Python. Raise ConfigurationError when PySpark or Java is
    missing.
    """
    from fairlead.pipeline.extra import need

    need("pyspark")
    from pyspark.sql import SparkSession

    # Workers need this interpreter, because another one lacks the libraries.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    elif "SPARK_MASTER" not in os.environ and not os.environ.get("PYSPARK_SUBMIT_ARGS"):
        builder = builder.master("local[*]")
    on_one_machine = (master or "local").startswith("local")
    if on_one_machine:
        os.environ.setdefault(
            "SPARK_LOCAL_IP", "127.0.0.1"
        )  # needed by the workers of a local-cluster
    catalog = _catalog(warehouse, settings or {})
    # Settings of the start are arguments of a process, which all users of the machine can read.
    password = catalog.pop(_PASSWORD, None)
    for key, value in {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.sources.partitionOverwriteMode": "dynamic",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",  # Spark writes them by default
        # A build has more than the default 100 pieces of generated code; a full cache would compile
        # all of them again.
        "spark.sql.codegen.cache.maxEntries": "2000",
        # Grouped rows have nearly as many keys as rows, so a small map before the large one is
        # searched, with a copy of each text, and seldom found.
        "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
        # Write the files of a task's partitions side by side, without sorting its rows.
        "spark.sql.maxConcurrentOutputFileWriters": "64",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile=file:{_LOGGING} {_DRIVER} {_JAVA}"
        ),
        "spark.executor.extraJavaOptions": _JAVA,
        **(_ON_ONE_MACHINE if on_one_machine else _ON_A_CLUSTER),
        **catalog,
        **(settings or {}),
        "spark.sql.session.timeZone": "UTC",  # the hours and days of the tables are in UTC
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if password is not None:
        spark.conf.set(_PASSWORD, password)
    return spark


def _catalog(warehouse: Warehouse | None, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for the catalog of the lake, without jars if others are named."""
    if warehouse is None:
        return {}
    found = warehouse.location.spark()
    packages = found.pop(_PACKAGES)
    if {"spark.jars", _PACKAGES}.isdisjoint(settings):
        jars = [jar_of(package, Path.home()) for package in packages.split(",")]
        if None in jars:
            found[_PACKAGES] = packages
        else:
            found["spark.jars"] = ",".join(map(str, jars))
    return found


def jar_of(package: str, home: Path) -> Path | None:
    """Return the jar of a package in the user's cache of Ivy or Maven, whose resolution Spark would
    repeat, and print, at each start; None if Spark must fetch it."""
    group, artifact, version = package.split(":")
    in_maven = home / ".m2/repository" / Path(*group.split(".")) / artifact / version
    places = [
        *sorted(home.glob(f".ivy2*/jars/{group}_{artifact}-{version}.jar")),
        in_maven / f"{artifact}-{version}.jar",
    ]
    return next((path for path in places if path.is_file()), None)
