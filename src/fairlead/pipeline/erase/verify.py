"""Search every file below a folder for a key, to prove that an erasure is complete. The search also
reads files that no manifest lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.pipeline.erase.wanted import KEY_COLUMNS, TEXT_COLUMNS, Wanted

if TYPE_CHECKING:
    import pyarrow as pa

LEAST_BYTES = 6
"""Minimum length of a key, in bytes, for a search in binary files; compressed data contains shorter
keys by chance."""

_SEARCHED_COLUMNS = (*KEY_COLUMNS, *TEXT_COLUMNS)


class Occurrences(msgspec.Struct, frozen=True):
    """Occurrences of the key in one column of a file, or in the bytes of the file."""

    file: str
    """Path below the searched folder."""
    where: str
    """Name of the column; "bytes" for a file that was not searched by column."""
    count: int
    """Number of rows with the key; for "bytes", number of occurrences."""


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
    """Paths of incomplete Parquet files. Their writer completes them, or `gc` removes them."""

    @property
    def is_clean(self) -> bool:
        """Whether every file was readable, and none has a row or a mention of the key."""
        return not (self.held or self.unreadable)


def verify(folder: Path, wanted: Wanted, except_for: Iterable[str] = ()) -> Verified:
    """Read every file below the folder, except the paths in `except_for` (relative to the folder),
    and report the files that have the key."""
    skipped = set(except_for)
    files = size = 0
    held: list[Occurrences] = []
    elsewhere: list[Occurrences] = []
    unreadable: list[str] = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name in skipped:
            continue
        try:
            if not path.is_file():
                continue
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # removed during the search
        files, size = files + 1, size + len(data)
        if path.suffix == ".crc" or not (data.startswith(b"PAR1") or ".parquet" in path.name):
            count = _count_in_text_or_bytes(data, wanted)
            found = [Occurrences(name, "bytes", count)] if count else []
            if _is_lake_metadata(path.relative_to(folder)):
                elsewhere += found
            else:
                held += found
            continue
        if not readable(path):
            unreadable.append(name)
            continue
        columns = list(columns_with(path, wanted))
        held += [Occurrences(name, where, n) for where, n in columns if where in _SEARCHED_COLUMNS]
        elsewhere += [
            Occurrences(name, where, n) for where, n in columns if where not in _SEARCHED_COLUMNS
        ]
        if not columns and (count := _count_in_bytes(data, wanted)):
            elsewhere.append(Occurrences(name, "bytes", count))
    return Verified(files, size, held, elsewhere, unreadable)


def has_key(path: Path, wanted: Wanted) -> bool:
    """Return whether a Parquet file has the key in a column of keys or of free text. Raise
    FileNotFoundError."""
    return any(where in _SEARCHED_COLUMNS for where, _ in columns_with(path, wanted))


def readable(path: Path) -> bool:
    """Return whether the file is a complete Parquet file. Raise FileNotFoundError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.read_metadata(path)
    except FileNotFoundError:
        raise
    except (pa.ArrowInvalid, OSError):
        return False
    return True


def columns_with(path: Path, wanted: Wanted) -> Iterator[tuple[str, int]]:
    """Yield the name of each text column that has the key, and the number of its rows with the key.
    A value of a free-text column has the key if it mentions the key, a value of any other column if
    it equals the key."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
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


def _count_in_text_or_bytes(data: bytes, wanted: Wanted) -> int:
    try:
        data.decode()
    except UnicodeDecodeError:
        return _count_in_bytes(data, wanted)
    return sum(1 for _ in wanted.bytes_mention.finditer(data))


def _is_lake_metadata(path: Path) -> bool:
    """Return whether the file is a manifest or another file of the lake without rows. Such a file
    contains no keys, but a key may be the same word as one of its field names."""
    return path.parent.name == "_manifest" or (len(path.parts) == 1 and path.name.startswith("_"))


def _count_in_bytes(data: bytes, wanted: Wanted) -> int:
    names = [name.encode(errors="surrogatepass") for name in wanted.names]
    return sum(data.count(name) for name in names if len(name) >= LEAST_BYTES)
