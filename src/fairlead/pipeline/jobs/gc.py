"""`gc`: deletes unused files, and old rows of tables that nothing depends on. Files in use by
readers, and rows of bronze, silver and the other gold tables, stay."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from fairlead.clock import Clock, to_datetime
from fairlead.pipeline.definitions.capacity import CAPACITY
from fairlead.pipeline.definitions.incidents import INCIDENTS
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.lake.alone import alone
from fairlead.pipeline.lake.garbage import Garbage, garbage, remove
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.leases import live
from fairlead.pipeline.lake.table import GRACE
from fairlead.pipeline.runs import NOTHING_TO_DO, RUNS, OnRows, recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BY_AGE = (RUNS, CAPACITY, INCIDENTS)
"""Tables whose old rows may be deleted, because no other table or check depends on them."""

ORPHANS_AFTER = timedelta(days=3)
"""Age at which files of a catalog are deleted if no snapshot lists them. Younger files may belong
to a running job."""


class Collected(msgspec.Struct, frozen=True):
    """Deleted files and partitions, or those that would be deleted."""

    files: list[Garbage]
    parts: dict[str, list[str]]
    """Days older than the requested age, by table."""
    leases: list[str]
    """Owners of leases that keep replaced files."""
    applied: bool
    catalog: dict[str, int] = {}
    """Deleted files, by table of the catalog."""

    @property
    def bytes(self) -> int:
        """Return the size of the files in bytes."""
        return sum(each.bytes for each in self.files)


def gc(
    lake: Lake,
    clock: Clock,
    keep: timedelta | None = None,
    apply: bool = False,
    catalog: tuple[SparkSession, str] | None = None,
    on_rows: OnRows = lambda table, rows: None,
    wait: bool = False,
) -> Collected:
    """Find unused files and rows; with `apply`, delete them.

    In the lake, these are files replaced more than a day ago, files of jobs that died more than a
    day ago, and rows of BY_AGE older than `keep`. In a catalog, they are snapshots older than a
    day, and files older than ORPHANS_AFTER that no snapshot lists.

    wait: wait for the end of a running build.

    Raise NotAllowed while a build is running, BrokenLake, ConfigurationError for a catalog that
    cannot be used.
    """
    params = {"keep_days": keep and keep.days, "apply": apply}
    with alone(lake, wait), recorded(lake, clock, "gc", params, keep_idle=False) as run:
        leases, now = live(lake.root), clock.now()
        files, parts = [], {}
        for table in TABLES:
            here = lake.table(table)
            found = list(garbage(here, now, bool(leases)))
            files += found
            if apply:
                remove(here, found)
            on_rows(table.name, len(found))
        if keep is not None:
            oldest = f"{to_datetime(now) - keep:%Y-%m-%d}"
            parts = _aged(lake, oldest, now if apply else None)
        in_catalog = _in_catalog(*catalog, lake, clock) if catalog is not None and apply else {}
        run.rows_out = len(files)
        if not apply:
            run.state = NOTHING_TO_DO
    return Collected(files, parts, [each.who for each in leases], apply, in_catalog)


def _aged(lake: Lake, oldest: str, apply_at: int | None) -> dict[str, list[str]]:
    """Return the days before `oldest`, by table of BY_AGE.

    With `apply_at` (microseconds since the epoch), remove these days from the tables; their files
    are deleted a day later.
    """
    found = {}
    for table in BY_AGE:
        here = lake.table(table)
        before = here.manifests.newest().parts
        old_days = [name for name in before if name < oldest]
        if old_days:
            found[table.name] = old_days
        if old_days and apply_at is not None:
            here.replace(
                dict.fromkeys(old_days), {name: before[name] for name in old_days}, apply_at
            )
    return found


def _in_catalog(spark: SparkSession, catalog: str, lake: Lake, clock: Clock) -> dict[str, int]:
    from fairlead.pipeline.iceberg import IcebergTables

    tables = IcebergTables(spark, catalog, lake, clock)
    removed = {}
    for table in TABLES:
        name = tables.name_of(table)
        if not spark.catalog.tableExists(name):
            continue
        system, _, rest = name.partition(".")
        given = {"name": rest, "older": to_datetime(clock.now() - GRACE).replace(tzinfo=None)}
        [expired] = spark.sql(
            f"CALL {system}.system.expire_snapshots(table => :name, older_than => :older,"
            " retain_last => 1)",
            args=given,
        ).collect()
        given["older"] = (to_datetime(clock.now()) - ORPHANS_AFTER).replace(tzinfo=None)
        orphans = spark.sql(
            f"CALL {system}.system.remove_orphan_files(table => :name, older_than => :older)",
            args=given,
        ).count()
        removed[table.name] = expired["deleted_data_files_count"] + orphans
    return removed
