"""The lock of a lake: one job at a time changes built tables, and others are refused."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from fairlead.errors import NotAllowed
from fairlead.pipeline.lake.lake import Lake


@contextmanager
def alone(lake: Lake, wait: bool = False) -> Iterator[None]:
    """Hold the lock during a build or removal. Raise NotAllowed while another process holds the
    lock, or with `wait`, wait for its release; a crash releases the lock."""
    with (lake.root / "_build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            raise NotAllowed(
                f"another build of {lake.root} is under way, or a job that removes something: wait"
                " for it to end"
            ) from None
        yield
