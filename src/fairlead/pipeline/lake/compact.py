"""Compaction: the many small files of a closed partition become one, sorted so that readers may
skip most of it."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.lake import durable
from fairlead.pipeline.lake.manifest import Manifest, Part
from fairlead.pipeline.lake.parts import micros_of
from fairlead.pipeline.lake.table import DAY, HOUR, LakeTable
from fairlead.pipeline.schema import Table

if TYPE_CHECKING:
    import pyarrow as pa

CLOSES_AFTER = 26 * HOUR
"""A partition is closed when nothing has changed in it for so long (microseconds) after its end:
late rows are in."""

GROUP_ROWS = 250_000
"""Rows of a row group, some 10 MB: what a reader takes or skips as a whole."""

SORTED = "sorted.parquet"
"""The file of a compacted partition; a partition that has this one only is left as it is."""


class Compacted(msgspec.Struct, frozen=True):
    """What a compaction has done."""

    parts: int
    files: int
    """Files that were put together."""
    rows: int
    skipped: list[str]
    """Partitions to which somebody has added rows meanwhile: they have their turn next time."""


def compact(
    table: LakeTable,
    now: int,
    closes_after: int = CLOSES_AFTER,
    everything: bool = False,
    on_rows: Callable[[str, int], None] = lambda part, rows: None,
) -> Compacted:
    """Compact the closed partitions, or all but the current one; `tell` hears of each with its
    rows.

    Holds one partition in memory at a time, some 800 MB for a million attempts. Raises CheckFailed
    when rows got lost or came twice, BrokenLake when a file cannot be read; what was compacted
    before stays so.
    """
    manifest = table.manifests.newest()
    parts = files = rows = 0
    skipped = []
    for name in to_compact(table, manifest, now, closes_after, everything):
        before = manifest.parts[name]
        after = _rewritten(table, manifest, name)
        if table.replace({name: after}, {name: before}, now) is None:
            skipped.append(name)
            # Not left to the sweep: somebody may have replaced the partition because of what is in
            # it.
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
    """The partitions that `compact` would rewrite."""

    def is_closed(name: str, part: Part) -> bool:
        end = micros_of(name) + (HOUR if table.table.by == "hour" else DAY)
        return end <= now and (everything or max(end, part.changed_at) + closes_after <= now)

    return [
        name
        for name, part in sorted(manifest.parts.items())
        if is_closed(name, part) and [Path(file).name for file in part.files] != [SORTED]
    ]


def _rewritten(table: LakeTable, manifest: Manifest, name: str) -> Part:
    """The partition as one sorted file, on disk and not counting yet."""
    import pyarrow.parquet as pq

    before = manifest.parts[name]
    table.check(manifest, [name])
    where = table.path_of(name, uuid.uuid4().hex)
    path = durable.folder(table.folder / where) / SORTED
    durable.write(path, lambda aside: _write_sorted(table, manifest, name, aside))
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
    # Text of more than 2 GiB does not fit one column of the plain type.
    wide = [
        field.with_type(pa.large_string()) if field.type == pa.string() else field
        for field in table.table.arrow()
    ]
    rows = table.load(manifest, [name]).cast(pa.schema(wide))
    order = pc.sort_indices(rows, sort_keys=[(key, "ascending") for key in keys])
    # Group by group: only one of them is there twice.
    for start in range(0, len(order), GROUP_ROWS):
        yield rows.take(order[start : start + GROUP_ROWS])


def _options(table: Table, rows: int) -> dict[str, Any]:
    import pyarrow.parquet as pq

    options: dict[str, Any] = {
        "compression": "zstd",
        "coerce_timestamps": "us",
        "write_statistics": True,
    }
    # Only newer releases can; without it a look for one task reads one column of each row group.
    if (
        "task_id" in table.column_names
        and "bloom_filter_options" in inspect.signature(pq.ParquetWriter).parameters
    ):
        options["bloom_filter_options"] = {"task_id": {"ndv": min(rows, GROUP_ROWS)}}
    return options
