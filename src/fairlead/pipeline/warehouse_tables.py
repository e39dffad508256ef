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
from fairlead.pipeline.errors import BrokenLake, java_cause
from fairlead.pipeline.models import ATTEMPTS, EVENTS
from fairlead.pipeline.schema import Table
from fairlead.pipeline.spark_rows import during, placed, typed
from fairlead.pipeline.warehouse.builds import Build, Builds
from fairlead.pipeline.warehouse.data_files import TableFile
from fairlead.pipeline.warehouse.location import CATALOG, NAMESPACE, flat_name
from fairlead.pipeline.warehouse.table import KEPT_FROM, TableState, branch_name
from fairlead.pipeline.warehouse.warehouse import Warehouse

_SIDE_BY_SIDE = 64
"""Most partitions whose files are open at the same time; each open file holds a page of each of its
columns in memory."""


class WarehouseTables:
    """Tables of a lake for one job."""

    def __init__(
        self, spark: SparkSession, warehouse: Warehouse, clock: Clock, full: bool = False
    ) -> None:
        """Complete a publication that a crash has interrupted. Raise BrokenLake, StoreUnavailable.

        spark: session with the settings of `Location.spark`. full: whether the job makes all tables
        again, also lost ones.
        """
        self.warehouse = warehouse
        self._spark = spark
        self._clock = clock
        self._builds = Builds(warehouse)
        self.before, self._seen = self._builds.newest()
        """Newest build when the job began."""
        if full:
            self.before = self._builds.without_lost(self.before)
        self._builds.finish(self.before)
        self._branch = branch_name(clock.now())
        self._sources: dict[str, TableState] = {}
        self._staged: dict[str, int] = {}
        """Snapshots of this job by table."""

    def source(self, table: Table) -> TableState:
        """Return the state of a table that no build has made, as this job sees it."""
        if table.name not in self._sources:
            self._sources[table.name] = self.warehouse.table(table).state()
        return self._sources[table.name]

    @property
    def kept_from(self) -> str:
        """First day whose rows bronze keeps, as 2026-11-21; empty if it keeps those of all days."""
        return max(self.source(table).properties.get(KEPT_FROM, "") for table in (ATTEMPTS, EVENTS))

    def snapshot(self, table: Table) -> int | None:
        """Return the snapshot that this job reads; None for a table without one."""
        found = self._staged.get(table.name, self.before.snapshots.get(table.name))
        return self.source(table).snapshot if found is None else found

    def files(
        self, table: Table, parts: Collection[str] | None = None, since: str = ""
    ) -> list[TableFile]:
        """Return the files of these partitions, all by default, from the partition `since` on, that
        this job reads."""
        snapshot = self.snapshot(table)
        if snapshot is None:
            return []
        return self.warehouse.table(table).files(parts, snapshot, since=since)

    def changed(self, table: Table) -> set[str] | None:
        """Return the partitions of a bronze table that changed since the newest build; None if the
        snapshot of that build is gone."""
        since = self.before.sources.get(table.name)
        if since is None:
            return {file.part for file in self.files(table)}
        if since == self.snapshot(table):
            return set()
        return self.warehouse.table(table).changed(since, self.snapshot(table))

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
        return typed(table, rows.where(during(table, parts)))

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
        is_small: bool = False,
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
        if is_small:
            rows = rows.coalesce(1)
        writer = rows.writeTo(f"{self.name_of(table)}.branch_{self._branch}")
        if is_small:
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
            raise BrokenLake(java_cause(error)) from error
        return self._staged_rows(table)

    def hold(self) -> None:
        """Keep the snapshots of bronze that this job reads, by a tag, while exporters expire old
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
