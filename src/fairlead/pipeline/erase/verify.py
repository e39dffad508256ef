"""The proof: every file below a folder is read, whether or not it counts, and searched for a
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
"""Bytes: shorter names come about by chance in compressed data, and are looked for in what it says
only."""

_TELLING = (*KEY_COLUMNS, *TEXT_COLUMNS)


class Held(msgspec.Struct, frozen=True):
    """A file that has the key somewhere."""

    file: str
    where: str
    """A column, or "bytes": somewhere in it."""
    count: int


class Verified(msgspec.Struct, frozen=True):
    """What the search found; nothing in `held` and `unreadable` is the proof."""

    files: int
    bytes: int
    held: list[Held] = []
    """The key in a column of keys, mentioned in free text, or anywhere in a file that is no
    table."""
    elsewhere: list[Held] = []
    """The same characters as something else: the name of a queue or a task, an ordering key of
    others, or in the bytes of a file in whose rows it is not."""
    unreadable: list[str] = []
    """Files that are no whole Parquet files; `gc` removes them, or the one who is writing them
    finishes."""

    @property
    def is_clean(self) -> bool:
        """No row of the key and no mention is left, and every file could be read."""
        return not (self.held or self.unreadable)


def verify(folder: Path, wanted: Wanted, except_for: Iterable[str] = ()) -> Verified:
    """Read every file below the folder, but for these (paths below it), and say where the key
    is."""
    skipped = set(except_for)
    files = size = 0
    held: list[Held] = []
    elsewhere: list[Held] = []
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
            continue  # removed while we looked
        files, size = files + 1, size + len(data)
        if path.suffix == ".crc" or not (data.startswith(b"PAR1") or ".parquet" in path.name):
            found = [Held(name, "bytes", count)] if (count := _in_other(data, wanted)) else []
            if _is_ours(path.relative_to(folder)):
                elsewhere += found
            else:
                held += found
            continue
        if not readable(path):
            unreadable.append(name)
            continue
        columns = list(columns_with(path, wanted))
        held += [Held(name, where, n) for where, n in columns if where in _TELLING]
        elsewhere += [Held(name, where, n) for where, n in columns if where not in _TELLING]
        if not columns and (count := _in_bytes(data, wanted)):
            elsewhere.append(Held(name, "bytes", count))
    return Verified(files, size, held, elsewhere, unreadable)


def holds(path: Path, wanted: Wanted) -> bool:
    """Whether a Parquet file has the key in a column of keys, or mentions it. Raises
    FileNotFoundError."""
    return any(where in _TELLING for where, _ in columns_with(path, wanted))


def readable(path: Path) -> bool:
    """Whether it is a whole Parquet file. Raises FileNotFoundError."""
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
    """The columns of text that have the key, as their value or mentioned in it, and in how many
    rows."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        names = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        count = dict.fromkeys(names, 0)
        for batch in file.iter_batches(columns=names):
            for name in names:
                # Values that come again and again are looked at once.
                told = pc.value_counts(batch[name])
                count[name] += sum(_hits(name, told, wanted))
    yield from ((name, n) for name, n in count.items() if n)


def _hits(name: str, told: pa.StructArray, wanted: Wanted) -> Iterator[int]:
    for entry in told:
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
    """A manifest, or a note of ours: no key is ever in them, but a key may be called like one of
    their words."""
    return path.parent.name == "_manifest" or (len(path.parts) == 1 and path.name.startswith("_"))


def _in_bytes(data: bytes, wanted: Wanted) -> int:
    names = [name.encode(errors="surrogatepass") for name in wanted.names]
    return sum(data.count(name) for name in names if len(name) >= SURE_FROM)
