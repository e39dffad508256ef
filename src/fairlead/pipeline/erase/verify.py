"""Search every file of a lake for a key, to prove that an erasure is complete. The search also
reads files that no snapshot lists."""

from __future__ import annotations

import gzip
import posixpath
import zlib
from collections import Counter
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import InputFile
from pyiceberg.typedef import Record

from fairlead.pipeline.erase.tables import is_one, mentions
from fairlead.pipeline.erase.wanted import KEY_COLUMNS, TEXT_COLUMNS, Wanted
from fairlead.pipeline.warehouse.durable_io import DurableFileIO
from fairlead.pipeline.warehouse.warehouse import Warehouse

LEAST_BYTES = 6
"""Minimum length of a key, in bytes, for a search in binary files; compressed data contains shorter
keys by chance."""


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
    io = DurableFileIO(lake.location.pyiceberg())
    found = Verified(0, 0)
    for name, data in lake.contents():
        found = replace(found, files=found.files + 1, bytes=found.bytes + len(data))
        is_parquet = data.startswith(b"PAR1") or name.endswith(".parquet")
        try:
            if is_parquet:
                places = _in_columns(data, wanted) or {"bytes": _count_in_bytes(data, wanted)}
            elif data.startswith(b"Obj\x01"):
                places = _in_avro(io.new_input(f"{lake.location.lake}/{name}"), wanted)
            else:
                plain = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
                places = {"bytes": _count_in_text_or_bytes(plain, wanted)}
        except FileNotFoundError:
            continue  # removed meanwhile
        except (ValueError, OSError, EOFError, zlib.error):
            found.unreadable.append(name)
            continue
        # Metadata of tables contain no keys, but a key may be the same word as a name there.
        is_metadata = posixpath.basename(posixpath.dirname(name)) == "metadata"
        in_bytes = () if is_parquet or is_metadata else ("bytes",)
        for where, count in places.items():
            is_held = where in (*KEY_COLUMNS, *TEXT_COLUMNS, "bounds", *in_bytes)
            if count:
                to = found.held if is_held else found.elsewhere
                to.append(Occurrences(name, where, count))
    return found


def _in_columns(data: bytes, wanted: Wanted) -> Counter[str]:
    """Return the number of rows of a Parquet file with the key, by text column. A value of a
    free-text column has the key if it mentions the key, a value of any other column if it equals
    the key."""
    count = Counter[str]()
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        names = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        for batch in file.iter_batches(columns=names):
            for name in names:
                found = is_one(batch[name], wanted.names)
                if name in TEXT_COLUMNS:
                    found = pc.or_(found, mentions(batch[name], wanted))
                count[name] += pc.sum(found).as_py() or 0
    return +count


def _in_avro(file: InputFile, wanted: Wanted) -> Counter[str]:
    """Return how often the key is in the texts of a list of files, and in the least and greatest
    values of columns, as engines that keep such bounds of texts write them."""
    count = Counter[str]()
    names = [name.encode() for name in wanted.names]
    with AvroFile[Record](file) as records:
        values: list[Any] = [*records]
    while values:
        value = values.pop()
        if isinstance(value, Record):
            values += [value[n] for n in range(len(value))]
        elif isinstance(value, dict):
            values += [*value, *value.values()]
        elif isinstance(value, list):
            values += value
        elif isinstance(value, str):
            count["bytes"] += wanted.mention.search(value) is not None
        elif isinstance(value, bytes):
            # Engines cut bounds at 16 letters.
            count["bounds"] += any(
                value == name or (len(value) >= 16 and name[:15] == value[:15]) for name in names
            )
    return count


def _count_in_text_or_bytes(data: bytes, wanted: Wanted) -> int:
    try:
        data.decode()
    except UnicodeDecodeError:
        return _count_in_bytes(data, wanted)
    return sum(1 for _ in wanted.bytes_mention.finditer(data))


def _count_in_bytes(data: bytes, wanted: Wanted) -> int:
    return sum(
        data.count(name) for name in map(str.encode, wanted.names) if len(name) >= LEAST_BYTES
    )
