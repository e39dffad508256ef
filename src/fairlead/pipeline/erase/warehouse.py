"""Erasing a key from a lake in Iceberg: rewrite the partitions that have it, publish the rewritten
tables, then forget all older snapshots and remove their files.

Time travel ends with an erasure: each table keeps only its present state. After a crash the next
run continues; until then readers see the newest build, with the key.
"""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.exceptions import CommitFailedException

from fairlead.pipeline.bronze import ATTEMPTS, EVENTS, QUARANTINE
from fairlead.pipeline.definitions.failures import FAILURES
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.erase.files import Erased
from fairlead.pipeline.erase.rows import is_of, without
from fairlead.pipeline.erase.trace import READ, Trace
from fairlead.pipeline.erase.wanted import Wanted
from fairlead.pipeline.runs import OnRows
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import Builds
from fairlead.pipeline.warehouse.warehouse import Warehouse

_LAST = (QUARANTINE, EVENTS, ATTEMPTS)
"""Tables erased last, so that a run after a crash still finds the days and errors of the key."""

_DAY_US = 86_400 * 1_000_000


def trace(warehouse: Warehouse, wanted: Wanted) -> Trace:
    """Return the trace of a key's attempts in bronze. Load one partition at a time."""
    found, table = Trace(), warehouse.table(ATTEMPTS)
    for part in sorted({file.part for file in table.files()}):
        rows = table.load([part], list(READ))
        found.add(rows.filter(is_of(ATTEMPTS, rows, wanted)))
    return found


def erase_from(
    warehouse: Warehouse,
    wanted: Wanted,
    now: Callable[[], int],
    on_rows: OnRows = lambda table, rows: None,
) -> dict[str, Erased]:
    """Erase the key from all tables; return the result of the tables that had it. Its tombstones
    must be in bronze already, so that no exporter adds rows of the key meanwhile.

    A build that runs meanwhile is refused when it publishes, or finds its files gone. Raise
    BrokenLake, StoreUnavailable.
    """
    builds = Builds(warehouse)
    _publish(builds, {}, now())  # refuses builds that have read the key
    found = trace(warehouse, wanted)
    done = {}
    for table in (*(table for table in TABLES if table not in _LAST), *_LAST):
        each = _erase_table(warehouse, table, wanted, found)
        if each.files:
            done[table.name] = each
            on_rows(table.name, each.rows)
    before, _ = builds.newest()
    present = {
        table.name: snapshot
        for table in TABLES
        if table.name in before.snapshots
        and (snapshot := warehouse.table(table).state().snapshot) is not None
    }
    _publish(builds, present, now())
    for table in TABLES:
        _expire(warehouse, table, now)
    return done


def _publish(builds: Builds, snapshots: dict[str, int], now: int) -> None:
    """Publish these snapshots as a build; start again if a build was first."""
    while True:
        before, seen = builds.newest()
        builds.finish(before)
        if not before.id:
            return
        build = before.after(snapshots)
        if builds.publish(build, seen, now):
            builds.finish(build)
            return


def _erase_table(warehouse: Warehouse, table: Table, wanted: Wanted, found: Trace) -> Erased:
    """Erase the key from each partition of a table. Load one partition at a time."""
    here, done = warehouse.table(table), Erased()
    for part in sorted({file.part for file in here.files()}):
        while True:
            seen = here.state()
            rows = here.load([part], snapshot=seen.snapshot)
            to_clear = found.may_quote(rows) if table.name == FAILURES.name else None
            after = without(table, rows, wanted, to_clear)
            if not after.erased.num_rows and not after.redacted:
                break
            written = here.write(after.kept, "erase", seen)
            # Another process may have added rows meanwhile: then read the partition again.
            if here.replace([part], written, seen):
                done = Erased(
                    done.rows + after.erased.num_rows,
                    done.redacted + after.redacted,
                    done.files + 1,
                )
                break
            here.take_away(written)
    return done


def _expire(warehouse: Warehouse, table: Table, now: Callable[[], int]) -> None:
    """Remove the branches of unpublished builds, all snapshots but the present one, and all files
    that it does not list."""
    here = warehouse.table(table)
    while (stored := here.state().stored) is not None:
        present = stored.current_snapshot()
        kept = None if present is None else present.snapshot_id
        others = [name for name, ref in stored.metadata.refs.items() if ref.snapshot_id != kept]
        if not others:
            break
        try:
            with stored.manage_snapshots() as manage:
                for name in others:
                    manage.remove_branch(name)
        except CommitFailedException:
            continue  # another writer was first
    # Everything that is there now is older than an instant in the future.
    here.expire(now() + _DAY_US)
    here.sweep(now() + _DAY_US)
