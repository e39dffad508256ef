"""The callback of an application that is called with its incidents."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from fairlead.errors import ConfigurationError
from fairlead.model import Incident

OnIncident = Callable[[Incident], Awaitable[None] | None]
"""A function, which is called in a thread, or an `async def`, whose coroutine runs on the event
loop of the node."""

INCIDENT_TIMEOUT = 30.0
"""Seconds that one call of `on_incident` may take, unless the application sets another number."""


def checked_timeout(seconds: float) -> float:
    """Return `seconds`. Raise ConfigurationError unless it is a finite number above 0."""
    if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ConfigurationError(
            f"incident_timeout={seconds!r}: use a number of seconds above 0, such as 30"
        )
    return seconds
