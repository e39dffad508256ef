"""Permissions of a SQLite file and of the files beside it. The umask decides who may write the
database; whoever may, may also use the files beside it, and nobody else."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from fairlead.data_folder import check_folder

_BESIDE = ("-wal", "-shm", "-journal", "-writer", "-notifiers", "-nodes")
"""Endings of the files and folders beside a database."""


def check_place(path: Path) -> None:
    """Raise ConfigurationError if other users may replace the database or a file beside it."""
    check_folder("SQLite file", path, [f"{path.name}{ending}" for ending in _BESIDE])


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
    set_permissions(database, descriptor)
    return descriptor


def make_folder(database: Path, folder: Path) -> None:
    """Make a folder beside the database, unless there is one. Raise OSError."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        set_permissions(database, folder, enter=True)


def set_permissions(database: Path, new: Path | int, enter: bool = False) -> None:
    """Let all who may write the database read and write a new file, given by its path or
    descriptor, or a new folder, which they may `enter`. It stays its owner's alone if there is no
    database yet, or if the file system has no permissions."""
    with suppress(OSError):
        mode = os.stat(database).st_mode
        others = ((stat.S_IWGRP, 0o070), (stat.S_IWOTH, 0o007))
        allowed = 0o700 | sum(all_ for write, all_ in others if mode & write)
        os.chmod(new, allowed if enter else allowed & 0o666)
