"""Compaction: merge the small files of a closed partition into one, sorted so that readers skip
most of it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import msgspec
import pyarrow as pa

from fairlead.pipeline.partitions import HOUR_US, micros_of
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.data_files import TableFile
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.table import WarehouseTable

CLOSES_AFTER = 26 * HOUR_US
"""Microseconds after the end of a partition at which the partition is closed, because late rows
have arrived."""

SORTED = "sorted"
"""Beginning of the name of a compacted file."""

_TRIES = 5


class Compacted(msgspec.Struct, frozen=True):
    """Result of a compaction."""

    parts: int
    files: int
    """Number of merged files."""
    rows: int
    skipped: list[str]
    """Partitions of which the table changed at each try; the next run compacts them."""


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

    Hold one partition in memory at a time, some 800 MB for a million attempts. Raise BrokenLake
    when a file cannot be read or lacks rows; finished partitions stay compacted.
    """
    done = dict[str, list[TableFile]]()
    skipped = []
    for name, files in to_compact(table.files(), now, table.table.by == "hour").items():
        if table.rewrite([name], partial(_sorted, table.table), SORTED, _TRIES, True):
            done[name] = files
        else:
            skipped.append(name)
    merged = [file for files in done.values() for file in files]
    return Compacted(len(done), len(merged), sum(file.rows for file in merged), skipped)


def _sorted(table: Table, rows: pa.Table) -> pa.Table:
    keys = [k for k in ("queue", "fairness_key", table.instant) if k in table.column_names]
    # An array of the type string holds at most 2 GiB of text.
    wide = pa.schema(
        [
            field.with_type(pa.large_string()) if field.type == pa.string() else field
            for field in rows.schema
        ]
    )
    return rows.cast(wide).sort_by([(key, "ascending") for key in keys])
