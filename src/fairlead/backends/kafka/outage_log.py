"""The log of Kafka's outages: one line for many equal reports."""

from __future__ import annotations

import logging
import time

from confluent_kafka import ThrottleEvent

log = logging.getLogger("fairlead.kafka")

THROTTLE_WARN_EVERY = 300.0
"""Seconds between two warnings of a client about a quota."""


class KafkaOutageLog:
    """Warn of an outage without repeating the warning many times a second.

    Reports may come from any thread.
    """

    def __init__(self, warning: str, about: dict[str, str], every: float | None = None) -> None:
        """`warning`: the line's text. `about`: the line's fields beside `error`. `every`: seconds
        between two lines, whatever their error; None means a line whenever the error changes."""
        self._warning = warning
        self._about = about
        self._every = every
        self._last_error = ""
        self._warned_at = float("-inf")

    def report(self, error: str) -> None:
        """Log the error, unless it was logged just now."""
        now = time.monotonic()
        if self._every is None:
            is_due = error != self._last_error
        else:  # librdkafka reports one broker after another, each with its own text
            is_due = now - self._warned_at >= self._every
        if is_due:
            self._last_error, self._warned_at = error, now
            log.warning(self._warning, extra={**self._about, "error": error})


class ThrottleLog:
    """The `throttle_cb` of a client: warn that a quota slows the client down, at most every
    THROTTLE_WARN_EVERY seconds."""

    def __init__(self, about: dict[str, str]) -> None:
        """`about`: the line's fields beside `error`."""
        warning = "Kafka slows this client down: raise its quota"
        self._outages = KafkaOutageLog(warning, about, THROTTLE_WARN_EVERY)

    def __call__(self, event: ThrottleEvent) -> None:
        """Note a response that came late because of a quota."""
        if event.throttle_time > 0:
            seconds = f"{event.throttle_time:g} s for a response of broker {event.broker_id}"
            self._outages.report(seconds)
