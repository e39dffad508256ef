"""`gc`: what nobody needs any more. Nothing that a reader may still want, and no row of bronze,
silver or gold."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from fairlead.clock import Clock, to_datetime
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.gold.capacity import CAPACITY
from fairlead.pipeline.gold.incidents import INCIDENTS
from fairlead.pipeline.lake.alone import alone
from fairlead.pipeline.lake.garbage import Garbage, garbage, remove
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.leases import live
from fairlead.pipeline.lake.table import GRACE
from fairlead.pipeline.runs import NOTHING_TO_DO, RUNS, OnRows, recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BY_AGE = (RUNS, CAPACITY, INCIDENTS)
"""Tables of which nothing else is made, and against which nothing is checked."""

ORPHANS_AFTER = timedelta(days=3)
"""Files of a catalog that belong to no snapshot: a job may have been writing them for long."""


class Collected(msgspec.Struct, frozen=True):
    """What went, or would go."""

    files: list[Garbage]
    parts: dict[str, list[str]]
    """By table, days that are older than what was asked to be kept."""
    leases: list[str]
    """Who keeps replaced files from going."""
    applied: bool
    catalog: dict[str, int] = {}
    """By table of the catalog, files removed."""

    @property
    def bytes(self) -> int:
        """Of the files."""
        return sum(each.bytes for each in self.files)


def gc(
    lake: Lake,
    clock: Clock,
    keep: timedelta | None = None,
    apply: bool = False,
    catalog: tuple[SparkSession, str] | None = None,
    on_rows: OnRows = lambda table, rows: None,
) -> Collected:
    """Find, and with `apply` remove: files that were replaced more than a day ago, files of jobs
    that died more than a day ago, rows of BY_AGE older than `keep`; in a catalog, snapshots older
    than a day and files of nobody older than three.

    Raises NotAllowed while a build is under way, BrokenLake, ConfigurationError for a catalog that
    cannot be used.
    """
    params = {"keep_days": keep and keep.days, "apply": apply}
    with alone(lake), recorded(lake, clock, "gc", params, keep_idle=False) as run:
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
    """Days before `oldest` of the tables that go by age; they stop counting at once, and their
    files go a day later."""
    found = {}
    for table in BY_AGE:
        here = lake.table(table)
        before = here.manifests.newest().parts
        doomed = [name for name in before if name < oldest]
        if doomed:
            found[table.name] = doomed
        if doomed and apply_at is not None:
            here.replace(dict.fromkeys(doomed), {name: before[name] for name in doomed}, apply_at)
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
