"""Data files: Parquet files of a table, written before a commit lists them."""

from __future__ import annotations

import uuid
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, TimestamptzType

from fairlead.pipeline.errors import RESTORE, RESTORE_FILE, BrokenLake
from fairlead.pipeline.partitions import micros_of
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.layout import part_name, split, unit_of

GROUP_ROWS = 250_000
"""Rows of a row group, some 10 MB, the unit that a reader reads or skips."""

_DAMAGED = (ArithmeticError, EOFError, LookupError, SystemError, ValueError, zlib.error)
"""Errors of the library for a damaged list of files."""


class TableFile(NamedTuple):
    """A file of a snapshot."""

    path: str
    """URL of the file."""
    part: str
    """Name of its partition."""
    rows: int
    bytes: int
    span: dict[str, tuple[int, int]]
    """Least and greatest instant of each column, in microseconds."""


def write(table: Table, stored: IcebergTable, rows: pa.Table, name: str) -> list[DataFile]:
    """Write the rows, one file for each partition, with names that begin with `name`. No snapshot
    lists these files yet."""
    schema = schema_to_pyarrow(stored.schema(), include_field_ids=True)
    return [
        _write_one(stored, part.select(schema.names).cast(schema), number, name)
        for number, part in split(table, rows)
    ]


def holding(
    table: Table, parts: Collection[str] | None, since: str = ""
) -> Callable[[ManifestFile], bool]:
    """Return a condition for lists of files that may name files of these partitions, from the
    partition `since` on."""
    unit = unit_of(table)
    first = micros_of(since) // unit if since else 0
    numbers = None if parts is None else sorted(micros_of(part) // unit for part in parts)
    # Rows of a wrong clock count as in the first partition, whatever their number is.
    if (numbers is None and not first) or (numbers and numbers[0] == 0):
        return lambda manifest: True
    kind = IntegerType()

    def holds(manifest: ManifestFile) -> bool:
        bounds = manifest.partitions[0] if manifest.partitions else None
        if bounds is None or bounds.lower_bound is None or bounds.upper_bound is None:
            return bool(numbers)
        low, high = from_bytes(kind, bounds.lower_bound), from_bytes(kind, bounds.upper_bound)
        if numbers is None:
            return int(high) >= first
        return bisect_left(numbers, low) < bisect_right(numbers, high)

    return holds


def entries(
    snapshot: Snapshot, io: FileIO, holds: Callable[[ManifestFile], bool] = lambda manifest: True
) -> Iterator[ManifestEntry]:
    """Yield the files of a snapshot, of the lists that meet a condition. Raise BrokenLake for a
    damaged list, and for files of deletes, which no engine of ours writes."""
    for manifest in filter(holds, lists_of(snapshot, io)):
        for entry in entries_of(manifest, io):
            if entry.data_file.content != DataFileContent.DATA:
                raise BrokenLake(
                    f"{entry.data_file.file_path} is a file of deletes, which a list of Parquet"
                    " files cannot show: rewrite the table with write.delete.mode=copy-on-write"
                )
            yield entry


def lists_of(snapshot: Snapshot, io: FileIO) -> list[ManifestFile]:
    """Return the lists of files of a snapshot. Raise BrokenLake if they cannot be read."""
    with list_errors(snapshot.manifest_list):
        return snapshot.manifests(io)


def entries_of(
    manifest: ManifestFile, io: FileIO, discard_deleted: bool = True
) -> list[ManifestEntry]:
    """Return the entries of a list of files. Raise BrokenLake if it cannot be read."""
    with list_errors(manifest.manifest_path):
        return manifest.fetch_manifest_entry(io, discard_deleted)


@contextmanager
def list_errors(what: str) -> Iterator[None]:
    """Turn the error of a missing or damaged list of files into BrokenLake."""
    try:
        yield
    except FileNotFoundError as error:
        raise BrokenLake(f"a list of files is missing: {error}; {RESTORE}") from error
    except _DAMAGED as error:
        raise BrokenLake(f"{what}: a list of files is damaged: {error}; {RESTORE}") from error


def facts_of(table: Table, stored: IcebergTable, file: DataFile) -> TableFile:
    """Return what readers need of a file."""
    lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
    span: dict[str, tuple[int, int]] = {}
    for field in stored.schema().fields:
        if field.field_id in lower and isinstance(field.field_type, TimestamptzType):
            low, high = (from_bytes(field.field_type, at[field.field_id]) for at in (lower, upper))
            span[field.name] = (int(low), int(high))
    number = file.partition[0] if len(file.partition) else None
    return TableFile(
        file.file_path,
        part_name(table, number),
        file.record_count,
        file.file_size_in_bytes,
        span,
    )


def rows_in(table: Table, io: FileIO, file: TableFile) -> int:
    """Read a file to its end, compare the checksums of its pages, and return the number of its
    rows. Raise BrokenLake if it is missing or damaged."""
    assert isinstance(io, PyArrowFileIO)
    scheme, netloc, path = io.parse_location(file.path)
    with (
        file_errors(table, path),
        io.fs_by_scheme(scheme, netloc).open_input_file(path) as source,
        pq.ParquetFile(source, page_checksum_verification=True) as parquet,
    ):
        return sum(batch.num_rows for batch in parquet.iter_batches())


@contextmanager
def file_errors(table: Table, path: str = "") -> Iterator[None]:
    """Turn the error of a missing or damaged file into BrokenLake. The error names the file, unless
    its path is given."""
    try:
        yield
    except FileNotFoundError as error:
        what = path or str(error)
        raise BrokenLake(f"{table.name}: a file is missing: {what}; {RESTORE_FILE}") from error
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        what = f"{path}: {error}" if path else f"{error}; `fairlead pipeline check` names it"
        raise BrokenLake(f"{table.name}: a file is damaged: {what}; {RESTORE_FILE}") from error


def _write_one(stored: IcebergTable, rows: pa.Table, number: int | None, name: str) -> DataFile:
    # The name of a partition is no part of the path: instants of a wrong clock have none.
    path = f"{stored.location()}/data/{name}-{uuid.uuid4().hex[:12]}.parquet"
    footers: list[pq.FileMetaData] = []
    with stored.io.new_output(path).create(overwrite=False) as stream:
        pq.write_table(
            rows,
            stream,
            row_group_size=GROUP_ROWS,
            compression="zstd",
            coerce_timestamps="us",
            store_schema=False,
            metadata_collector=footers,
            write_page_checksum=True,
        )
        size = stream.tell()
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(number),
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=stored.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **_facts(stored.schema(), rows, *footers),
    )


def _facts(schema: Schema, rows: pa.Table, footer: pq.FileMetaData) -> dict[str, Any]:
    """Return sizes and counts by column, and bounds of instants, which may be beyond those of
    Python. Texts have no bounds, so that no key of a tenant is in the metadata."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    columns = {field.field_id: position for position, field in enumerate(schema.fields)}
    ends: dict[int, Any] = {}
    for field in schema.fields:
        values = rows[field.name]
        if isinstance(field.field_type, TimestamptzType) and values.null_count < len(values):
            ends[field.field_id] = pc.min_max(values.cast(pa.int64())).as_py()
    lower, upper = (
        {number: to_bytes(TimestamptzType(), each[end]) for number, each in ends.items()}
        for end in ("min", "max")
    )
    return {
        "record_count": rows.num_rows,
        "column_sizes": {
            number: sum(group.column(position).total_compressed_size for group in groups)
            for number, position in columns.items()
        },
        "value_counts": dict.fromkeys(columns, rows.num_rows),
        "null_value_counts": {
            n: rows.column(position).null_count for n, position in columns.items()
        },
        "lower_bounds": lower,
        "upper_bounds": upper,
        "split_offsets": [
            group.column(0).dictionary_page_offset or group.column(0).data_page_offset
            for group in groups
        ],
    }
