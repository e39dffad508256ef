"""The heartbeat of a queue, which a relay sends: its state at an instant, and its changes since the
previous heartbeat."""

from __future__ import annotations

import msgspec

HEARTBEAT_SECONDS = 2.0
"""Seconds between two heartbeats of a queue."""


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """Heartbeat of one queue of one store. Instants are microseconds since the epoch; counts are
    since the previous heartbeat of the relay."""

    store_id: str
    queue: str
    relay: str
    """Name of the relay. If two relays send heartbeats of a queue, the watch uses those of one."""
    at: int
    """Instant by the clock of the store, or of the relay if the store has none. Alerts
    show this instant; the watch does not measure with it."""
    waits_since: int | None = None
    """Instant at which the oldest unclaimed task became ready; None if no task waits."""
    running: int | None = None
    """Tasks held by living nodes; None if not counted."""
    claimed_at: int = 0
    """Instant of the latest claim among the running tasks."""
    stuck: int | None = None
    """Running tasks past their `max_stuck`; None if not counted."""
    is_paused: bool = False
    done: int = 0
    failed: int = 0
    """Failed runs, not counting lost ones."""
    arrived: int = 0
    keys: dict[str, int] = {}
    """Arrived tasks by fairness key; of very many keys, only those with most tasks."""
    lost: dict[str, int] = {}
    """Lost runs by node."""
    silent: list[str] = []
    """Nodes of the queue whose own heartbeat is overdue."""
    up: int = 0
    """Microseconds since the relay started, by a clock that is never set: the order of a relay's
    heartbeats and the time between them. 0: the relay has an earlier version."""


def encode(heartbeat: Heartbeat) -> bytes:
    """Return the message of the heartbeat."""
    return msgspec.json.encode(heartbeat)


_DECODER = msgspec.json.Decoder(Heartbeat)


def decode(message: bytes | str) -> Heartbeat:
    """Return the heartbeat of a message. Raise msgspec.DecodeError."""
    return _DECODER.decode(message)
