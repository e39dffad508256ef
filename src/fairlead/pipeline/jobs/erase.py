"""`erase`: deletes every row that names a key from all tables of the lake, and keeps the key out of
later exports. The job can be run again after a crash; until it ends, readers may see the key.

Time travel ends with an erasure: each table keeps only its present snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from fairlead.clock import Clock, to_datetime
from fairlead.errors import ConfigurationError
from fairlead.pipeline import ledger
from fairlead.pipeline.models import ATTEMPTS, EVENTS, FAILURES, QUARANTINE, TABLES
from fairlead.pipeline.partitions import hours_of
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.reading.snapshots import Snapshots
from fairlead.pipeline.runs import recorded
from fairlead.pipeline.schema import Table
from fairlead.pipeline.tombstones import bury, readmit, tombstone
from fairlead.pipeline.warehouse.builds import Build, Builds
from fairlead.pipeline.warehouse.layout import DAY_US, LAST_US
from fairlead.pipeline.warehouse.lease import lease
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.windows import ALL

KEY_COLUMNS = ("fairness_key", "subject", "max_lag_key", "noisy_key")
"""Columns that name a fairness key."""

_IN_JSON = "CASE WHEN json_valid(raw) THEN json_extract_string(raw, '$.fairness_key') = $key END"
_INSTANTS = ("ready_at", "started_at", "finished_at")


class Erasure(msgspec.Struct, frozen=True):
    """Result of an erasure."""

    rows: dict[str, int]
    """Rows that named the key before, by table."""
    left: dict[str, int]
    """Rows that name the key now, by table."""
    days: list[str]
    """Days whose sums include the erased rows until the next build."""


def erase(lake: Warehouse, key: str, clock: Clock, dry_run: bool = False) -> Erasure:
    """Erase the key; with `dry_run`, only count the rows that name it. Raise BrokenLake,
    ConfigurationError, LakeInUse, StoreUnavailable."""
    stone = _stone(lake, key)
    if dry_run:
        found = rows_with(lake, key)
        return Erasure(found, found, sorted(_days(lake, key)))
    with lease(lake, clock, "erase"), recorded(lake, clock, "erase", {"key": stone}) as run:
        before, days = rows_with(lake, key), _days(lake, key)
        for table in (ATTEMPTS, EVENTS):
            bury(lake.table(table), stone)
        days |= _days(lake, key)  # exports that ended before the tombstone
        builds = Builds(lake)
        # Note the days that count the key. With a catalog that has no lease, this refuses builds
        # that have read it.
        _publish(builds, lambda build: _again(build, hours_of(days)), clock.now())
        # Attempts last, so that a run after a crash still finds the days of the key.
        for table in sorted(TABLES, key=lambda table: table is ATTEMPTS):
            _delete(lake, table, key, days)
        _publish(builds, lambda build: _at_present(lake, build), clock.now())
        for table in TABLES:
            here = lake.table(table)
            here.drop_branches(None)
            # Everything that is there now is older than an instant in the future.
            here.expire(clock.now() + DAY_US)
            here.sweep(clock.now() + DAY_US)
        left = rows_with(lake, key)
        run.tables, run.rows_out = before, sum(before.values())
    return Erasure(before, left, sorted(days))


def readmit_key(lake: Warehouse, key: str) -> bool:
    """Accept rows of the key from the next export on; return False if the key was not erased. Raise
    ConfigurationError."""
    stone = _stone(lake, key)
    readmitted = [readmit(lake.table(table), stone) for table in (ATTEMPTS, EVENTS)]
    return any(readmitted)


def rows_with(lake: Warehouse, key: str) -> dict[str, int]:
    """Return the number of rows that name the key, as readers of the tables find them; no table
    without such rows."""
    found: dict[str, int] = {}
    with Frames(lake, Snapshots(lake).read()) as tables:
        for table in tables.seen.tables:
            conditions = [f"{name} = $key" for name in KEY_COLUMNS if name in table.column_names]
            conditions += [_IN_JSON] if table is QUARANTINE else []
            if conditions:
                where = " OR ".join(conditions)
                query = f"SELECT count(*) AS n FROM {{{table.name}}} WHERE {where}"  # noqa: S608 - our names
                [row] = tables.totals(query, given={"key": key})
                found |= {table.name: row["n"]} if row["n"] else {}
    return found


def _stone(lake: Warehouse, key: str) -> str:
    """Return the tombstone of a key. Raise ConfigurationError for a key that cannot be erased."""
    if key != key.encode(errors="ignore").decode():
        raise ConfigurationError(f"the key {key!r} is no text of Unicode, so no task has it")
    if key in ("", ALL):
        raise ConfigurationError(
            f"the key {key!r} stands for all tasks without a key, or for all keys; name the key to"
            " erase"
        )
    return tombstone(lake, key)


def _days(lake: Warehouse, key: str) -> set[str]:
    """Return the days that count attempts of the key. Load one partition at a time."""
    found, table = set[str](), lake.table(ATTEMPTS)
    for part in sorted({file.part for file in table.files()}):
        rows = table.load([part], list(_INSTANTS), pc.field("fairness_key") == key)
        ends = [pc.min_max(rows[name].cast(pa.int64())).as_py() for name in _INSTANTS]
        known = [micros for end in ends for micros in end.values() if micros is not None]
        if known:
            first, last = (min(max(micros, 0), LAST_US) for micros in (min(known), max(known)))
            days = range(first - first % DAY_US, last + 1, DAY_US)
            found.update(f"{to_datetime(day):%Y-%m-%d}" for day in days)
    return found


def _publish(builds: Builds, change: Callable[[Build], Build], now: int) -> None:
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


def _again(before: Build, hours: Collection[str]) -> Build:
    """Return the build after which the next one makes these hours again too."""
    return replace(before.after({}), again=sorted({*before.again, *hours}))


def _at_present(lake: Warehouse, before: Build) -> Build:
    """Return a build of the present snapshots of the built tables, with the hours that changed
    since the snapshots of bronze that the last build has read, because these go."""
    tables = {table.name: lake.table(table) for table in TABLES}
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
    return replace(_again(before.after(present), again), sources=sources)


def _delete(lake: Warehouse, table: Table, key: str, days: Collection[str]) -> None:
    """Delete the rows that name the key from each partition of a table, and in gold.failures the
    texts of these days, which may quote attempts of the key. Load one partition at a time."""
    here = lake.table(table)
    for part in sorted({file.part for file in here.files()}):
        quotes = table is FAILURES and part[:10] in days

        def without_key(rows: pa.Table, quotes: bool = quotes) -> pa.Table | None:
            gone = _names_key(table, rows, key)
            kept = rows.filter(pc.invert(gone))
            if quotes and _has_texts(kept):
                number = kept.schema.get_field_index("error_text")
                empty = pa.nulls(kept.num_rows, pa.string())
                kept = kept.set_column(number, kept.schema.field(number), empty)
            elif kept.num_rows == rows.num_rows:
                return None
            if table is ATTEMPTS:
                ledger.add(lake, rows.filter(gone), "erase")
            return kept

        here.rewrite([part], without_key, "erase")


def _names_key(table: Table, rows: pa.Table, key: str) -> pa.ChunkedArray:
    """Return a mask of the rows that name the key."""
    mask = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    for name in KEY_COLUMNS:
        if name in table.column_names:
            mask = pc.or_(mask, pc.fill_null(pc.equal(rows[name], key), False))
    if table is QUARANTINE:
        mask = pa.chunked_array([[_is_of(raw, key) for raw in rows["raw"].to_pylist()]], pa.bool_())
    return mask


def _is_of(raw: str, key: str) -> bool:
    """Return whether a row stored as JSON belongs to the key."""
    try:
        row = msgspec.json.decode(raw)
    except ValueError:
        return False
    return isinstance(row, dict) and row.get("fairness_key") == key


def _has_texts(failures: pa.Table) -> bool:
    return bool(failures["error_text"].null_count < failures.num_rows)
