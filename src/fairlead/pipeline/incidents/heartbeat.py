"""The heartbeat of a queue: its state at an instant, and its changes since the previous heartbeat.
A relay sends heartbeats; workers and the job `incidents` make them for themselves."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fairlead.model.fields import Micros, Time

Tasks = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
"""Number of tasks or nodes, of which sums fit in 64 bits."""

HEARTBEAT_SECONDS = 2.0
"""Seconds between two heartbeats of a queue."""


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """Heartbeat of one queue of one store. Instants are microseconds since the epoch; counts are
    since the previous heartbeat of the relay."""

    store_id: str
    queue: str
    relay: str
    """Name of the relay. If two relays send heartbeats of a queue, the watch uses those of one."""
    at: Time
    """Instant by the clock of the store, or of the relay if the store has none. Alerts
    show this instant; the watch does not measure with it."""
    waits_since: Time | None = None
    """Instant at which the oldest unclaimed task became ready; None if no task waits."""
    running: Tasks | None = None
    """Tasks held by living nodes; None if not counted."""
    claimed_at: Time = 0
    """Instant of the latest claim among the running tasks."""
    stuck: Tasks | None = None
    """Running tasks past their `max_stuck`; None if not counted."""
    is_paused: bool = False
    done: Tasks = 0
    failed: Tasks = 0
    """Failed runs, not counting lost ones."""
    arrived: Tasks = 0
    keys: dict[str, Tasks] = {}
    """Arrived tasks by fairness key; of very many keys, only those with most tasks."""
    lost: dict[str, Tasks] = {}
    """Lost runs by node."""
    silent: list[str] = []
    """Nodes of the queue whose own heartbeat is overdue."""
    up: Micros = 0
    """Microseconds since the relay started, by a clock that is never set: the order of a relay's
    heartbeats and the time between them. 0: by `at`."""
    starved: list[str] = []
    """Fairness keys that got less than their share; only tables show them."""
