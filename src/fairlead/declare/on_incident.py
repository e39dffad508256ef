"""The callback of an application that is called with its incidents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fairlead.core import values
from fairlead.model import Incident

OnIncident = Callable[[Incident], Awaitable[None] | None]
"""A function, which is called in a thread, or an `async def`, whose coroutine runs on the event
loop of the node."""

INCIDENT_TIMEOUT = 30.0
"""Seconds that one call of `on_incident` may take, unless the application sets another number."""


def checked_timeout(seconds: float) -> float:
    """Return `seconds`. Raise ConfigurationError unless it is a finite number above 0."""
    return values.seconds("incident_timeout", seconds)
