"""One table of the lake: Parquet files by hour or date, and the manifests that list them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairlead.clock import MICROS
from fairlead.pipeline import durable
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.lake.footer import checked_rows
from fairlead.pipeline.lake.leases import live
from fairlead.pipeline.lake.manifest import Manifest, Manifests, TablePart
from fairlead.pipeline.schema import Table

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

HOUR, DAY = 3600 * MICROS, 86_400 * MICROS
GRACE = DAY
"""Microseconds for which unlisted files stay, because a process may be reading or writing them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = 253_402_300_799 * MICROS
"""The last second of the year 9999. Rows with later instants, or before 1970, have a wrong clock
and go into the first partition."""

_PARQUET = {"compression": "zstd", "coerce_timestamps": "us", "write_statistics": True}


class Written(NamedTuple):
    """A file on disk that no manifest lists yet."""

    part: str
    file: str
    rows: int
    bytes: int
    span: dict[str, tuple[int, int]]


class LakeTable:
    """Table of a lake, in the folder `<root>/<table name>`."""

    def __init__(self, root: Path, table: Table) -> None:
        """`root`: folder of the lake."""
        self.table = table
        self.folder = root / table.name
        self.manifests = Manifests(self.folder)

    def part_of(self, instant: int) -> str:
        """Return the partition of an instant (microseconds)."""
        when = _EPOCH + timedelta(microseconds=instant if 0 <= instant <= _LAST else 0)
        return when.strftime("%Y-%m-%d/%H" if self.table.by == "hour" else "%Y-%m-%d")

    def path_of(self, part: str, generation: str) -> str:
        """Return the folder of a generation of a partition, below the folder of the table."""
        date, _, hour = part.partition("/")
        return f"date={date}/hour={hour}/g={generation}" if hour else f"date={date}/g={generation}"

    # writing --------------------------------------------------------------------------------------

    def write(self, rows: pa.Table, generation: str, name: str) -> list[Written]:
        """Write the rows, one file for each partition. A repeated write with the same generation
        and name replaces its files."""
        import pyarrow as pa
        import pyarrow.compute as pc

        unit = HOUR if self.table.by == "hour" else DAY
        instants = rows[self.table.instant].cast(pa.int64())
        inside = pc.and_(pc.greater_equal(instants, 0), pc.less_equal(instants, _LAST))
        slots = pc.divide(pc.if_else(inside, instants, 0), unit)
        written = []
        for slot in sorted(pc.unique(slots).to_pylist()):
            written.append(
                self.write_part(
                    rows.filter(pc.equal(slots, slot)), self.part_of(slot * unit), generation, name
                )
            )
        return written

    def write_part(self, rows: pa.Table, part: str, generation: str, name: str) -> Written:
        """Write rows of one partition."""
        import pyarrow.parquet as pq

        where = self.path_of(part, generation)
        path = durable.folder(self.folder / where) / name
        durable.write(path, lambda temporary: pq.write_table(rows, temporary, **_PARQUET))
        return Written(
            part, f"{where}/{name}", rows.num_rows, path.stat().st_size, _span(self.table, rows)
        )

    def append(
        self,
        written: Sequence[Written],
        moves: Mapping[str, tuple[str | None, str | None]],
        now: int,
        ledger: Sequence[str] = (),
        without: Sequence[str] | None = None,
        only_if: Callable[[Manifest], bool] = lambda before: True,
    ) -> Manifest | None:
        """Add files to the manifest and move cursors from one position to the next, in one atomic
        change. A position of None means that the manifest has no such cursor.

        Return None and change nothing if a cursor is at another position (another exporter wrote
        these rows), if a file was removed meanwhile, if the tombstones differ from those in
        `without` (unless it is None), or if `only_if` refuses the current manifest.
        """

        def change(before: Manifest) -> Manifest | None:
            if not only_if(before):
                return None
            if any(before.cursors.get(name) != position for name, (position, _) in moves.items()):
                return None
            if without is not None and before.erased != list(without):
                return None
            if not self._are_here([*(file.file for file in written), *ledger]):
                return None
            parts = dict(before.parts)
            for file in written:
                parts[file.part] = _joined(parts.get(file.part), file, now)
            moved = before.cursors | {name: position for name, (_, position) in moves.items()}
            cursors = {name: position for name, position in moved.items() if position is not None}
            return msgspec.structs.replace(
                before, parts=parts, cursors=cursors, ledger=[*before.ledger, *ledger]
            )

        return self.manifests.update(change, now)

    def replace(
        self,
        parts: Mapping[str, TablePart | None],
        expected: Mapping[str, TablePart | None],
        now: int,
        ledger: Sequence[str] = (),
    ) -> Manifest | None:
        """Replace these partitions (None removes one). Return None without a change when a
        partition differs from `expected`, or a file was removed meanwhile."""
        new = {name: part for name, part in parts.items() if part is not None}

        def change(before: Manifest) -> Manifest | None:
            if any(before.parts.get(name) != part for name, part in expected.items()):
                return None
            if not self._are_here(
                [*(file for part in new.values() for file in part.files), *ledger]
            ):
                return None
            kept = {name: part for name, part in before.parts.items() if name not in parts}
            replaced = {
                file for name in parts if name in before.parts for file in before.parts[name].files
            }
            dropped = {
                file: since for file, since in before.dropped.items() if since >= now - GRACE
            }
            dropped |= dict.fromkeys(
                replaced.difference(*(part.files for part in new.values())), now
            )
            return msgspec.structs.replace(
                before,
                parts=dict(sorted((kept | new).items())),
                dropped=dropped,
                ledger=[*before.ledger, *ledger],
            )

        return self.manifests.update(change, now)

    def _are_here(self, files: Iterable[str]) -> bool:
        return all((self.folder / file).exists() for file in files)

    # reading --------------------------------------------------------------------------------------

    def paths(self, manifest: Manifest, parts: Iterable[str] | None = None) -> list[str]:
        """Return the files of these partitions (all by default) in this manifest."""
        names = (
            sorted(manifest.parts) if parts is None else sorted(set(parts) & manifest.parts.keys())
        )
        return [str(self.folder / file) for name in names for file in manifest.parts[name].files]

    def check(self, manifest: Manifest, parts: Iterable[str] | None = None) -> None:
        """Check the footers of the files. Raise BrokenLake with the file that is missing or
        truncated, the column that is missing or of another type, or the partition whose rows do not
        match the manifest."""
        names = (
            sorted(manifest.parts) if parts is None else sorted(set(parts) & manifest.parts.keys())
        )
        for name in names:
            rows = sum(checked_rows(path, self.table) for path in self.paths(manifest, [name]))
            if rows != manifest.parts[name].rows:
                raise BrokenLake(
                    f"{self.table.name}, partition {name}: {rows:,} rows in its files,"
                    f" {manifest.parts[name].rows:,} in manifest {manifest.number}; restore"
                    f" {', '.join(self.paths(manifest, [name]))}"
                )

    def load(
        self,
        manifest: Manifest,
        parts: Iterable[str] | None = None,
        columns: list[str] | None = None,
        where: ds.Expression | None = None,
        encoded: Collection[str] = (),
    ) -> pa.Table:
        """Return the rows of these partitions in memory; columns added later are null in older
        files.

        where: condition on the rows. encoded: columns of texts that are returned with a dictionary,
        so that a text that occurs often is in memory once.
        """
        import pyarrow as pa
        import pyarrow.dataset as ds

        schema = self.table.arrow()
        for name in encoded:
            texts = pa.field(name, pa.dictionary(pa.int32(), pa.string()))
            schema = schema.set(schema.get_field_index(name), texts)
        paths = self.paths(manifest, parts)
        wanted = columns or schema.names
        if not paths:
            return pa.schema([schema.field(name) for name in wanted]).empty_table()
        parquet = ds.ParquetFileFormat(dictionary_columns=set(encoded))
        rows = ds.dataset(paths, schema=schema, format=parquet)
        return rows.to_table(columns=wanted, filter=where)

    # housekeeping ---------------------------------------------------------------------------------

    def sweep(self, before: int) -> tuple[int, int]:
        """Remove superseded manifests, and unlisted files that were written and dropped before this
        instant (microseconds; usually GRACE ago); return the number of each. Files stay while a
        reader has a lease."""
        dropped = self.manifests.drop_superseded()
        if live(self.folder.parent):
            return dropped, 0
        newest = self.manifests.newest()
        needed = {file for part in newest.parts.values() for file in part.files}
        needed |= {file for file, since in newest.dropped.items() if since >= before}
        removed = 0
        # Deepest folders first, because removing files empties their folders.
        for path in sorted(self.folder.glob("date=*/**/*"), reverse=True):
            removed += (
                _removed(path, before) if str(path.relative_to(self.folder)) not in needed else 0
            )
        for path in self.manifests.folder.glob(".*"):  # temporary file of a writer that died
            removed += _removed(path, before)
        return dropped, removed


def part_from(written: Iterable[Written], now: int) -> TablePart | None:
    """Return a partition with these files; None without files."""
    part: TablePart | None = None
    for file in written:
        part = _joined(part, file, now)
    return part


def _removed(path: Path, before: int) -> int:
    """Remove a file or empty folder older than `before` (microseconds); return the number of
    files."""
    try:
        if path.stat().st_mtime * MICROS >= before:
            return 0
        if path.is_dir():
            path.rmdir()
            return 0
        path.unlink()
        return 1
    except OSError:
        return 0  # not empty, or swept by another process


def _joined(part: TablePart | None, file: Written, now: int) -> TablePart:
    if part is None:
        return TablePart([file.file], file.rows, file.bytes, now, file.span)
    if file.file in part.files:
        return part
    span = {
        name: (
            (min(low, part.span[name][0]), max(high, part.span[name][1]))
            if name in part.span
            else (low, high)
        )
        for name, (low, high) in file.span.items()
    }
    return TablePart(
        [*part.files, file.file],
        part.rows + file.rows,
        part.bytes + file.bytes,
        now,
        part.span | span,
    )


def _span(table: Table, rows: pa.Table) -> dict[str, tuple[int, int]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    span: dict[str, tuple[int, int]] = {}
    for column in table.columns:
        if column.type == "timestamp":
            ends: Any = pc.min_max(rows[column.name].cast(pa.int64()))
            if ends["min"].is_valid:
                span[column.name] = (ends["min"].as_py(), ends["max"].as_py())
    return span
