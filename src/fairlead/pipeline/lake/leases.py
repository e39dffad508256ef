"""Leases of readers: while one lasts, nothing that was replaced is removed, however long ago that
was."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fairlead.pipeline.lake import durable

_FOLDER = "_leases"


class Lease(msgspec.Struct, frozen=True):
    """Somebody reads."""

    who: str
    until: float
    """Seconds since 1970. A reader that died keeps files no longer than this."""


@contextmanager
def lease(root: Path, who: str, seconds: float) -> Iterator[Lease]:
    """Keep every file that the lake in `root` lists now, for so many seconds at most, or until the
    block ends. For readers that take longer than the day for which files stay anyway."""
    taken = Lease(who, time.time() + seconds)
    path = durable.folder(root / _FOLDER) / f"{uuid.uuid4().hex}.json"
    durable.write(path, lambda aside: aside.write_bytes(msgspec.json.encode(taken)))
    try:
        yield taken
    finally:
        path.unlink(missing_ok=True)


def live(root: Path) -> list[Lease]:
    """The leases that last; those that ended are removed."""
    found = []
    for path in (root / _FOLDER).glob("*.json"):
        try:
            each = msgspec.json.decode(path.read_bytes(), type=Lease)
        except (OSError, msgspec.DecodeError):
            continue
        if each.until > time.time():
            found.append(each)
        else:
            path.unlink(missing_ok=True)
    return found
