"""Erasing a key from the tables of a lake: rewrite the partitions that have it, publish the result,
then forget all older snapshots and remove their files.

Time travel ends with an erasure: each table keeps only its present state. After a crash the next
run continues; until then readers see the newest build, with the key.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from pyiceberg.exceptions import CommitFailedException

from fairlead.pipeline import ledger
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS, QUARANTINE
from fairlead.pipeline.definitions.failures import FAILURES
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.erase.rows import without
from fairlead.pipeline.erase.trace import Trace
from fairlead.pipeline.erase.wanted import Wanted
from fairlead.pipeline.parts import hours_of
from fairlead.pipeline.runs import OnRows
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import Build, Builds
from fairlead.pipeline.warehouse.failures import catalog_errors
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.warehouse import Warehouse

_LAST = (QUARANTINE, EVENTS, ATTEMPTS)
"""Tables erased last, so that a run after a crash still finds the days and errors of the key."""


class Erased(msgspec.Struct, frozen=True):
    """Result for one table."""

    rows: int = 0
    """Number of erased rows of the key."""
    redacted: int = 0
    """Rows of other keys in which a mention of the key was replaced."""
    files: int = 0
    """Number of rewritten partitions."""


def erase_from(
    warehouse: Warehouse,
    wanted: Wanted,
    found: Trace,
    now: Callable[[], int],
    on_rows: OnRows = lambda table, rows: None,
    dry_run: bool = False,
) -> dict[str, Erased]:
    """Erase the key from all tables; return the result of the tables that had it. Its tombstones
    must be in bronze already, so that no exporter adds rows of the key meanwhile. With `dry_run`,
    only count what it would erase.

    A build that runs meanwhile is refused when it publishes, or finds its files gone. Raise
    BrokenLake, StoreUnavailable.
    """
    builds = Builds(warehouse)
    if not dry_run:
        # Refuse builds that have read the key, and note the days that count it.
        hours = set(hours_of(found.dates))
        publish_again(builds, lambda before: _with_again(before.after({}), hours), now())
    done = {}
    for table in (*(table for table in TABLES if table not in _LAST), *_LAST):
        each = _erase_table(warehouse, table, wanted, found, dry_run)
        if each.files:
            done[table.name] = each
            on_rows(table.name, each.rows)
    if not dry_run:
        publish_again(builds, lambda before: _at_present(warehouse, before), now())
        for table in TABLES:
            _expire(warehouse, table, now)
    return done


def publish_again(builds: Builds, change: Callable[[Build], Build], now: int) -> None:
    """Publish the newest build again with a change, so that a build which has begun cannot
    publish."""
    while True:
        before, seen = builds.newest()
        builds.finish(before)
        if not before.id:
            return
        build = change(before)
        if builds.publish(build, seen, now):
            builds.finish(build)
            return


def _with_again(build: Build, hours: set[str]) -> Build:
    """Return a build after which the next one makes these hours again."""
    return msgspec.structs.replace(build, again=sorted({*build.again, *hours}))


def _at_present(warehouse: Warehouse, before: Build) -> Build:
    """Return a build of the present snapshots of the built tables, with the hours that changed
    since the snapshots of bronze that the last build has read, because these go."""
    tables = {table.name: warehouse.table(table) for table in TABLES}
    present = {
        name: snapshot
        for name in before.snapshots
        if name in tables and (snapshot := tables[name].state().snapshot) is not None
    }
    sources, again = dict(before.sources), set[str]()
    for name, since in before.sources.items():
        until = tables[name].state().snapshot
        changed = tables[name].changed(since, until)
        if changed is None or until is None:
            continue  # a full build
        sources[name] = until
        again |= changed
    return _with_again(msgspec.structs.replace(before.after(present), sources=sources), again)


def _erase_table(
    warehouse: Warehouse, table: Table, wanted: Wanted, found: Trace, dry_run: bool
) -> Erased:
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
            if not dry_run:
                if table is ATTEMPTS:
                    ledger.add(warehouse, after.erased, "erase")
                written = here.write(after.kept, "erase", seen)
                # Another process may have added rows meanwhile: then read the partition again.
                if not here.replace([part], written, seen):
                    here.take_away(written)
                    continue
            done = Erased(
                done.rows + after.erased.num_rows, done.redacted + after.redacted, done.files + 1
            )
            break
    if done.files and not dry_run:
        # The list of a snapshot names the files that it removed, with the bounds of their columns.
        here.update(lambda seen: {})
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
            with catalog_errors(warehouse.location), stored.manage_snapshots() as manage:
                for name in others:
                    manage.remove_branch(name)
        except CommitFailedException:
            continue  # another writer was first
    # Everything that is there now is older than an instant in the future.
    here.expire(now() + DAY_US)
    here.sweep(now() + DAY_US)
