"""Leases of readers: while one lasts, no replaced file is removed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fairlead.model.reading import json_reader
from fairlead.pipeline import durable

_FOLDER = "_leases"


class ReaderLease(msgspec.Struct, frozen=True):
    """Lease of one reader."""

    who: str
    until: float
    """Expiry in seconds since the epoch, so that a crashed reader does not keep files for ever."""


_decode = json_reader(ReaderLease)


@contextmanager
def lease(root: Path, who: str, seconds: float) -> Iterator[ReaderLease]:
    """Keep every listed file of the lake in `root` until the block ends, for at most `seconds`. Use
    a lease for reads that take longer than the day for which replaced files stay."""
    taken = ReaderLease(who, time.time() + seconds)
    path = durable.folder(root / _FOLDER) / f"{uuid.uuid4().hex}.json"
    durable.write(path, lambda temporary: temporary.write_bytes(msgspec.json.encode(taken)))
    try:
        yield taken
    finally:
        path.unlink(missing_ok=True)


def live(root: Path) -> list[ReaderLease]:
    """Return the valid leases, and remove expired ones."""
    found = []
    for path in (root / _FOLDER).glob("*.json"):
        try:
            each = _decode(path.read_bytes())
        except (OSError, msgspec.DecodeError):
            continue
        if each.until > time.time():
            found.append(each)
        else:
            path.unlink(missing_ok=True)
    return found
