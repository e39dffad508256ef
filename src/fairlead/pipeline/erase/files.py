"""Erasing a key from a table of the lake: write new files beside the old ones, then list them in
the manifest.

A reader sees the rows before or after the change, never a mixture. A crash leaves the key in fewer
partitions, and the next run continues.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.erase.rows import without
from fairlead.pipeline.erase.trace import Trace
from fairlead.pipeline.erase.verify import holds, readable
from fairlead.pipeline.erase.wanted import Wanted
from fairlead.pipeline.gold.failures import FAILURES
from fairlead.pipeline.lake import ledger
from fairlead.pipeline.lake.manifest import Manifest, TablePart
from fairlead.pipeline.lake.table import LakeTable

if TYPE_CHECKING:
    import pyarrow as pa

HALF_MADE_S = 600.0
"""Age of a temporary file, in microseconds, at which its writer is gone."""


class Erased(msgspec.Struct, frozen=True):
    """Result for one table."""

    rows: int = 0
    """Rows of the key that were erased."""
    redacted: int = 0
    """Rows of other keys that were redacted."""
    files: int = 0
    """Rewritten files."""


def erase_from(
    table: LakeTable, wanted: Wanted, trace: Trace, now: Callable[[], int], dry_run: bool = False
) -> Erased:
    """Erase the key from every partition; with `dry_run` only count. Hold one file in memory at a
    time. Raise BrokenLake for a damaged file."""
    done = Erased()
    for name in sorted(table.manifests.newest().parts):
        while True:
            manifest = table.manifests.newest()
            if name not in manifest.parts:
                break
            found = _ErasedPartition(table, manifest, name, wanted, trace, dry_run)
            # Another process added rows, none of the key: read the partition again.
            if dry_run or not found.is_changed or found.shown(now()):
                done = Erased(
                    done.rows + found.rows, done.redacted + found.redacted, done.files + found.files
                )
                break
    return done


class _ErasedPartition:
    """One partition, with new files in place of those that had the key."""

    def __init__(
        self,
        table: LakeTable,
        manifest: Manifest,
        name: str,
        wanted: Wanted,
        trace: Trace,
        dry_run: bool,
    ) -> None:
        self._table, self._name, self._before = table, name, manifest.parts[name]
        self._after: list[str] = []
        self._ledger: list[str] = []
        self.rows = self.redacted = self.files = 0
        table.check(manifest, [name])
        generation = uuid.uuid4().hex
        for file in self._before.files:
            # Read the text columns first: most files have nothing of the key.
            if table.table.name != FAILURES.name and not holds(table.folder / file, wanted):
                self._after.append(file)
                continue
            rows = self._load(file)
            hushed = trace.hushes(rows) if table.table.name == FAILURES.name else None
            found = without(table.table, rows, wanted, hushed)
            if not found.erased.num_rows and not found.redacted:
                self._after.append(file)
                continue
            self.rows, self.redacted = (
                self.rows + found.erased.num_rows,
                self.redacted + found.redacted,
            )
            self.files += 1
            if not dry_run:
                self._rewrite(file, found.kept, found.erased, generation)

    def _load(self, file: str) -> pa.Table:
        as_seen = Manifest(parts={self._name: msgspec.structs.replace(self._before, files=[file])})
        return self._table.load(as_seen)

    def _rewrite(self, file: str, kept: pa.Table, erased: pa.Table, generation: str) -> None:
        table = self._table.table
        if table.name == ATTEMPTS.name:
            self._ledger += ledger.write(self._table, erased)
        # A missing partition of bronze would need a full build; an empty one is rebuilt alone.
        if kept.num_rows or table.name in (ATTEMPTS.name, EVENTS.name):
            written = self._table.write_part(kept, self._name, generation, Path(file).name)
            self._after.append(written.file)

    @property
    def is_changed(self) -> bool:
        return self.files > 0

    def shown(self, now: int) -> bool:
        """Publish the new files; return False when the partition has changed meanwhile."""
        after: TablePart | None = None
        if self._after:
            size = sum((self._table.folder / file).stat().st_size for file in self._after)
            after = msgspec.structs.replace(
                self._before,
                files=self._after,
                rows=self._before.rows - self.rows,
                bytes=size,
                changed_at=now,
            )
        replaced = self._table.replace(
            {self._name: after}, {self._name: self._before}, now, self._ledger
        )
        return replaced is not None


def purge(table: LakeTable, wanted: Wanted, dropped_before: int | None = None) -> int:
    """Remove unlisted files that contain or may contain the key: left by crashes, incomplete, or
    dropped; with an instant (microseconds) only those dropped before it. Return how many. No build
    may be under way."""
    newest = table.manifests.newest()
    needed = {file for part in newest.parts.values() for file in part.files} | {*newest.ledger}
    if dropped_before is not None:
        needed |= {file for file, since in newest.dropped.items() if since > dropped_before}
    temporary = table.folder / "_temporary"
    removed = sum(path.is_file() for path in temporary.rglob("*")) if temporary.is_dir() else 0
    shutil.rmtree(temporary, ignore_errors=True)  # left by a Spark job that died
    for path in list(_data_files(table)):
        if str(path.relative_to(table.folder)) not in needed and _must_go(path, wanted):
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _data_files(table: LakeTable) -> Iterator[Path]:
    return (path for path in table.folder.glob("date=*/**/*") if path.is_file())


def _must_go(path: Path, wanted: Wanted) -> bool:
    try:
        if readable(path):
            return holds(path, wanted)
        return time.time() - path.stat().st_mtime > HALF_MADE_S
    except FileNotFoundError:
        return False  # finished by its writer, or swept
