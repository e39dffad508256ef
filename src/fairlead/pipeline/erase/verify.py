"""The proof of an erasure: read every file below a folder, listed or not, and search it for a
key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.pipeline.erase.wanted import KEY_COLUMNS, TEXT_COLUMNS, Wanted

if TYPE_CHECKING:
    import pyarrow as pa

SURE_FROM = 6
"""Fewest bytes of a name searched in raw files; shorter ones occur by chance in compressed data."""

_TELLING = (*KEY_COLUMNS, *TEXT_COLUMNS)


class HeldFile(msgspec.Struct, frozen=True):
    """A file that contains the key."""

    file: str
    where: str
    """Name of the column, or "bytes" for anywhere in the file."""
    count: int


class Verified(msgspec.Struct, frozen=True):
    """Result of the search: empty `held` and `unreadable` are the proof."""

    files: int
    bytes: int
    held: list[HeldFile] = []
    """Files with the key in a column of keys, mentioned in free text, or anywhere in a file that is
    no table."""
    elsewhere: list[HeldFile] = []
    """Files with the same characters in another meaning: the name of a queue or task, an ordering
    key, or bytes of a file whose rows do not have the key."""
    unreadable: list[str] = []
    """Incomplete Parquet files; `gc` removes them, or their writer completes them."""

    @property
    def is_clean(self) -> bool:
        """Whether no row and no mention of the key is left, and every file could be read."""
        return not (self.held or self.unreadable)


def verify(folder: Path, wanted: Wanted, except_for: Iterable[str] = ()) -> Verified:
    """Read every file below the folder except these (paths below it), and report where the key
    is."""
    skipped = set(except_for)
    files = size = 0
    held: list[HeldFile] = []
    elsewhere: list[HeldFile] = []
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
            found = [HeldFile(name, "bytes", count)] if (count := _in_other(data, wanted)) else []
            if _is_ours(path.relative_to(folder)):
                elsewhere += found
            else:
                held += found
            continue
        if not readable(path):
            unreadable.append(name)
            continue
        columns = list(columns_with(path, wanted))
        held += [HeldFile(name, where, n) for where, n in columns if where in _TELLING]
        elsewhere += [HeldFile(name, where, n) for where, n in columns if where not in _TELLING]
        if not columns and (count := _in_bytes(data, wanted)):
            elsewhere.append(HeldFile(name, "bytes", count))
    return Verified(files, size, held, elsewhere, unreadable)


def holds(path: Path, wanted: Wanted) -> bool:
    """Return whether a Parquet file has the key in a column of keys, or mentions it. Raise
    FileNotFoundError."""
    return any(where in _TELLING for where, _ in columns_with(path, wanted))


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
    """Return the text columns that contain the key as a value or mention, and in how many rows."""
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
                count[name] += sum(_hits(name, value_counts, wanted))
    yield from ((name, n) for name, n in count.items() if n)


def _hits(name: str, value_counts: pa.StructArray, wanted: Wanted) -> Iterator[int]:
    for entry in value_counts:
        value: Any = entry["values"].as_py()
        if value is not None and (
            value in wanted.names
            or (name in TEXT_COLUMNS and wanted.mention.search(value) is not None)
        ):
            yield entry["counts"].as_py()


def _in_other(data: bytes, wanted: Wanted) -> int:
    try:
        data.decode()
    except UnicodeDecodeError:
        return _in_bytes(data, wanted)
    return sum(1 for _ in wanted.bytes_mention.finditer(data))


def _is_ours(path: Path) -> bool:
    """Return whether the file is a manifest or note of the lake: it never holds keys, but a key may
    equal one of its words."""
    return path.parent.name == "_manifest" or (len(path.parts) == 1 and path.name.startswith("_"))


def _in_bytes(data: bytes, wanted: Wanted) -> int:
    names = [name.encode(errors="surrogatepass") for name in wanted.names]
    return sum(data.count(name) for name in names if len(name) >= SURE_FROM)
