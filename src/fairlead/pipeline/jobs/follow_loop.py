"""Follows a stream: another query whenever one has ended, for as long as somebody wants it."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable

from fairlead import errors
from fairlead.errors import FairleadError, StoreUnavailable
from fairlead.pipeline import errors as pipeline_errors

log = logging.getLogger("fairlead.stream")

MOST_FAILURES = 5
"""In a row, of Spark itself: a process of its that did not start in time, on a machine without
time."""

LONGEST_PAUSE = 60.0
"""Seconds between two tries."""

_OURS = re.compile(r"fairlead\.(?:pipeline\.)?errors\.(\w+): (.+)")

Query = Callable[[Callable[[], None]], None]
"""Runs one query until it ends, fails or is told to stop; calls what it is given for each batch
that came through."""


def follow(query: Query, stops: threading.Event, pause: float, what: str) -> None:
    """Until `stops` is set. While Kafka, a store or a lake is away it tries for as long as that
    takes, after `pause` seconds and ever longer; what Spark itself fails by, a few times. `what` is
    told of it, in words. Raises what is left, our own error if there is one behind it."""
    tries, failures, trouble = 0, 0, ""

    def came_through() -> None:
        nonlocal tries, failures, trouble
        tries, failures, trouble = 0, 0, ""

    while not stops.is_set():
        try:
            query(came_through)
        except Exception as error:
            failure = error if isinstance(error, FairleadError) else told_by(error)
            tries += 1
            failures += failure is None
            is_away = isinstance(failure, StoreUnavailable)
            if not is_away and (failure is not None or failures > MOST_FAILURES):
                raise failure or error from None
            told = str(failure or error).partition("\n")[0]
            if told != trouble:
                trouble = told
                log.warning(what, extra={"error": told})
            stops.wait(min(LONGEST_PAUSE, pause * tries))


def told_by(error: Exception) -> FairleadError | None:
    """Our own error behind what Spark says of a process of its: None when there is none."""
    found = _OURS.findall(str(error))
    if not found:
        return None
    name, text = found[-1]
    kind = getattr(errors, name, None) or getattr(pipeline_errors, name, None)
    return (
        kind(text.strip()) if isinstance(kind, type) and issubclass(kind, FairleadError) else None
    )
