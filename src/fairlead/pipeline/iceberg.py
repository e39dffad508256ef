"""Tables in an Iceberg catalog: a job writes to a branch of each table, and publishing moves `main`
to it.

A build with failed checks publishes nothing, and readers see each table change in one commit. The
exporter writes Parquet, the landing zone; bronze is read there, and `land` copies it into tables of
the catalog.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from functools import reduce
from operator import and_
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from fairlead.clock import Clock
from fairlead.data_folder import check_folder
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.iceberg_layout import (
    add_missing,
    columns_of,
    create,
    during,
    first_line,
    part_of,
    placed,
)
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.manifest import TablePart
from fairlead.pipeline.parquet import ParquetTables
from fairlead.pipeline.schema import Table
from fairlead.urls import hide_urls

_NAME = re.compile(r"\w+(\.\w+)+")
_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_LANDED = (ATTEMPTS.name, EVENTS.name)
_WRITE = "fairlead.write"


class IcebergTables:
    """Tables of a catalog that Spark knows, with a namespace, as in `lake.fairlead`; `silver.tasks`
    is `silver_tasks` there."""

    def __init__(self, spark: SparkSession, catalog: str, lake: Lake, clock: Clock) -> None:
        """Raise ConfigurationError when Spark does not know the catalog or cannot open it."""
        _require(spark, catalog)
        self._spark = spark
        self._catalog, _, self._namespace = catalog.partition(".")
        self._landing = ParquetTables(spark, lake, clock)
        # A branch name of its own keeps the writes of other jobs apart.
        self._branch = f"build_{uuid.uuid4().hex[:8]}"
        self._staged: dict[str, Table] = {}

    def name_of(self, table: Table) -> str:
        """Return the name of the table in Spark SQL, flat because not every catalog nests
        namespaces."""
        return f"{self._catalog}.{self._namespace}.{table.name.replace('.', '_')}"

    def read(self, table: Table, parts: Collection[str] | None = None) -> DataFrame:
        if table.name in _LANDED:
            return self._landing.read(table, parts)
        if not self._exists(table):
            return self._spark.createDataFrame([], table.spark())
        return columns_of(
            table,
            self._spark.table(self._written_to(table)).where(during(table, self._catalog, parts)),
        )

    def replace(self, table: Table, rows: DataFrame, parts: Collection[str] | None = None) -> int:
        """Replace partitions in one commit to the branch. Raise BrokenLake for a row outside the
        partitions, and change nothing."""
        if parts is not None and not parts and rows.isEmpty():
            return 0
        self._stage(table)
        write = uuid.uuid4().hex
        writer = placed(table, self._catalog, rows, parts).writeTo(self._written_to(table))
        try:
            writer.option(f"snapshot-property.{_WRITE}", write).overwrite(
                during(table, self._catalog, parts)
            )
        except PySparkException as error:
            if error.getCondition() != "USER_RAISED_EXCEPTION":
                raise
            raise BrokenLake(first_line(error)) from error
        summary = F.col("summary")
        snapshot = self._spark.table(f"{self.name_of(table)}.snapshots").where(
            summary[_WRITE] == write
        )
        [(added,)] = snapshot.select(
            F.coalesce(summary["added-records"].cast("bigint"), F.lit(0))
        ).collect()
        return int(added)

    def parts(self, table: Table) -> list[str]:
        if table.name in _LANDED:
            return self._landing.parts(table)
        if not self._exists(table):
            return []
        reader = (
            self._spark.read.option("branch", self._branch)
            if table.name in self._staged
            else self._spark.read
        )
        held = reader.table(f"{self.name_of(table)}.partitions").where("record_count > 0")
        names = held.select(part_of(table).alias("name")).where(F.col("name").isNotNull())
        return sorted(row["name"] for row in names.collect())  # one row for each partition

    def publish(self) -> None:
        """Move `main` of each table to the branch, table by table."""
        for table in self._staged.values():
            name = self.name_of(table)
            try:
                self._spark.sql(
                    f"CALL {self._catalog}.system.fast_forward(table => '{name.partition('.')[2]}',"
                    f" branch => 'main', to => '{self._branch}')"
                )
            except PySparkException as error:
                if "not an ancestor" not in str(error):
                    raise
                raise BrokenLake(
                    f"{name} was changed by another process; run the command again"
                ) from error
            self._spark.sql(f"ALTER TABLE {name} DROP BRANCH {self._branch}")
        self._staged.clear()

    def land(self, table: Table, parts: Collection[str] | None = None) -> None:
        """Copy these partitions of the landing zone, all by default, into the catalog in one
        commit. A row whose key exists stays as it is, so a repeated copy changes nothing."""
        taken = [
            part
            for name, part in self._landing.manifest(table).parts.items()
            if parts is None or name in parts
        ]
        if not taken:
            return
        self._ensure(table)
        name = self.name_of(table)
        same = [F.col(f"landed.{column}") == F.col(f"{name}.{column}") for column in table.key]
        landed = self._landing.read(table, parts).alias("landed")
        landed.mergeInto(
            name, reduce(and_, same) & _near(table, name, taken)
        ).whenNotMatched().insertAll().merge()

    def _exists(self, table: Table) -> bool:
        return self._spark.catalog.tableExists(self.name_of(table))

    def _written_to(self, table: Table) -> str:
        """Return the branch or table in which this job writes and reads its results."""
        return self.name_of(table) + (
            f".branch_{self._branch}" if table.name in self._staged else ""
        )

    def _stage(self, table: Table) -> None:
        """Create our branch of the table at `main`."""
        if table.name in self._staged:
            return
        self._ensure(table)
        # An unpublished branch is removed by the first expire_snapshots after a day.
        self._spark.sql(
            f"ALTER TABLE {self.name_of(table)} CREATE BRANCH {self._branch} RETAIN 1 DAYS"
        )
        self._staged[table.name] = table

    def _ensure(self, table: Table) -> None:
        """Create the table or its missing columns."""
        name = self.name_of(table)
        if not self._exists(table):
            self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._catalog}.{self._namespace}")
            self._spark.sql(create(table, name))
        elif (change := add_missing(table, name, self._spark.table(name).schema)) is not None:
            self._spark.sql(change)


def _near(table: Table, name: str, taken: Collection[TablePart]) -> Column:
    """Return a condition for rows of the catalog that may equal rows of these partitions, so that
    no others are read."""
    spans = [part.span[table.instant] for part in taken if table.instant in part.span]
    if len(spans) < len(taken):
        return F.lit(True)
    instant = F.col(f"{name}.{table.instant}")
    first, last = min(low for low, _ in spans), max(high for _, high in spans)
    # A row without an instant is in no interval.
    return instant.isNull() | instant.between(
        F.timestamp_micros(F.lit(first)), F.timestamp_micros(F.lit(last))
    )


def _require(spark: SparkSession, catalog: str) -> None:
    """Raise ConfigurationError with the missing settings of this catalog."""
    help = "see docs/how-to/pipeline-cluster.md"
    if not _NAME.fullmatch(catalog):
        raise ConfigurationError(
            f"catalog {hide_urls(catalog)!r}: give a catalog and a namespace, as in lake.fairlead"
        )
    name = catalog.partition(".")[0]
    if spark.conf.get(f"spark.sql.catalog.{name}", None) is None:
        raise ConfigurationError(
            f"Spark knows no catalog {name!r}: set spark.sql.catalog.{name}; {help}"
        )
    if _EXTENSIONS not in (spark.conf.get("spark.sql.extensions", None) or ""):
        raise ConfigurationError(
            f"catalog {name!r} needs spark.sql.extensions={_EXTENSIONS}; {help}"
        )
    setting = spark.conf.get(f"spark.sql.catalog.{name}.warehouse", None)
    check_warehouse(setting, spark.conf.get(f"spark.sql.catalog.{name}.type", None))
    try:
        spark.catalog.databaseExists(catalog)
    except Exception as error:
        # Chain no cause: the text of Java may contain the password of the catalog.
        raise ConfigurationError(
            f"catalog {name!r} cannot be opened: {hide_urls(first_line(error))}; {help}"
        ) from None


def check_warehouse(setting: str | None, kind: str | None) -> None:
    """Raise ConfigurationError if the warehouse of a catalog is in a folder of this machine where
    other users may replace files. A URL, or a name that a REST catalog knows, is no such folder."""
    path = re.sub(r"^file:(//(?=/))?", "", setting or "")
    if path.startswith("/") or (path and kind == "hadoop" and ":" not in path):
        check_folder("warehouse", Path(path) / "metadata")
