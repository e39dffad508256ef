"""Task ids: UUIDv7 in ascending order within a process, made in blocks. Source: RFC 9562."""

from __future__ import annotations

import hashlib
import os
import threading
from functools import lru_cache

from fairlead.forks import free_when_forked

_VERSION = 7 << 76
_VARIANT = 2 << 62
_RANDOM_BITS = 74  # all bits except time, version and variant (RFC 9562)
_LOW_BITS = 62
_LOW_MASK = (1 << _LOW_BITS) - 1
_NODE_MASK = (1 << 48) - 1


class IdSource:
    """A monotonic source of UUIDv7 (RFC 9562, section 6.2, method 2: a random start, then
    increments). Thread-safe."""

    def __init__(self) -> None:
        self._lock = free_when_forked(threading.Lock())
        self._millis = 0
        self._random = 0
        self._pid = 0

    def block(self, count: int, now: int) -> list[int]:
        """Return `count` ids as 128-bit integers in ascending order, greater than all ids of
        earlier blocks. `now`: microseconds since the epoch."""
        with self._lock:
            millis = max(now // 1000, self._millis)
            if millis > self._millis or os.getpid() != self._pid:
                self._start(millis)
            first = self._random + 1
            self._random += count
            # About once in millions of blocks the random part overflows; then use the next
            # millisecond.
            if self._random >> _RANDOM_BITS:
                self._start(millis + 1)
                first = self._random + 1
                self._random += count
            head = (self._millis << 80) | _VERSION | _VARIANT
            if first >> _LOW_BITS == (first + count) >> _LOW_BITS:
                head |= (first >> _LOW_BITS) << 64
                low = first & _LOW_MASK
                return list(range(head + low, head + low + count))
            return [
                head | ((r >> _LOW_BITS) << 64) | (r & _LOW_MASK)
                for r in range(first, first + count)
            ]

    def _start(self, millis: int) -> None:
        self._millis = millis
        self._pid = os.getpid()  # a forked child must not repeat its parent's ids
        # The top bit starts at 0, so that blocks can grow within the millisecond.
        self._random = int.from_bytes(os.urandom(10)) >> (80 - _RANDOM_BITS + 1)


def id_of(name: str, at: int) -> int:
    """Return the id of what has this name at this instant (microseconds since the epoch): the same
    one on every machine. Its random bits are a hash of the name."""
    digest = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=10).digest())
    random = digest >> (80 - _RANDOM_BITS)
    head = (max(at, 0) // 1000 << 80) | _VERSION | _VARIANT
    return head | (random >> _LOW_BITS) << 64 | random & _LOW_MASK


def id_text(value: int) -> str:
    """Return the canonical 36 characters of a 128-bit id."""
    return f"{_head_text(value >> 48)}-{value & _NODE_MASK:012x}"


@lru_cache(maxsize=64)
def _head_text(head: int) -> str:
    """Return the first four groups of an id, which the ids of one block share."""
    digits = f"{head:020x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:]}"
