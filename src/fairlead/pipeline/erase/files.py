"""A table of the lake without a key: its files are made anew beside the old ones, then the manifest
lists them instead.

A reader has the rows from before or from after, never some of each. Whoever dies in between leaves
a table that has the key in fewer partitions; the next one goes on.
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
from fairlead.pipeline.lake.manifest import Manifest, Part
from fairlead.pipeline.lake.table import LakeTable

if TYPE_CHECKING:
    import pyarrow as pa

HALF_MADE_S = 600.0
"""A file written aside so long ago has nobody any more who would finish it."""


class Erased(msgspec.Struct, frozen=True):
    """What was done to one table."""

    rows: int = 0
    """Of the key, left out."""
    redacted: int = 0
    """Of others, changed because they mentioned it."""
    files: int = 0
    """Made anew."""


def erase_from(
    table: LakeTable, wanted: Wanted, trace: Trace, now: Callable[[], int], dry_run: bool = False
) -> Erased:
    """Leave the key out of every partition; with `dry_run` only count. Holds one file in memory at
    a time. Raises BrokenLake for a file that is not what it should be."""
    done = Erased()
    for name in sorted(table.manifests.newest().parts):
        while True:
            manifest = table.manifests.newest()
            if name not in manifest.parts:
                break
            found = _Partition(table, manifest, name, wanted, trace, dry_run)
            # Somebody added rows meanwhile (they have none of the key): the partition is read
            # again.
            if dry_run or not found.is_changed or found.shown(now()):
                done = Erased(
                    done.rows + found.rows, done.redacted + found.redacted, done.files + found.files
                )
                break
    return done


class _Partition:
    """One partition, with the files that had the key made anew."""

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
            # Its columns of text are read first: most files have nothing of the key.
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
        # A partition of bronze that is gone would ask for a full build; one without rows is made
        # anew by itself.
        if kept.num_rows or table.name in (ATTEMPTS.name, EVENTS.name):
            written = self._table.write_part(kept, self._name, generation, Path(file).name)
            self._after.append(written.file)

    @property
    def is_changed(self) -> bool:
        return self.files > 0

    def shown(self, now: int) -> bool:
        """Let the new files count; False when the partition is not what it was."""
        after: Part | None = None
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
    """Remove every file that does not count and has the key, or may have it: left behind by whoever
    died, half made, or dropped, of these only what was dropped up to an instant (microseconds) if
    one is given. Answers how many. No build may be under way."""
    newest = table.manifests.newest()
    needed = {file for part in newest.parts.values() for file in part.files} | {*newest.ledger}
    if dropped_before is not None:
        needed |= {file for file, since in newest.dropped.items() if since > dropped_before}
    temporary = table.folder / "_temporary"
    removed = sum(path.is_file() for path in temporary.rglob("*")) if temporary.is_dir() else 0
    shutil.rmtree(temporary, ignore_errors=True)  # of a Spark that died while it wrote
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
        return False  # its writer has finished it, or somebody sweeps
