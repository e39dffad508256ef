"""Erasing a key from a table of the lake: write new files beside the old ones, then list them in
the manifest.

A reader sees all rows before the change or all rows after it. After a crash some partitions still
have the key, and the next run erases it from them.
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
from fairlead.pipeline.definitions.failures import FAILURES
from fairlead.pipeline.erase.rows import without
from fairlead.pipeline.erase.trace import Trace
from fairlead.pipeline.erase.verify import has_key, readable
from fairlead.pipeline.erase.wanted import Wanted
from fairlead.pipeline.lake import ledger
from fairlead.pipeline.lake.manifest import Manifest, TablePart
from fairlead.pipeline.lake.table import LakeTable

if TYPE_CHECKING:
    import pyarrow as pa

ABANDONED_AFTER_S = 600.0
"""Seconds without a change after which an incomplete file is taken to have no writer."""


class Erased(msgspec.Struct, frozen=True):
    """Result for one table."""

    rows: int = 0
    """Number of erased rows of the key."""
    redacted: int = 0
    """Rows of other keys in which a mention of the key was replaced."""
    files: int = 0
    """Number of rewritten files."""


def erase_from(
    table: LakeTable, wanted: Wanted, trace: Trace, now: Callable[[], int], dry_run: bool = False
) -> Erased:
    """Erase the key from every partition; with `dry_run`, only count what it would erase. Load one
    file into memory at a time. Raise BrokenLake for a damaged file."""
    done = Erased()
    for name in sorted(table.manifests.newest().parts):
        while True:
            manifest = table.manifests.newest()
            if name not in manifest.parts:
                break
            found = _ErasedPartition(table, manifest, name, wanted, trace, dry_run)
            # `publish` fails if another process has added rows meanwhile: read the partition again.
            if dry_run or not found.is_changed or found.publish(now()):
                done = Erased(
                    done.rows + found.rows, done.redacted + found.redacted, done.files + found.files
                )
                break
    return done


class _ErasedPartition:
    """A partition without the key: the new files, and the old files that did not have the key."""

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
            # Most files do not have the key, so read only their text columns.
            if table.table.name != FAILURES.name and not has_key(table.folder / file, wanted):
                self._after.append(file)
                continue
            rows = self._load(file)
            to_clear = trace.may_quote(rows) if table.table.name == FAILURES.name else None
            found = without(table.table, rows, wanted, to_clear)
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
        one_file = Manifest(parts={self._name: msgspec.structs.replace(self._before, files=[file])})
        return self._table.load(one_file)

    def _rewrite(self, file: str, kept: pa.Table, erased: pa.Table, generation: str) -> None:
        table = self._table.table
        if table.name == ATTEMPTS.name:
            self._ledger += ledger.write(self._table, erased)
        # Keep an empty partition of bronze: the next build rebuilds it alone. A missing one would
        # require a full build.
        if kept.num_rows or table.name in (ATTEMPTS.name, EVENTS.name):
            written = self._table.write_part(kept, self._name, generation, Path(file).name)
            self._after.append(written.file)

    @property
    def is_changed(self) -> bool:
        return self.files > 0

    def publish(self, now: int) -> bool:
        """List the new files in the manifest. Return False if the partition changed after this
        object read it."""
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
    """Remove files that the manifest does not list and that have the key, and incomplete files
    without a writer. Return the number of removed files. No build may be running.

    dropped_before: keep files that the manifest dropped after this instant, in microseconds since
    the epoch.
    """
    newest = table.manifests.newest()
    needed = {file for part in newest.parts.values() for file in part.files} | {*newest.ledger}
    if dropped_before is not None:
        needed |= {file for file, since in newest.dropped.items() if since > dropped_before}
    temporary = table.folder / "_temporary"
    removed = sum(path.is_file() for path in temporary.rglob("*")) if temporary.is_dir() else 0
    shutil.rmtree(temporary, ignore_errors=True)  # left by a Spark job that died
    for path in list(_data_files(table)):
        if str(path.relative_to(table.folder)) not in needed and _is_to_remove(path, wanted):
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _data_files(table: LakeTable) -> Iterator[Path]:
    return (path for path in table.folder.glob("date=*/**/*") if path.is_file())


def _is_to_remove(path: Path, wanted: Wanted) -> bool:
    try:
        if readable(path):
            return has_key(path, wanted)
        return time.time() - path.stat().st_mtime > ABANDONED_AFTER_S
    except FileNotFoundError:
        return False  # its writer renamed it, or `gc` removed it
