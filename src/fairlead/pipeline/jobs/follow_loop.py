"""Follow loop of a stream: starts a new query whenever one ends, until stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from fairlead.errors import StoreUnavailable
from fairlead.pipeline.errors import fairlead_error

log = logging.getLogger("fairlead.stream")

MOST_FAILURES = 5
"""Maximum number of consecutive failures of Spark itself that are retried. An example is a process
that does not start in time on a busy machine."""

LONGEST_PAUSE = 60.0
"""Longest pause between two tries, in seconds."""

Query = Callable[[Callable[[], None]], None]
"""Function that runs one query until it ends, fails or is stopped, and calls its argument for each
completed batch."""


def follow(query: Query, stops: threading.Event, pause: float, what: str) -> None:
    """Run queries until `stops` is set.

    An outage of Kafka, a store or a lake is retried without limit, with pauses that grow from
    `pause` to LONGEST_PAUSE seconds. A failure of Spark itself is retried MOST_FAILURES times.
    `what` is the log message for both. Raise any other error, or the FairleadError that caused
    it.
    """
    tries, failures, outage = 0, 0, ""

    def on_batch() -> None:
        nonlocal tries, failures, outage
        tries, failures, outage = 0, 0, ""

    while not stops.is_set():
        try:
            query(on_batch)
        except Exception as error:
            failure = fairlead_error(error)
            tries += 1
            failures += failure is None
            is_outage = isinstance(failure, StoreUnavailable)
            if not is_outage and (failure is not None or failures > MOST_FAILURES):
                raise failure or error from None
            text = str(failure or error).partition("\n")[0]
            if text != outage:
                outage = text
                log.warning(what, extra={"error": text})
            stops.wait(min(LONGEST_PAUSE, pause * tries))
