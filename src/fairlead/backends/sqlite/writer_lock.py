"""A lock for the writers of one SQLite file, which the kernel passes on at once.

SQLite waits for its own lock by sleeping, longer each time; two busy writers lose most of their
time that way. A writer that takes this lock first finds SQLite's lock free. SQLite's lock still
separates writers that do not use this one. The kernel releases the lock of a process that dies.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path

from fairlead.backends.sqlite.file_modes import open_beside
from fairlead.forks import drop_when_forked, taken_to_fork

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
        # At a fork no thread may be inside a transaction: to SQLite in the child, it never ends.
        self._in_process = taken_to_fork(threading.Lock())
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
        if not self._in_process.acquire(wait):
            return None
        descriptor = None
        try:
            descriptor = self._descriptor()
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            self._in_process.release()
            if descriptor is not None:
                self._close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return descriptor

    def release(self, descriptor: int | None) -> None:
        """Release the lock, if `descriptor` is not None."""
        if descriptor not in self._open:  # also after a fork while it was held
            return
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        self._descriptors.append(descriptor)
        self._in_process.release()

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
