"""The lock of the writers of one SQLite file, which the kernel hands on at once.

SQLite's own lock is waited for by sleeping, longer each time; with two busy writers most of the
time goes into that. Here a writer takes this lock first, so SQLite's is free when it comes to it.
SQLite still keeps apart the writers that do not know this lock. A process that dies releases it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # no such locks here: SQLite's own are enough, only slower
    fcntl = None  # type: ignore[assignment]


class WriterLock:
    """The right to write to one file, kept in a file `<name>-turn` beside it."""

    def __init__(self, path: Path) -> None:
        self._path = f"{path}-turn"
        self._descriptors: deque[int] = deque()
        self._pid = os.getpid()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the lock, and release it at the end of the block."""
        descriptor = self.acquire()
        try:
            yield
        finally:
            self.release(descriptor)

    def acquire(self, wait: bool = True) -> int | None:
        """Take the lock; return what `release` needs, or None, with `wait=False`, when another
        writer has it."""
        if fcntl is None:
            return -1
        descriptor = self._descriptor()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._descriptors.append(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def release(self, descriptor: int | None) -> None:
        """Give the lock back, if it was acquired."""
        if fcntl is None or descriptor is None:
            return
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        self._descriptors.append(descriptor)

    def close(self) -> None:
        """Close what is open."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _descriptor(self) -> int:
        if self._pid != os.getpid():
            # After a fork these are the parent's locks too: a lock of one's own needs a file opened
            # anew.
            self.close()
            self._pid = os.getpid()
        try:
            return self._descriptors.pop()
        except IndexError:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
