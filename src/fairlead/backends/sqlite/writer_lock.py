"""A lock for the writers of one SQLite file, which the kernel passes on at once.

SQLite waits for its own lock by sleeping, longer each time; two busy writers lose most of their
time that way. A writer that takes this lock first finds SQLite's lock free. SQLite's lock still
separates writers that do not use this one. The kernel releases the lock of a process that dies.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from fairlead.backends.sqlite.file_modes import open_beside
from fairlead.forks import drop_when_forked

try:
    import fcntl
except ImportError:  # without such locks, SQLite's own is enough, only slower
    fcntl = None  # type: ignore[assignment]


class WriterLock:
    """A lock on the file `<name>-writer` beside a database file."""

    def __init__(self, path: Path) -> None:
        self._database = path
        self._path = f"{path}-writer"
        self._descriptors: deque[int] = deque()
        self._open: set[int] = set()
        """All open descriptors, also those that hold the lock."""
        drop_when_forked(self)

    def after_fork(self) -> None:
        # Otherwise the lock would stay held while this process lives, although the parent died.
        for descriptor in self._open:
            os.close(descriptor)
        self._descriptors.clear()
        self._open.clear()

    def acquire(self, wait: bool = True) -> int | None:
        """Take the lock and return a handle for `release`.

        With `wait=False`, return None if another writer holds the lock.
        """
        if fcntl is None:
            return -1
        descriptor = self._descriptor()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._descriptors.append(descriptor)
            return None
        except BaseException:
            self._close(descriptor)
            raise
        return descriptor

    def release(self, descriptor: int | None) -> None:
        """Release the lock, if `descriptor` is not None."""
        if descriptor not in self._open:  # also after a fork while it was held
            return
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        self._descriptors.append(descriptor)

    def close(self) -> None:
        """Close all open descriptors."""
        while self._descriptors:
            self._close(self._descriptors.pop())

    def _close(self, descriptor: int) -> None:
        self._open.discard(descriptor)
        os.close(descriptor)

    def _descriptor(self) -> int:
        try:
            return self._descriptors.pop()
        except IndexError:
            descriptor = open_beside(self._database, self._path)
            self._open.add(descriptor)
            return descriptor
