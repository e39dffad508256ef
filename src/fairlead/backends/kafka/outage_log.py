"""The log of Kafka's outages: one line for many equal reports."""

from __future__ import annotations

import logging
import time

log = logging.getLogger("fairlead.kafka")


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
