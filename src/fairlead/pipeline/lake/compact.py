"""Compaction: merge the small files of a closed partition into one, sorted so that readers skip
most of it."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.pipeline import durable
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.lake.manifest import Manifest, TablePart
from fairlead.pipeline.lake.parts import micros_of
from fairlead.pipeline.lake.table import DAY, HOUR, LakeTable
from fairlead.pipeline.schema import Table

if TYPE_CHECKING:
    import pyarrow as pa

CLOSES_AFTER = 26 * HOUR
"""Microseconds after the end and the last change of a partition at which the partition is closed,
because late rows have arrived."""

GROUP_ROWS = 250_000
"""Rows of a row group, some 10 MB, the unit that a reader reads or skips."""

SORTED = "sorted.parquet"
"""Name of the file of a compacted partition."""


class Compacted(msgspec.Struct, frozen=True):
    """Result of a compaction."""

    parts: int
    files: int
    """Number of merged files."""
    rows: int
    skipped: list[str]
    """Partitions that changed during the compaction; the next run compacts them."""


def compact(
    table: LakeTable,
    now: int,
    closes_after: int = CLOSES_AFTER,
    everything: bool = False,
    on_rows: Callable[[str, int], None] = lambda part, rows: None,
) -> Compacted:
    """Compact the closed partitions, or with `everything` all that have ended; call `on_rows` after
    each.

    Holds one partition in memory at a time, some 800 MB for a million attempts. Raise CheckFailed
    when rows were lost or duplicated, BrokenLake when a file cannot be read; finished partitions
    stay compacted.
    """
    manifest = table.manifests.newest()
    parts = files = rows = 0
    skipped = []
    for name in to_compact(table, manifest, now, closes_after, everything):
        before = manifest.parts[name]
        after = _rewritten(table, manifest, name)
        if table.replace({name: after}, {name: before}, now) is None:
            skipped.append(name)
            # Remove the file at once: another process may have replaced the partition to erase
            # rows.
            for file in after.files:
                (table.folder / file).unlink(missing_ok=True)
            continue
        parts, files, rows = parts + 1, files + len(before.files), rows + after.rows
        on_rows(name, after.rows)
    return Compacted(parts, files, rows, skipped)


def to_compact(
    table: LakeTable,
    manifest: Manifest,
    now: int,
    closes_after: int = CLOSES_AFTER,
    everything: bool = False,
) -> list[str]:
    """Return the partitions that `compact` would rewrite."""

    def is_closed(name: str, part: TablePart) -> bool:
        end = micros_of(name) + (HOUR if table.table.by == "hour" else DAY)
        return end <= now and (everything or max(end, part.changed_at) + closes_after <= now)

    return [
        name
        for name, part in sorted(manifest.parts.items())
        if is_closed(name, part) and [Path(file).name for file in part.files] != [SORTED]
    ]


def _rewritten(table: LakeTable, manifest: Manifest, name: str) -> TablePart:
    """Return the partition as one sorted file, on disk but not listed yet."""
    import pyarrow.parquet as pq

    before = manifest.parts[name]
    table.check(manifest, [name])
    where = table.path_of(name, uuid.uuid4().hex)
    path = durable.folder(table.folder / where) / SORTED
    durable.write(path, lambda temporary: _write_sorted(table, manifest, name, temporary))
    rows = pq.read_metadata(path).num_rows
    if rows != before.rows:
        raise CheckFailed(
            f"compaction of {table.table.name}, partition {name}: {before.rows:,} rows before,"
            f" {rows:,} after"
        )
    return msgspec.structs.replace(before, files=[f"{where}/{SORTED}"], bytes=path.stat().st_size)


def _write_sorted(table: LakeTable, manifest: Manifest, name: str, path: Path) -> None:
    import pyarrow.parquet as pq

    schema = table.table.arrow()
    with pq.ParquetWriter(
        path, schema, **_options(table.table, manifest.parts[name].rows)
    ) as writer:
        for group in _sorted_groups(table, manifest, name):
            writer.write_table(group.cast(schema), row_group_size=GROUP_ROWS)


def _sorted_groups(table: LakeTable, manifest: Manifest, name: str) -> Iterator[pa.Table]:
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = table.table.column_names
    keys = [key for key in ("queue", "fairness_key", table.table.instant) if key in columns]
    # An array of the type string holds at most 2 GiB of text.
    wide = [
        field.with_type(pa.large_string()) if field.type == pa.string() else field
        for field in table.table.arrow()
    ]
    rows = table.load(manifest, [name]).cast(pa.schema(wide))
    order = pc.sort_indices(rows, sort_keys=[(key, "ascending") for key in keys])
    # Copy by groups, so that only one group is in memory twice.
    for start in range(0, len(order), GROUP_ROWS):
        yield rows.take(order[start : start + GROUP_ROWS])


def _options(table: Table, rows: int) -> dict[str, Any]:
    import pyarrow.parquet as pq

    options: dict[str, Any] = {
        "compression": "zstd",
        "coerce_timestamps": "us",
        "write_statistics": True,
    }
    # Newer releases of pyarrow can write Bloom filters; without them, a search for one task reads
    # the task ids of each row group.
    if (
        "task_id" in table.column_names
        and "bloom_filter_options" in inspect.signature(pq.ParquetWriter).parameters
    ):
        options["bloom_filter_options"] = {"task_id": {"ndv": min(rows, GROUP_ROWS)}}
    return options
