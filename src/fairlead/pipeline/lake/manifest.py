"""The manifest of a table: the list of its files. Manifests are numbered and never changed. A file
belongs to the table if the newest manifest lists the file.

A writer reads the newest manifest and creates the one with the next number. If another writer was
first, the writer starts again (compare-and-set). So the file system must refuse to create a file
that exists, as local and POSIX file systems do; use Iceberg on object stores.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from datetime import date
from itertools import pairwise
from pathlib import Path

import msgspec

from fairlead.errors import ConfigurationError
from fairlead.model.reading import json_reader
from fairlead.pipeline import durable
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.schema import SCHEMA_VERSION

KEPT_SECONDS = 600.0
"""Seconds for which a superseded manifest is kept. Not longer, because each manifest lists the
whole table, and one is written every minute."""

_NAME = re.compile(r"^(\d{12})\.json$")
_PART = re.compile(r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}(/([01][0-9]|2[0-3]))?\Z")


class TablePart(msgspec.Struct, frozen=True):
    """One partition of a table: an hour, or a date."""

    files: list[str]
    """Paths below the table's folder."""
    rows: int
    bytes: int
    changed_at: int
    """Instant of the last change of its rows, in microseconds; compaction changes no row."""
    span: dict[str, tuple[int, int]] = {}
    """Least and greatest instant of each column, in microseconds."""


class Manifest(msgspec.Struct, frozen=True):
    """Listed files of a table, by partition (`2026-11-21/13`, or `2026-11-21` by date)."""

    number: int = 0
    schema_version: int = SCHEMA_VERSION
    written_at: int = 0
    parts: dict[str, TablePart] = {}
    cursors: dict[str, str] = {}
    """Positions up to which the table has the attempts, by store and by topic; see
    `fairlead.pipeline.stream.cursors`. The update that adds files moves the cursors too."""
    dropped: dict[str, int] = {}
    """Dropped files with the instant (microseconds) of the drop; readers may still read them."""
    erased: list[str] = []
    """Tombstones (see `tombstones`) of keys whose rows are refused."""
    ledger: list[str] = []
    """Ledger files of erased attempts that `reconcile` must still count, without keys and tasks."""

    @property
    def rows(self) -> int:
        """Number of rows in all partitions."""
        return sum(part.rows for part in self.parts.values())


_decode = json_reader(Manifest)


def decode(data: bytes, number: int, where: str) -> Manifest:
    """Return the manifest `number` from its JSON. Raise BrokenLake for other data, and
    ConfigurationError when a newer Fairlead wrote it.

    where: location of the data, for errors.
    """
    try:
        manifest = _decode(data)
        _check(manifest, number)
    except ValueError as error:  # also that of msgspec
        raise _broken(where, error) from error
    if manifest.schema_version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"{where} was written under schema version {manifest.schema_version}; this Fairlead"
            f" knows up to {SCHEMA_VERSION}: upgrade Fairlead"
        )
    return manifest


def _check(manifest: Manifest, number: int) -> None:
    """Raise ValueError for a manifest that no writer can continue, or that leads out of its
    table."""
    if manifest.number != number:
        raise ValueError(f"it is the manifest {manifest.number}")
    for name, part in manifest.parts.items():
        check_part(name)
        _check_files(part.files)
    _check_files(manifest.dropped)
    _check_files(manifest.ledger)


def check_part(name: str) -> None:
    """Raise ValueError for a name that no partition has."""
    if not _PART.match(name):
        raise ValueError(f"{name!r} is no partition")
    date.fromisoformat(name[:10])


def _check_files(files: Iterable[str]) -> None:
    for file in files:
        if file.startswith("/") or ".." in file.split("/") or "\0" in file:
            raise ValueError(f"{file!r} is no path below the table")


def _broken(where: str, error: Exception) -> BrokenLake:
    return BrokenLake(
        f"{where} cannot be read: {error}; restore it, or remove it to go back to the manifest"
        " before"
    )


class Manifests:
    """The manifests of one table, in `<table>/_manifest`."""

    def __init__(self, table_folder: Path) -> None:
        self.folder = table_folder / "_manifest"

    def newest(self) -> Manifest:
        """Return the newest manifest, or an empty one if there is none. Raise BrokenLake when the
        newest cannot be read."""
        while True:
            numbers = self.numbers()
            if not numbers:
                return Manifest()
            try:
                return self.read(numbers[-1])
            except FileNotFoundError:
                continue  # superseded and removed meanwhile

    def numbers(self) -> list[int]:
        """Return the numbers of all manifests, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(
            int(match[1]) for entry in self.folder.iterdir() if (match := _NAME.match(entry.name))
        )

    def read(self, number: int) -> Manifest:
        """Return one manifest. Raise FileNotFoundError, BrokenLake, and ConfigurationError when a
        newer Fairlead wrote it."""
        path = self._path(number)
        try:
            return decode(path.read_bytes(), number, str(path))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _broken(str(path), error) from error

    def update(self, change: Callable[[Manifest], Manifest | None], now: int) -> Manifest | None:
        """Replace the newest manifest by the result of `change`, and return the new one. Start
        again if another writer was first. Return None without a change if `change` returns None."""
        durable.folder(self.folder)
        if not self.numbers():
            durable.create(self._path(0), msgspec.json.encode(Manifest(written_at=now)))
        while True:
            before = self.newest()
            after = change(before)
            if after is None:
                return None
            after = msgspec.structs.replace(
                after, number=before.number + 1, written_at=now, schema_version=SCHEMA_VERSION
            )
            path = self._path(after.number)
            if not durable.create(path, msgspec.json.encode(after)):
                continue
            if self._path(before.number).exists():
                self.drop_superseded()
                return after
            # If this process slept long, another writer may have used our number, and the manifest
            # may be superseded and removed, so that the number looks free.
            path.unlink()

    def drop_superseded(self, kept: float = KEPT_SECONDS) -> int:
        """Remove manifests superseded more than `kept` seconds ago; return their number."""
        numbers = self.numbers()
        superseded = 0
        # Remove in ascending order, because `update` sees that it is late when the manifest before
        # its own is missing.
        for number, next_one in pairwise(numbers):
            try:
                if self._path(next_one).stat().st_mtime >= time.time() - kept:
                    break
            except FileNotFoundError:
                continue  # removed by another process
            self._path(number).unlink(missing_ok=True)
            superseded += 1
        return superseded

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:012}.json"
