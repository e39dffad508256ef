"""A sign: what a queue looked like at an instant, and what happened in it since the sign before. A
relay sends them."""

from __future__ import annotations

import msgspec

SIGN_SECONDS = 2.0
"""Between two signs of a queue."""


class Sign(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one queue of one store. Instants are microseconds since 1970 UTC; counts are since the
    relay's sign before."""

    store_id: str
    queue: str
    relay: str
    """Who looked: of two relays, one is listened to."""
    at: int
    waits_since: int | None = None
    """Since when the oldest task is ready that nobody has taken; None: there is none."""
    running: int | None = None
    """Tasks held by nodes that live; None: nobody looked."""
    claimed_at: int = 0
    """When the last task was taken of those that any node holds."""
    stuck: int | None = None
    """Of those, past their greatest time."""
    is_paused: bool = False
    done: int = 0
    failed: int = 0
    """Runs that did not end well, but for lost ones."""
    arrived: int = 0
    keys: dict[str, int] = {}
    """Tasks that arrived, by fairness key; the keys that brought most, where there are very
    many."""
    lost: dict[str, int] = {}
    """Runs that were lost, by node."""
    silent: list[str] = []
    """Nodes of the queue that have stopped to beat."""


def encode(sign: Sign) -> bytes:
    """As it travels."""
    return msgspec.json.encode(sign)


_DECODER = msgspec.json.Decoder(Sign)


def decode(message: bytes | str) -> Sign:
    """Raises msgspec.DecodeError."""
    return _DECODER.decode(message)
