"""Tables of a lake in Iceberg as Spark reads and replaces them: bronze as the exporter appends it,
and the tables of the newest build.

A job sees the snapshots that were there when it began, whatever others commit meanwhile. It writes
to a branch of each table, and publishes all its tables by one commit (`warehouse.builds`).
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from fairlead.clock import Clock
from fairlead.pipeline.build_plan import Snapshots
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.models import ATTEMPTS, EVENTS
from fairlead.pipeline.schema import Table
from fairlead.pipeline.spark_rows import columns_of, during, first_line, placed
from fairlead.pipeline.warehouse.builds import Build
from fairlead.pipeline.warehouse.location import CATALOG, NAMESPACE, flat_name
from fairlead.pipeline.warehouse.table import branch_name
from fairlead.pipeline.warehouse.warehouse import Warehouse

_SIDE_BY_SIDE = 64
"""Most partitions whose files are open at the same time; each open file holds a page of each of its
columns in memory."""


class WarehouseTables(Snapshots):
    """Tables of a lake for one job."""

    def __init__(
        self, spark: SparkSession, warehouse: Warehouse, clock: Clock, full: bool = False
    ) -> None:
        """Complete a publication that a crash has interrupted. Raise BrokenLake, StoreUnavailable.

        spark: session with the settings of `Location.spark`. full: whether the job makes all tables
        again, also lost ones.
        """
        super().__init__(warehouse)
        if full:
            self.before = self._builds.without_lost(self.before)
        self._spark = spark
        self._clock = clock
        self._builds.finish(self.before)
        self._branch = branch_name(clock.now())

    def name_of(self, table: Table) -> str:
        """Return the name of the table in Spark SQL."""
        return f"{CATALOG}.{NAMESPACE}.{flat_name(table)}"

    def read(self, table: Table, parts: Collection[str] | None = None) -> DataFrame:
        """Return the rows of these partitions, all by default, with the table's columns; no rows if
        the table does not exist."""
        snapshot = self.snapshot(table)
        if snapshot is None:
            return self._spark.createDataFrame(table.arrow().empty_table(), table.spark())
        rows = self._spark.read.option("versionAsOf", snapshot).table(self.name_of(table))
        return columns_of(table, rows.where(during(table, parts)))

    def clear(self, table: Table, parts: Collection[str] | None = None) -> None:
        """Remove the rows of partitions, of all by default; without a commit if there are none."""
        files = self.files(table, parts)
        if self.snapshot(table) is not None and not files:
            return
        self._stage(table)
        if files:
            self._builds.clear(table, parts, self._branch)
        self._staged_rows(table)

    def replace(
        self,
        table: Table,
        rows: DataFrame,
        parts: Collection[str] | None = None,
        few: bool = False,
    ) -> int:
        """Replace partitions in one commit to the branch, and return the number of rows. Raise
        BrokenLake for a row outside the partitions, and change nothing. One task of Spark writes
        few rows.

        Several threads may replace different tables at the same time.
        """
        if parts is not None and not parts and rows.isEmpty():
            return 0
        self._stage(table)
        rows = placed(table, rows, parts)
        if few:
            rows = rows.coalesce(1)
        writer = rows.writeTo(f"{self.name_of(table)}.branch_{self._branch}")
        if few:
            # Iceberg need not shuffle the rows of one task, which writes a few partitions side by
            # side, without a sort.
            side_by_side = parts is not None and len(parts) <= _SIDE_BY_SIDE
            writer = writer.option("distribution-mode", "none")
            writer = writer.option("fanout-enabled", str(side_by_side).lower())
        try:
            writer.overwrite(during(table, parts))
        except PySparkException as error:
            if error.getCondition() != "USER_RAISED_EXCEPTION":
                raise
            raise BrokenLake(first_line(error)) from error
        return self._staged_rows(table)

    def hold(self) -> None:
        """Keep the snapshots of bronze that this job reads, by a tag, while exporters forget old
        ones. Publishing removes the tag, and `maintain` that of a dead job."""
        for table in (ATTEMPTS, EVENTS):
            snapshot = self.snapshot(table)
            if snapshot is not None:
                self._builds.hold(table, snapshot, self._branch)

    def publish(self, facts: Build | None = None) -> None:
        """Publish the replaced tables in one commit, with the sources, settings and end of
        `facts`, by default those of the newest build. Raise BrokenLake when another job has
        published meanwhile, and publish nothing."""
        made = {**self.before.snapshots, **self._staged}
        build = (facts or self.before).after(made, self._branch)
        while not self._builds.publish(build, self._seen, self._clock.now()):
            newest, self._seen = self._builds.newest()
            # Housekeeping changes the table of builds too.
            if newest.id != self.before.id:
                raise BrokenLake(
                    f"another job has published tables of lake {self.warehouse.location.shown};"
                    " run the command again"
                )
        self._builds.finish(build)
        self._staged.clear()
        self.before, self._seen = self._builds.newest()

    def _staged_rows(self, table: Table) -> int:
        """Note the snapshot of our branch, and return the number of rows that it added."""
        before = self.before.snapshots.get(table.name)
        self._staged[table.name], added = self._builds.head(table, self._branch, before)
        return added

    def _stage(self, table: Table) -> None:
        """Create our branch of the table at the newest build, unless there is one."""
        if table.name in self._staged:
            return
        # Writing no rows creates the table and its missing columns.
        self.warehouse.table(table).write(table.arrow().empty_table(), "none")
        before = self.before.snapshots.get(table.name)
        if before is not None:
            self._builds.branch(table, before, self._branch)
            return
        # PyIceberg writes the first snapshot of a table to `main` only.
        self._spark.sql(
            f"ALTER TABLE {self.name_of(table)} CREATE BRANCH {self._branch} RETAIN 1 DAYS"
        )
