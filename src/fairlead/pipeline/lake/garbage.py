"""Files of a table that no reader needs: replaced at least a day ago, or left by a crashed job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from fairlead.clock import MICROS
from fairlead.pipeline.lake.table import GRACE, LakeTable

Why = Literal["replaced", "unlisted", "incomplete"]


class Garbage(msgspec.Struct, frozen=True):
    """A file to remove."""

    table: str
    file: str
    """Path below the table's folder."""
    bytes: int
    why: Why


def garbage(table: LakeTable, now: int, is_leased: bool) -> Iterator[Garbage]:
    """Yield the files to remove at this instant (microseconds). While a reader has a lease, yield
    only incomplete files."""
    newest = table.manifests.newest()
    listed = {file for part in newest.parts.values() for file in part.files} | {*newest.ledger}
    for path in sorted(table.folder.rglob("*")):
        file = str(path.relative_to(table.folder))
        if file in listed or (
            path.parent == table.manifests.folder and not path.name.startswith(".")
        ):
            continue
        try:
            if not path.is_file():
                continue
            status = path.stat()
        except FileNotFoundError:
            continue  # finished by its writer, or swept
        since = newest.dropped.get(file)
        why: Why = "unlisted" if since is None else "replaced"
        if path.name.startswith(".") or "_temporary" in path.parts:
            why = "incomplete"
        # Use the file system's clock for files that no manifest lists.
        age = now - since if since is not None else time.time() * MICROS - status.st_mtime * MICROS
        if age > GRACE and (why == "incomplete" or not is_leased):
            yield Garbage(table.table.name, file, status.st_size, why)


def remove(table: LakeTable, found: list[Garbage]) -> int:
    """Remove the files that are still unlisted, and then empty folders; return the number of
    files."""
    newest = table.manifests.newest()
    listed = {file for part in newest.parts.values() for file in part.files} | {*newest.ledger}
    gone = [each.file for each in found if each.file not in listed]
    for file in gone:
        (table.folder / file).unlink(missing_ok=True)
    for folder in sorted(
        {parent for file in gone for parent in Path(file).parents if str(parent) != "."},
        reverse=True,
    ):
        try:
            (table.folder / folder).rmdir()
        except OSError:
            continue  # not empty
    table.manifests.drop_superseded()
    return len(gone)
