"""Compaction: merge the small files of a closed partition into one, sorted so that readers skip
most of it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa

from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.partitions import HOUR_US, micros_of
from fairlead.pipeline.warehouse.data_files import TableFile, Written
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.table import TableState, WarehouseTable

CLOSES_AFTER = 26 * HOUR_US
"""Microseconds after the end of a partition at which the partition is closed, because late rows
have arrived."""

SORTED = "sorted"
"""Beginning of the name of a compacted file."""


class Compacted(msgspec.Struct, frozen=True):
    """Result of a compaction."""

    parts: int
    files: int
    """Number of merged files."""
    rows: int
    skipped: list[str]
    """Partitions that changed during the compaction; the next run compacts them."""


def to_compact(files: Iterable[TableFile], now: int, by_hour: bool) -> dict[str, list[TableFile]]:
    """Return the files of each partition that `compact` would rewrite. The first partition stays as
    it is, because it stands for all rows of a wrong clock.

    now: microseconds since the epoch.
    """
    found: dict[str, list[TableFile]] = {}
    for file in files:
        found.setdefault(file.part, []).append(file)
    lasts = HOUR_US if by_hour else DAY_US
    return {
        name: each
        for name, each in sorted(found.items())
        if 0 < micros_of(name) <= now - lasts - CLOSES_AFTER
        and (len(each) > 1 or not each[0].path.rpartition("/")[2].startswith(SORTED))
    }


def compact(table: WarehouseTable, now: int) -> Compacted:
    """Compact the closed partitions.

    Hold one partition in memory at a time, some 800 MB for a million attempts. Raise CheckFailed
    when rows were lost or doubled, BrokenLake when a file cannot be read; finished partitions stay
    compacted.
    """
    parts = files = rows = 0
    skipped = []
    for name, before in to_compact(table.files(), now, table.table.by == "hour").items():
        seen = table.state()
        written = _rewritten(table, name, before, seen)
        if not _committed(table, name, before, written, seen):
            skipped.append(name)
            # Remove the files at once: another process may have replaced the partition to erase
            # rows.
            table.take_away(written)
            continue
        made = sum(file.rows for file in written)
        parts, files, rows = parts + 1, files + len(before), rows + made
    return Compacted(parts, files, rows, skipped)


def _rewritten(
    table: WarehouseTable, name: str, before: list[TableFile], seen: TableState
) -> list[Written]:
    """Write the rows of the partition to one sorted file, which no commit lists yet."""
    written = table.write(_sorted(table, table.load([name], snapshot=seen.snapshot)), SORTED, seen)
    rows, made = sum(file.rows for file in before), sum(file.rows for file in written)
    if rows != made and _paths(table, name, seen) == {file.path for file in before}:
        table.take_away(written)
        raise CheckFailed(
            f"compaction of {table.table.name}, partition {name}: {rows:,} rows before,"
            f" {made:,} after"
        )
    return written


def _committed(
    table: WarehouseTable,
    name: str,
    before: list[TableFile],
    written: list[Written],
    seen: TableState,
) -> bool:
    """Replace the files of the partition. Return False if other files are there meanwhile; commits
    to other partitions do not matter."""
    while _paths(table, name, seen) == {file.path for file in before}:
        if table.replace([name], written, seen, is_housekeeping=True):
            return True
        seen = table.state()
    return False


def _paths(table: WarehouseTable, name: str, seen: TableState) -> set[str]:
    return {file.path for file in table.files([name], seen.snapshot)}


def _sorted(table: WarehouseTable, rows: pa.Table) -> pa.Table:
    names = table.table.column_names
    keys = [key for key in ("queue", "fairness_key", table.table.instant) if key in names]
    # An array of the type string holds at most 2 GiB of text.
    wide = pa.schema(
        [
            field.with_type(pa.large_string()) if field.type == pa.string() else field
            for field in rows.schema
        ]
    )
    return rows.cast(wide).sort_by([(key, "ascending") for key in keys])
