"""The write-ahead log of a SQLite file, flushed to the disk apart from the commit.

SQLite with `synchronous=FULL` flushes its log inside the commit, while it holds the lock of the
file, so all other writers wait for the disk. Here connections commit with `synchronous=NORMAL`,
which writes the log without a flush and keeps the file consistent after a power cut. The writer
then releases the lock, flushes the log, and only then acknowledges its transaction. A flush covers
all transactions committed before it. A checkpoint flushes the log before it copies pages.

Sources: "PRAGMA synchronous" and "Write-Ahead Logging" in the documentation of SQLite; the group
commit of PostgreSQL.
"""

from __future__ import annotations

import os
import sqlite3

from fairlead.core import values

_sync = getattr(os, "fdatasync", os.fsync)  # not every system has fdatasync


class WalFile:
    """The `-wal` file beside a database file; it exists while a connection is open."""

    def __init__(self, synchronous: str) -> None:
        """`synchronous`: see `SqliteDatabase`. Raise ConfigurationError for another value."""
        level = values.one_of("synchronous", synchronous.upper(), "OFF", "NORMAL", "FULL", "EXTRA")
        self._is_flushed = level in ("FULL", "EXTRA")
        self.in_commit = "NORMAL" if self._is_flushed else level
        """Value of the pragma `synchronous` of each connection."""
        self._path: str | None = None

    def find(self, connection: sqlite3.Connection) -> None:
        """Learn the path of the log from an open connection, which has followed symbolic links."""
        if self._path is None:
            _, _, database = connection.execute("PRAGMA database_list").fetchone()
            self._path = f"{database}-wal"

    def flush(self) -> None:
        """Write all committed transactions to the disk. Raise OSError if that fails."""
        if not self._is_flushed:
            return
        assert self._path is not None, "no connection was opened"
        descriptor = os.open(self._path, os.O_RDWR)
        try:
            _sync(descriptor)
        finally:
            os.close(descriptor)
