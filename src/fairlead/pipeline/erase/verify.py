"""Search every file of a lake for a key, to prove that an erasure is complete. The search also
reads files that no snapshot lists."""

from __future__ import annotations

import gzip
import posixpath
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fairlead.pipeline.erase.wanted import KEY_COLUMNS, TEXT_COLUMNS, Wanted
from fairlead.pipeline.warehouse.failures import catalog_errors
from fairlead.pipeline.warehouse.location import NAMESPACE
from fairlead.pipeline.warehouse.warehouse import Warehouse

LEAST_BYTES = 6
"""Minimum length of a key, in bytes, for a search in binary files; compressed data contains shorter
keys by chance."""

_SEARCHED_COLUMNS = (*KEY_COLUMNS, *TEXT_COLUMNS)
_SYNC_BYTES = 16
"""Length of the mark between the blocks of an Avro file."""


class Occurrences(msgspec.Struct, frozen=True):
    """Occurrences of the key in one column of a file, or in the bytes of the file."""

    file: str
    """Path below the lake."""
    where: str
    """Name of the column; "bytes" for a file that was not searched by column; "bounds" for the
    least or greatest value of a column."""
    count: int
    """Number of rows with the key; for "bytes" and "bounds", number of occurrences."""


class Verified(msgspec.Struct, frozen=True):
    """Result of the search. The erasure is complete if `held` and `unreadable` are empty."""

    files: int
    """Number of files read."""
    bytes: int
    """Total size of the files read."""
    held: list[Occurrences] = []
    """The key in a column of keys, in a column of free text, or in a file that is not Parquet."""
    elsewhere: list[Occurrences] = []
    """Text of the key used otherwise: as the name of a queue or task, as an ordering key, or as
    bytes that are equal by chance."""
    unreadable: list[str] = []
    """Paths of incomplete files. Their writer completes them, or `maintain` removes them."""

    @property
    def is_clean(self) -> bool:
        """Whether every file was readable, and none has a row or a mention of the key."""
        return not (self.held or self.unreadable)


def verify(lake: Warehouse, wanted: Wanted) -> Verified:
    """Read every file of the lake and report those that have the key: data, metadata, and whatever
    else is below its folder or URL."""
    files = size = 0
    held: list[Occurrences] = list(_in_bounds(lake, wanted))
    elsewhere: list[Occurrences] = []
    unreadable: list[str] = []
    for name, data in lake.contents():
        files, size = files + 1, size + len(data)
        if not (data.startswith(b"PAR1") or name.endswith(".parquet")):
            try:
                count = sum(_count_in_text_or_bytes(part, wanted) for part in _plain(data))
            except (OSError, EOFError, IndexError, zlib.error):  # cut off, in any format
                unreadable.append(name)
                continue
            found = [Occurrences(name, "bytes", count)] if count else []
            # Metadata of tables contain no keys, but a key may be the same word as a name there.
            if posixpath.basename(posixpath.dirname(name)) == "metadata":
                elsewhere += found
            else:
                held += found
            continue
        try:
            columns = list(columns_with(data, wanted))
        except (pa.ArrowInvalid, OSError):
            unreadable.append(name)
            continue
        held += [Occurrences(name, where, n) for where, n in columns if where in _SEARCHED_COLUMNS]
        elsewhere += [
            Occurrences(name, where, n) for where, n in columns if where not in _SEARCHED_COLUMNS
        ]
        if not columns and (count := _count_in_bytes(data, wanted)):
            elsewhere.append(Occurrences(name, "bytes", count))
    return Verified(files, size, held, elsewhere, unreadable)


def columns_with(data: bytes, wanted: Wanted) -> Iterator[tuple[str, int]]:
    """Yield the name of each text column of a Parquet file that has the key, and the number of its
    rows with the key. A value of a free-text column has the key if it mentions the key, a value of
    any other column if it equals the key."""
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        names = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        count = dict.fromkeys(names, 0)
        for batch in file.iter_batches(columns=names):
            for name in names:
                # Check each distinct value once.
                value_counts = pc.value_counts(batch[name])
                count[name] += sum(_matching_counts(name, value_counts, wanted))
    yield from ((name, n) for name, n in count.items() if n)


def _matching_counts(name: str, value_counts: pa.StructArray, wanted: Wanted) -> Iterator[int]:
    for entry in value_counts:
        value: Any = entry["values"].as_py()
        if value is not None and (
            value in wanted.names
            or (name in TEXT_COLUMNS and wanted.mention.search(value) is not None)
        ):
            yield entry["counts"].as_py()


def _in_bounds(lake: Warehouse, wanted: Wanted) -> Iterator[Occurrences]:
    """Yield the manifests whose files have the key as the least or greatest value of a column, as
    engines that keep such bounds of texts write them."""
    with catalog_errors(lake.location):
        tables = [lake.catalog.load_table(name) for name in lake.catalog.list_tables(NAMESPACE)]
    for stored in tables:
        manifests = {
            manifest.manifest_path: manifest
            for snapshot in stored.metadata.snapshots
            for manifest in snapshot.manifests(stored.io)
        }
        for path, manifest in manifests.items():
            count = sum(
                _starts_with_key(bound, wanted)
                for entry in manifest.fetch_manifest_entry(stored.io, discard_deleted=False)
                for bounds in (entry.data_file.lower_bounds, entry.data_file.upper_bounds)
                for bound in (bounds or {}).values()
            )
            if count:
                yield Occurrences(path.removeprefix(lake.location.lake + "/"), "bounds", count)


def _starts_with_key(bound: bytes, wanted: Wanted) -> bool:
    """Return whether a bound is the key, or its beginning (engines cut bounds at 16 letters)."""
    names = [name.encode(errors="surrogatepass") for name in wanted.names]
    return any(bound == name or (len(bound) >= 16 and name[:15] == bound[:15]) for name in names)


def _plain(data: bytes) -> Iterator[bytes]:
    """Yield the parts of a file, decompressed."""
    if data.startswith(b"\x1f\x8b"):
        yield gzip.decompress(data)
    elif not data.startswith(b"Obj\x01"):
        yield data
    else:
        header, *blocks = data.split(data[-_SYNC_BYTES:])
        yield header
        for block in blocks:
            if block:
                yield _block(block)


def _block(block: bytes) -> bytes:
    """Return the content of a block of Avro: two numbers of variable length, then the rows."""
    start = 0
    for _ in range(2):
        while block[start] & 0x80:
            start += 1
        start += 1
    try:
        return zlib.decompress(block[start:], -zlib.MAX_WBITS)
    except zlib.error:
        return block[start:]  # not compressed


def _count_in_text_or_bytes(data: bytes, wanted: Wanted) -> int:
    try:
        data.decode()
    except UnicodeDecodeError:
        return _count_in_bytes(data, wanted)
    return sum(1 for _ in wanted.bytes_mention.finditer(data))


def _count_in_bytes(data: bytes, wanted: Wanted) -> int:
    names = [name.encode(errors="surrogatepass") for name in wanted.names]
    return sum(data.count(name) for name in names if len(name) >= LEAST_BYTES)
