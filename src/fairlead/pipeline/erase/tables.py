"""Erasing a key from the tables of a lake: find its traces in rows of other keys, rewrite the
partitions that have it, publish the result, then forget all older snapshots and remove their files.

Time travel ends with an erasure: each table keeps only its present state. After a crash the next
run continues; until then readers see the newest build, with the key.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from pyiceberg.exceptions import CommitFailedException

from fairlead.clock import to_datetime, to_micros
from fairlead.pipeline import ledger
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS, QUARANTINE
from fairlead.pipeline.definitions.cost import COST
from fairlead.pipeline.definitions.failures import FAILURES
from fairlead.pipeline.definitions.incidents import INCIDENTS
from fairlead.pipeline.definitions.latency import LATENCY, LATENCY_HIST
from fairlead.pipeline.definitions.windows import ALL
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.erase.wanted import ERASED, KEY_COLUMNS, TEXT_COLUMNS, Wanted
from fairlead.pipeline.parts import HOUR_US, hours_of
from fairlead.pipeline.runs import OnRows
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import Build, Builds
from fairlead.pipeline.warehouse.failures import catalog_errors
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.warehouse import Warehouse

TOGETHER = (LATENCY_HIST.name, LATENCY.name, COST.name, INCIDENTS.name)
"""Tables in which '*' means all keys."""

_LAST = (QUARANTINE, EVENTS, ATTEMPTS)
"""Tables erased last, so that a run after a crash still finds the days and errors of the key."""


_FAILED = ("queue", "name", "outcome", "error_fp", "finished_at")
"""Columns of an attempt that name its row in gold.failures."""

Error = tuple[int, str, str, int]
"""Hour (microseconds), queue, name and fingerprint: the key of gold.failures."""


@dataclass(frozen=True)
class Trace:
    """Traces of a key in rows of other keys."""

    dates: set[str] = field(default_factory=set)
    """Days whose sums count attempts of the key."""
    errors: set[Error] = field(default_factory=set)
    """Errors whose example text may come from an attempt of the key."""

    def may_quote(self, failures: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the rows of gold.failures that may have a text of these errors."""
        keys = failures.select(["hour", "queue", "name", "error_fp"]).to_pylist()
        found = [
            (to_micros(key["hour"]), key["queue"], key["name"], key["error_fp"]) in self.errors
            for key in keys
        ]
        return pa.chunked_array([found], pa.bool_())


def trace(warehouse: Warehouse, wanted: Wanted) -> Trace:
    """Return the trace of a key's attempts in bronze. Load one partition at a time."""
    found, table = Trace(), warehouse.table(ATTEMPTS)
    for part in sorted({file.part for file in table.files()}):
        rows = table.load([part], ["fairness_key", "ready_at", "started_at", *_FAILED])
        rows = rows.filter(is_of(ATTEMPTS, rows, wanted))
        ends, *begins = (
            rows[name].cast(pa.int64()) for name in ("finished_at", "ready_at", "started_at")
        )
        first = pc.min_element_wise(ends, *begins)
        days = pa.table({"first": pc.divide(first, DAY_US), "last": pc.divide(ends, DAY_US)})
        for span in days.group_by(["first", "last"]).aggregate([]).to_pylist():
            days_us = range(span["first"] * DAY_US, span["last"] * DAY_US + 1, DAY_US)
            found.dates.update(to_datetime(day).date().isoformat() for day in days_us)
        failed = rows.filter(pc.not_equal(rows["outcome"], "done")).select(_FAILED)
        for row in failed.to_pylist():
            end, fingerprint = to_micros(row["finished_at"]), row["error_fp"]
            if fingerprint is None:
                fingerprint = zlib.crc32(row["outcome"].encode())  # as in gold.failures
            found.errors.add((end - end % HOUR_US, row["queue"], row["name"], fingerprint))
    return found


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
        hours = hours_of(found.dates)
        publish_again(builds, lambda before: _next(before, {}, again=hours), now())
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


def _next(before: Build, snapshots: dict[str, int], again: Iterable[str]) -> Build:
    """Return the build after `before`, after which the next one makes these hours again too."""
    return replace(before.after(snapshots), again=sorted({*before.again, *again}))


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
    return replace(_next(before, present, again), sources=sources)


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
            kept, erased, redacted = _without(table, rows, wanted, to_clear)
            if not erased.num_rows and not redacted:
                break
            if not dry_run:
                if table is ATTEMPTS:
                    ledger.add(warehouse, erased, "erase")
                written = here.write(kept, "erase", seen)
                # Another process may have added rows meanwhile: then read the partition again.
                if not here.replace([part], written, seen):
                    here.take_away(written)
                    continue
            done = Erased(done.rows + erased.num_rows, done.redacted + redacted, done.files + 1)
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


def is_of(table: Table, rows: pa.Table, wanted: Wanted) -> pa.ChunkedArray:
    """Return a mask of the rows of the key; `rows` may have only some of the table's columns."""
    if table.name == QUARANTINE.name:
        # Parse only rows that contain the key.
        mask = [
            any(form in raw for form in wanted.forms) and wanted.is_in_json(raw)
            for raw in rows["raw"].to_pylist()
        ]
        return pa.chunked_array([mask], pa.bool_())
    owner = _owner_of(table)
    if owner is None:
        return _false(rows.num_rows)
    names = {name for name in wanted.names if name != ALL or table.name not in TOGETHER}
    return is_one(rows[owner], names)


def _without(
    table: Table, rows: pa.Table, wanted: Wanted, to_clear: pa.ChunkedArray | None = None
) -> tuple[pa.Table, pa.Table, int]:
    """Return the remaining rows, the rows of the key, and how many of the remaining rows were
    changed. Set `error_text` to null in the rows of the mask `to_clear`."""
    is_own = is_of(table, rows, wanted)
    kept, erased = rows.filter(pc.invert(is_own)), rows.filter(is_own)
    changed = _false(kept.num_rows)
    for name in table.column_names:
        values = kept[name]
        if name in KEY_COLUMNS and name != _owner_of(table):
            found = is_one(values, wanted.names)
            values = pc.if_else(found, ERASED, values)
        elif name in TEXT_COLUMNS:
            found = mentions(values, wanted)
            if pc.any(found).as_py():
                texts = [text and wanted.redacted(text) for text in values.to_pylist()]
                values = pa.chunked_array([texts], pa.string())
        else:
            continue
        if name == "error_text" and to_clear is not None:
            cleared = to_clear.filter(pc.invert(is_own))
            found, values = pc.or_(found, cleared), pc.if_else(cleared, None, values)
        changed = pc.or_(changed, found)
        kept = kept.set_column(kept.schema.get_field_index(name), kept.schema.field(name), values)
    return kept, erased, pc.sum(changed).as_py() or 0


def mentions(texts: pa.ChunkedArray, wanted: Wanted) -> pa.ChunkedArray:
    """Return a mask of the texts that mention the key."""
    near = _false(len(texts))
    for form in wanted.forms:
        near = pc.or_(near, pc.fill_null(pc.match_substring(texts, form), False))
    if not pc.any(near).as_py():
        return near
    # Arrow's regular expressions have no look-behind: check the remaining rows one by one.
    pairs = zip(near.to_pylist(), texts.to_pylist(), strict=True)
    found = [is_near and wanted.mention.search(text) is not None for is_near, text in pairs]
    return pa.chunked_array([found], pa.bool_())


def _owner_of(table: Table) -> str | None:
    """Return the column with the key of a row; None if rows have no key."""
    if table.name == INCIDENTS.name:
        return "subject"
    return "fairness_key" if "fairness_key" in table.column_names else None


def is_one(keys: pa.ChunkedArray, names: Collection[str]) -> pa.ChunkedArray:
    """Return a mask of the keys that are one of these names."""
    return pc.fill_null(pc.is_in(keys, value_set=pa.array(sorted(names), pa.string())), False)


def _false(rows: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.repeat(pa.scalar(False), rows)])
