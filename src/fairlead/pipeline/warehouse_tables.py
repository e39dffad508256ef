"""Tables of a lake in Iceberg as Spark reads and replaces them: bronze as the exporter appends it,
and the tables of the newest build.

A job sees the snapshots that were there when it began, whatever others commit meanwhile. It writes
to a branch of each table, and publishes all its tables by one commit (`warehouse.builds`).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from fairlead.clock import Clock
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.iceberg_layout import columns_of, during, first_line, placed
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import BRANCH, Build, Builds
from fairlead.pipeline.warehouse.data_files import TableFile
from fairlead.pipeline.warehouse.location import CATALOG, NAMESPACE, flat_name
from fairlead.pipeline.warehouse.table import TableState
from fairlead.pipeline.warehouse.warehouse import Warehouse

SOURCES = (ATTEMPTS, EVENTS)
"""Tables that the exporter writes, and no build."""


class WarehouseTables:
    """Tables of a lake for one job."""

    def __init__(self, spark: SparkSession, warehouse: Warehouse, clock: Clock) -> None:
        """Complete a publication that a crash has interrupted. Raise BrokenLake, StoreUnavailable.

        spark: session with the settings of `Location.spark`.
        """
        self._spark = spark
        self._warehouse = warehouse
        self._clock = clock
        self._builds = Builds(warehouse)
        self.before, self._seen = self._builds.newest()
        """Newest build when the job began."""
        self._builds.finish(self.before)
        self._sources: dict[str, TableState] = {}
        self._branch = f"{BRANCH}{uuid.uuid4().hex[:8]}"
        self._staged: dict[str, int] = {}
        """Snapshots of this job by table."""

    def name_of(self, table: Table) -> str:
        """Return the name of the table in Spark SQL."""
        return f"{CATALOG}.{NAMESPACE}.{flat_name(table)}"

    def source(self, table: Table) -> TableState:
        """Return the state of a table of the exporter, as this job sees it."""
        if table.name not in self._sources:
            self._sources[table.name] = self._warehouse.table(table).state()
        return self._sources[table.name]

    def snapshot(self, table: Table) -> int | None:
        """Return the snapshot that this job reads; None for a table without one."""
        if table in SOURCES:
            return self.source(table).snapshot
        return self._staged.get(table.name, self.before.snapshots.get(table.name))

    def read(self, table: Table, parts: Collection[str] | None = None) -> DataFrame:
        snapshot = self.snapshot(table)
        if snapshot is None:
            return self._spark.createDataFrame([], table.spark())
        rows = self._spark.read.option("versionAsOf", snapshot).table(self.name_of(table))
        return columns_of(table, rows.where(during(table, CATALOG, parts)))

    def replace(self, table: Table, rows: DataFrame, parts: Collection[str] | None = None) -> int:
        """Replace partitions in one commit to the branch. Raise BrokenLake for a row outside the
        partitions, and change nothing."""
        if parts is not None and not parts and rows.isEmpty():
            return 0
        if table.name not in self._staged:
            self._stage(table)
        writer = placed(table, CATALOG, rows, parts).writeTo(
            f"{self.name_of(table)}.branch_{self._branch}"
        )
        try:
            writer.overwrite(during(table, CATALOG, parts))
        except PySparkException as error:
            if error.getCondition() != "USER_RAISED_EXCEPTION":
                raise
            raise BrokenLake(first_line(error)) from error
        self._staged[table.name], added = self._builds.head(table, self._branch)
        return added

    def parts(self, table: Table) -> list[str]:
        return sorted({file.part for file in self.files(table) if file.rows})

    def files(self, table: Table) -> list[TableFile]:
        """Return the files that this job reads."""
        snapshot = self.snapshot(table)
        return [] if snapshot is None else self._warehouse.table(table).files(snapshot=snapshot)

    def changed(self, table: Table) -> set[str] | None:
        """Return the partitions of a bronze table that changed since the newest build; None if the
        snapshot of that build is gone."""
        since = self.before.sources.get(table.name)
        if since is None:
            return {file.part for file in self.files(table)}
        return self._warehouse.table(table).changed(since, self.snapshot(table))

    def publish(self) -> None:
        """Publish the replaced tables in one commit. Raise BrokenLake when another job has
        published meanwhile, and publish nothing."""
        self.publish_as(self.before)

    def publish_as(self, facts: Build) -> None:
        """Publish as `publish` does, with the sources, edition, settings and end of `facts`. Raise
        BrokenLake."""
        build = facts.after({**self.before.snapshots, **self._staged})
        if not self._builds.publish(build, self._seen, self._clock.now()):
            raise BrokenLake(
                f"another job has published tables of lake {self._warehouse.location.shown}; run"
                " the command again"
            )
        self._builds.finish(build)
        self._staged.clear()
        self.before, self._seen = self._builds.newest()

    def land(self, table: Table, parts: Collection[str] | None = None) -> None:
        """Do nothing: the exporter writes into the lake itself."""

    def _stage(self, table: Table) -> None:
        """Create our branch of the table at the newest build."""
        # Writing no rows creates the table and its missing columns.
        self._warehouse.table(table).write(table.arrow().empty_table(), "none")
        before = self.before.snapshots.get(table.name)
        start = "" if before is None else f" AS OF VERSION {before}"
        # Iceberg removes an unpublished branch when snapshots expire after a day.
        self._spark.sql(
            f"ALTER TABLE {self.name_of(table)} CREATE BRANCH {self._branch}{start} RETAIN 1 DAYS"
        )
