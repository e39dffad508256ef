"""Whose turn it is to write to a file: a lock that the kernel hands on at once.

SQLite's own lock is waited for by sleeping, longer each time; with two busy writers most of the
time goes into that. Here a writer takes its turn first, so SQLite's lock is free when it comes to
it. Writers that know nothing of turns are still kept apart by SQLite. A process that dies gives its
turn back.
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


class Turn:
    """The turn to write to one file, kept in a file `<name>-turn` beside it."""

    def __init__(self, path: Path) -> None:
        self._path = f"{path}-turn"
        self._descriptors: deque[int] = deque()
        self._pid = os.getpid()

    @contextmanager
    def take(self) -> Iterator[None]:
        """Wait for the turn, and give it back at the end of the block."""
        descriptor = self.begin()
        try:
            yield
        finally:
            self.end(descriptor)

    def begin(self, wait: bool = True) -> int | None:
        """Take the turn; answers what `end` needs. None, with `wait=False`, when it is
        another's."""
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

    def end(self, descriptor: int | None) -> None:
        """Give the turn back."""
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
