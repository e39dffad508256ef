"""Permissions of a SQLite file and of the files beside it. The umask decides who may write the
database; whoever may, may also use the files beside it, and nobody else."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


def create_database(path: Path) -> None:
    """Create an empty file with the permissions of the umask, unless there is one. SQLite alone
    would never let a group write. If that is impossible, the error is that of SQLite's open."""
    with suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))


def open_beside(database: Path, path: str) -> int:
    """Open a file beside the database for reading and writing, and return its descriptor. Create it
    if there is none. Raise OSError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, of_writers(database))
    return descriptor


def make_folder(database: Path, folder: Path) -> None:
    """Make a folder beside the database, unless there is one. Raise OSError."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        mode = of_writers(database)
        folder.chmod(mode | (mode & 0o444) >> 2)  # whoever may read a folder may enter it


def of_writers(database: Path) -> int:
    """Return the permissions of a file for all who may write the database, or for its owner alone
    if there is no database yet. Raise OSError."""
    try:
        mode = os.stat(database).st_mode
    except FileNotFoundError:
        return 0o600
    writers = ((stat.S_IWGRP, 0o060), (stat.S_IWOTH, 0o006))
    return 0o600 | sum(both for write, both in writers if mode & write)
