"""One job at a time may change what was built; the others are refused."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from fairlead.errors import NotAllowed
from fairlead.pipeline.lake.lake import Lake


@contextmanager
def alone(lake: Lake) -> Iterator[None]:
    """Held by builds, and by whoever removes something. Raises NotAllowed while somebody else holds
    it; whoever dies lets go."""
    with (lake.root / "_build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NotAllowed(
                f"another build of {lake.root} is under way, or a job that removes something: wait"
                " for it to end"
            ) from None
        yield
