"""`erase`: deletes every row of a key from all tables and files of the lake, and keeps the key out
of later exports. The job can be run again after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fairlead.clock import Clock
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.erase.tables import Erased, erase_from, trace
from fairlead.pipeline.erase.verify import Verified, verify
from fairlead.pipeline.erase.wanted import Wanted, shows
from fairlead.pipeline.hashing import hashing_of
from fairlead.pipeline.runs import NOTHING_TO_DO, RUNS, OnRows, recorded
from fairlead.pipeline.tombstones import bury, readmit, tombstone
from fairlead.pipeline.warehouse.warehouse import Warehouse


class Erasure(msgspec.Struct, frozen=True):
    """Result of an erasure."""

    tables: dict[str, Erased]
    """Erased rows and files, by table; only tables that had the key."""
    pages: list[str]
    """Deleted reports that showed the key."""
    days: list[str]
    """Days whose sums include the erased rows until the next build."""
    verified: Verified
    dry_run: bool

    @property
    def is_clean(self) -> bool:
        """Whether every file was read and none has the key."""
        return self.verified.is_clean


def wanted_in(lake: Warehouse, key: str) -> Wanted:
    """Return the key with all names it has in this lake. Raise ConfigurationError for an empty key
    and one that is no text, or if the secret of the lake's hashed keys is missing."""
    if key != key.encode(errors="ignore").decode():
        raise ConfigurationError(f"the key {key!r} is no text of Unicode, so no task has it")
    if not key:
        raise ConfigurationError(
            "the empty key belongs to all tasks without a key; name the key to erase"
        )
    hashing = hashing_of(lake)
    return Wanted(frozenset({key} if hashing is None else {key, hashing.name_of(key)}))


def erase(
    lake: Warehouse,
    key: str,
    clock: Clock,
    pages: Sequence[Path] = (),
    dry_run: bool = False,
    on_rows: OnRows = lambda table, rows: None,
) -> Erasure:
    """Erase the key from the lake and from pages; see docs/how-to/pipeline-operate.md. A build that
    runs meanwhile cannot publish. Raise BrokenLake, ConfigurationError, StoreUnavailable.

    pages: pages to search in addition to those that `report` wrote.
    """
    wanted = wanted_in(lake, key)
    tombstones = [tombstone(lake, name) for name in sorted(wanted.names)]
    params = {"key": tombstones[0], "dry_run": dry_run}
    with recorded(lake, clock, "erase", params, keep_idle=False) as run:
        if not dry_run:
            for table in (ATTEMPTS, EVENTS):
                bury(lake.table(table), tombstones)
        found = trace(lake, wanted)
        known, unread = _shown(lake, pages, wanted)
        done = erase_from(lake, wanted, found, clock.now, on_rows, dry_run)
        if not dry_run:
            for page in known:
                page.unlink(missing_ok=True)
        verified = verify(lake, wanted)
        verified = replace(verified, unreadable=[*verified.unreadable, *unread])
        run.tables = {name: each.rows for name, each in done.items()}
        run.rows_out = sum(run.tables.values())
        if dry_run:
            run.state = NOTHING_TO_DO
    return Erasure(done, sorted(map(str, known)), sorted(found.dates), verified, dry_run)


def readmit_key(lake: Warehouse, key: str) -> bool:
    """Accept rows of the key from the next export on; return False if the key was not erased. Raise
    ConfigurationError."""
    tombstones = [tombstone(lake, name) for name in wanted_in(lake, key).names]
    readmitted = [readmit(lake.table(table), tombstones) for table in (ATTEMPTS, EVENTS)]
    return any(readmitted)


def _shown(lake: Warehouse, pages: Sequence[Path], wanted: Wanted) -> tuple[list[Path], list[str]]:
    """Return the pages that show the key, among these and those that `report` wrote, and the pages
    that cannot be read."""
    runs = lake.table(RUNS).load(columns=["job", "params"]).to_pylist()
    params = [msgspec.json.decode(run["params"]) for run in runs if run["job"] == "report"]
    known, unread = [], []
    for page in [*sorted({Path(each["out"]) for each in params if each.get("out")}), *pages]:
        try:
            if shows(page, wanted):
                known.append(page)
        except FileNotFoundError:
            continue  # deleted, or moved: then the caller names it
        except OSError:
            unread.append(str(page))
    return known, unread
