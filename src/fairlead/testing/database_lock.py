"""Lock of the database of a test, so that no other process empties it meanwhile."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.errors import ConfigurationError
from fairlead.urls import file_of, shown_url

try:
    import fcntl
except ImportError:  # no locks here, so only one process may test on a database
    fcntl = None  # type: ignore[assignment]

_locked: set[str] = set()
"""Databases that this process has locked."""


@contextmanager
def alone(url: str) -> Iterator[None]:
    """Lock the database during the block, because a kit of another process would empty it. The lock
    is a file of this machine, and ends with the process. Raise ConfigurationError if another
    process has it."""
    place = str(file_of(url) or url)
    if fcntl is None or place in _locked:
        yield
        return
    digest = hashlib.sha256(place.encode()).hexdigest()[:32]
    file = Path(tempfile.gettempdir(), f"fairlead-kit-{os.getuid()}-{digest}")
    descriptor = _lock(file, url)
    _locked.add(place)
    try:
        yield
    finally:
        _locked.discard(place)
        file.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(file: Path, url: str) -> int:
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if file.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigurationError(
                f"{shown_url(url)} belongs to a test of another process now, and this one would"
                " delete its tasks: give each process, also each worker of pytest-xdist, a database"
                " of its own"
            ) from None
        except FileNotFoundError:
            pass
        os.close(descriptor)  # the other process has just removed the file
