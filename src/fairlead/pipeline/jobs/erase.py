"""`erase`: deletes every row of a key from all tables and files of the lake, and keeps the key out
of later exports. The job can be run again after a crash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from fairlead.clock import Clock
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS, QUARANTINE
from fairlead.pipeline.build_plan import build_again
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.erase.files import Erased, erase_from, purge
from fairlead.pipeline.erase.pages import shows
from fairlead.pipeline.erase.trace import trace
from fairlead.pipeline.erase.verify import Verified, verify
from fairlead.pipeline.erase.wanted import Wanted
from fairlead.pipeline.hashing import hashing_of
from fairlead.pipeline.lake.alone import alone
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.tombstones import bury, readmit, tombstone
from fairlead.pipeline.runs import NOTHING_TO_DO, RUNS, OnRows, recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fairlead.pipeline.erase.catalog import CatalogErasure

_LAST = (QUARANTINE, EVENTS, ATTEMPTS)
"""Tables erased last, so that a run after a crash still finds them complete: the other tables are
built from them, and they show which days are affected."""


class ErasureOptions(msgspec.Struct, frozen=True):
    """Options of an erasure."""

    pages: Sequence[Path] = ()
    """Pages to search in addition to those that `report` wrote."""
    grace_us: int = 0
    """Microseconds for which replaced files stay for their readers."""
    dry_run: bool = False


class Erasure(msgspec.Struct, frozen=True):
    """Result of an erasure."""

    tables: dict[str, Erased]
    """Erased rows and files, by table; only tables that had the key."""
    removed: int
    """Number of deleted files that no table lists."""
    pages: list[str]
    """Deleted reports that showed the key."""
    days: list[str]
    """Days whose sums include the erased rows until the next build."""
    verified: Verified
    dry_run: bool
    catalog: dict[str, int] = {}
    """Deleted rows, by table of the Iceberg catalog."""
    catalog_held: dict[str, int] = {}
    """Rows of the key that are still in a file, by table of the catalog; empty unless the erasure
    failed."""

    @property
    def rows(self) -> int:
        """Return the number of erased rows of the lake."""
        return sum(done.rows for done in self.tables.values())

    @property
    def is_clean(self) -> bool:
        """Whether every file was read and none has the key."""
        return self.verified.is_clean and not self.catalog_held


def wanted_in(lake: Lake, key: str) -> Wanted:
    """Return the key with all names it has in this lake. Raise ConfigurationError for an empty key,
    or if the secret of the lake's hashed keys is missing."""
    if not key:
        raise ConfigurationError(
            "the empty key belongs to all tasks without a key; name the key to erase"
        )
    hashing = hashing_of(lake)
    return Wanted(frozenset({key} if hashing is None else {key, hashing.name_of(key)}))


def erase(
    lake: Lake,
    key: str,
    clock: Clock,
    options: ErasureOptions = ErasureOptions(),  # noqa: B008 - frozen
    on_rows: OnRows = lambda table, rows: None,
    catalog: tuple[SparkSession, str] | None = None,
) -> Erasure:
    """Erase the key from the lake, from pages, and, if `catalog` gives its Spark session and name,
    from an Iceberg catalog; see docs/how-to/pipeline-operate.md.

    After a run with a grace period, run the job again when the period is over. Raise NotAllowed
    while a build is running, BrokenLake, ConfigurationError.
    """
    wanted = wanted_in(lake, key)
    tombstones = [tombstone(lake, name) for name in sorted(wanted.names)]
    params = {"key": tombstones[0], "dry_run": options.dry_run, "grace_us": options.grace_us}
    with alone(lake), recorded(lake, clock, "erase", params, keep_idle=False) as run:
        in_catalog = None
        if catalog is not None and not options.dry_run:
            from fairlead.pipeline.erase.catalog import CatalogErasure
            from fairlead.pipeline.iceberg import IcebergTables

            spark, name = catalog
            run.spark_version = spark.version
            in_catalog = CatalogErasure(spark, IcebergTables(spark, name, lake, clock), wanted)
        done = _erase(lake, wanted, tombstones, clock, options, on_rows, in_catalog)
        run.tables = {name: each.rows for name, each in done.tables.items()}
        run.rows_out = done.rows
        if options.dry_run:
            run.state = NOTHING_TO_DO
    return done


def readmit_key(lake: Lake, key: str, clock: Clock) -> bool:
    """Accept rows of the key from the next export on; return False if the key was not erased. Raise
    ConfigurationError."""
    tombstones = [tombstone(lake, name) for name in wanted_in(lake, key).names]
    readmitted = [
        readmit(lake.table(table), tombstones, clock.now()) for table in (ATTEMPTS, EVENTS)
    ]
    return any(readmitted)


def _erase(
    lake: Lake,
    wanted: Wanted,
    tombstones: Sequence[str],
    clock: Clock,
    options: ErasureOptions,
    on_rows: OnRows,
    catalog: CatalogErasure | None,
) -> Erasure:
    pages, grace_us, dry_run = options.pages, options.grace_us, options.dry_run
    if not dry_run:
        for table in (ATTEMPTS, EVENTS):
            bury(lake.table(table), tombstones, clock.now())
    found = trace(lake.table(ATTEMPTS), wanted)
    if not dry_run:
        build_again(lake.root, (f"{date}/00" for date in found.dates))
    # Erase the catalog before bronze of the lake: this bronze shows the affected days and errors,
    # and the catalog's bronze is a copy of it.
    in_catalog = {} if catalog is None else catalog.erase(found, on_rows)
    known, unread = [], []
    for page in (*_pages_of(lake), *pages):
        try:
            if shows(page, wanted):
                known.append(page)
        except FileNotFoundError:
            continue  # deleted, or moved: then `pages` names it
        except OSError:
            unread.append(str(page))
    done: dict[str, Erased] = {}
    for table in (*(table for table in TABLES if table not in _LAST), *_LAST):
        each = erase_from(lake.table(table), wanted, found, clock.now, dry_run)
        if each.files:
            done[table.name] = each
            on_rows(table.name, each.rows)
    removed = 0
    if not dry_run:
        for table in TABLES:
            removed += purge(
                lake.table(table), wanted, clock.now() - grace_us if grace_us else None
            )
        for page in known:
            page.unlink(missing_ok=True)
    waiting = [] if dry_run or not grace_us else list(_waiting(lake))
    verified = verify(lake.root, wanted, except_for=waiting)
    verified = replace(verified, unreadable=[*verified.unreadable, *unread])
    held = {} if catalog is None else catalog.held()
    deleted_pages, days = sorted(map(str, known)), sorted(found.dates)
    return Erasure(done, removed, deleted_pages, days, verified, dry_run, in_catalog, held)


def _waiting(lake: Lake) -> Iterable[str]:
    """Yield the replaced files that stay for their readers."""
    for table in TABLES:
        yield from (f"{table.name}/{file}" for file in lake.table(table).manifests.newest().dropped)


def _pages_of(lake: Lake) -> list[Path]:
    """Return the pages that `report` wrote."""
    runs = lake.table(RUNS)
    reports = runs.load(runs.manifests.newest(), columns=["job", "params"]).to_pylist()
    outs = {
        msgspec.json.decode(run["params"]).get("out") for run in reports if run["job"] == "report"
    }
    return sorted(Path(out) for out in outs if out)
