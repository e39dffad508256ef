"""The manifest of a table: which files count. Numbered, written once each; the newest is the table.

As in pipeline.md, section 6: a writer reads the newest, makes its successor and creates it under
the next number; who comes second is refused and starts over (compare-and-set). For local and POSIX
file systems, which can create a name exclusively; object stores cannot, for them there is Iceberg.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec

from fairlead.errors import ConfigurationError
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.lake import durable
from fairlead.pipeline.schema import SCHEMA_VERSION

KEPT_SECONDS = 600.0
"""A manifest stays so long after it was superseded. Each lists the whole table, and one is written
every minute."""

_NAME = re.compile(r"^(\d{12})\.json$")


class Part(msgspec.Struct, frozen=True):
    """One partition of a table: an hour, or a date."""

    files: list[str]
    """Paths below the table's folder."""
    rows: int
    bytes: int
    changed_at: int
    """Microseconds: when its rows last changed. To put its files together changes no row."""
    span: dict[str, tuple[int, int]] = {}
    """By instant: its least and greatest, in microseconds."""


class Manifest(msgspec.Struct, frozen=True):
    """Which files of a table count, by partition (`2026-11-21/13`, or `2026-11-21` of a table by
    date)."""

    number: int = 0
    schema_version: int = SCHEMA_VERSION
    written_at: int = 0
    parts: dict[str, Part] = {}
    cursors: dict[str, str] = {}
    """What was exported, by "<store id>/<feed>": the last place; by "kafka/<topic>/<partition>":
    see `fairlead.pipeline.stream.cursors`. Moved in the same act as the files are made to count."""
    dropped: dict[str, int] = {}
    """Files that no longer count, and since when (microseconds): they stay for a while, somebody
    may be reading them."""
    erased: list[str] = []
    """Tombstones (see `tombstones`): rows of these keys are never let in again."""
    ledger: list[str] = []
    """Files that tell of attempts which were erased what `reconcile` has yet to count: no key, no
    task."""

    @property
    def rows(self) -> int:
        """Of all partitions."""
        return sum(part.rows for part in self.parts.values())


class Manifests:
    """The manifests of one table, in `<table>/_manifest`."""

    def __init__(self, table_folder: Path) -> None:
        self.folder = table_folder / "_manifest"

    def newest(self) -> Manifest:
        """The table as it is; an empty one when there is none yet. Raises BrokenLake for one that
        cannot be read."""
        while True:
            numbers = self.numbers()
            if not numbers:
                return Manifest()
            try:
                return self.read(numbers[-1])
            except FileNotFoundError:
                continue  # it was superseded and forgotten since we looked

    def numbers(self) -> list[int]:
        """Of all manifests kept, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(
            int(match[1]) for entry in self.folder.iterdir() if (match := _NAME.match(entry.name))
        )

    def read(self, number: int) -> Manifest:
        """One of them. Raises FileNotFoundError, BrokenLake, and ConfigurationError when a newer
        Fairlead wrote it."""
        path = self._path(number)
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            raise
        except (OSError, msgspec.DecodeError) as error:
            raise BrokenLake(
                f"{path} cannot be read: {error}; restore it, or remove it to go back to the one"
                " before"
            ) from error
        if manifest.schema_version > SCHEMA_VERSION:
            raise ConfigurationError(
                f"{path} was written under schema version {manifest.schema_version}; this Fairlead"
                f" knows up to {SCHEMA_VERSION}: upgrade it"
            )
        return manifest

    def update(self, change: Callable[[Manifest], Manifest | None], now: int) -> Manifest | None:
        """Replace the newest by what `change` makes of it, again whenever somebody else was first;
        None: it gave up."""
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
                self.forget()
                return after
            # We were asleep so long that our number had come, was superseded and forgotten: it is
            # free, and not ours.
            path.unlink()

    def forget(self, kept: float = KEPT_SECONDS) -> int:
        """Remove manifests that were superseded more than `kept` seconds ago; answers how many."""
        numbers = self.numbers()
        superseded = 0
        # In order, so that a manifest never outlives its predecessor: `update` knows by that
        # whether it is too late.
        for number, next_one in pairwise(numbers):
            try:
                if self._path(next_one).stat().st_mtime >= time.time() - kept:
                    break
            except FileNotFoundError:
                continue  # somebody else forgets
            self._path(number).unlink(missing_ok=True)
            superseded += 1
        return superseded

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:012}.json"
