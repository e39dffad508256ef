"""Files of a table that nobody needs: replaced a day ago, or left behind by a job that died."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from fairlead.clock import MICROS
from fairlead.pipeline.lake.table import GRACE, LakeTable

Why = Literal["replaced", "never counted", "half made"]


class Garbage(msgspec.Struct, frozen=True):
    """A file that may go."""

    table: str
    file: str
    """Below the table's folder."""
    bytes: int
    why: Why


def garbage(table: LakeTable, now: int, is_leased: bool) -> Iterator[Garbage]:
    """What may go at this instant (microseconds). While a reader has a lease only what nobody can
    ever read: half made."""
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
            told = path.stat()
        except FileNotFoundError:
            continue  # its writer has finished it, or somebody else sweeps
        since = newest.dropped.get(file)
        why: Why = "never counted" if since is None else "replaced"
        if path.name.startswith(".") or "_temporary" in path.parts:
            why = "half made"
        # By the file system's clock for files that no manifest tells of.
        age = now - since if since is not None else time.time() * MICROS - told.st_mtime * MICROS
        if age > GRACE and (why == "half made" or not is_leased):
            yield Garbage(table.table.name, file, told.st_size, why)


def remove(table: LakeTable, found: list[Garbage]) -> int:
    """Remove them, but for what has come to count since, and folders that are empty then; answers
    how many files."""
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
            continue  # there is something in it
    table.manifests.forget()
    return len(gone)
