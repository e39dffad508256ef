"""The outages of one Redis, as the parts of a node meet them: one log line for each outage, and
pauses that grow."""

from __future__ import annotations

import logging
import random

log = logging.getLogger("fairlead.redis")

SHORTEST, LONGEST = 0.1, 1.0
"""Seconds of the first and the last pauses before a part tries Redis again."""


class Outage:
    """The state of Redis as the parts of one node see it. One outage meets every part, so only the
    first of them logs its cause."""

    def __init__(self, location: str) -> None:
        """`location`: the URL for people, without secrets."""
        self._location = location
        self._failing: dict[str, int] = {}
        """Failures in a row of each part, by its name."""
        self._told: set[str] = set()

    def failed(self, part: str, error: Exception) -> float:
        """Note a failure; return the seconds until the next try of this part.

        The pause doubles with each failure in a row, and is random, so that not all nodes try at
        once."""
        count = self._failing[part] = self._failing.get(part, 0) + 1
        if (text := str(error)) not in self._told:
            self._told.add(text)
            log.warning("waiting for Redis", extra={"redis": self._location, "error": text})
        longest = min(LONGEST, SHORTEST * 2.0 ** min(count, 10))
        return random.uniform(longest / 2, longest)

    def worked(self, part: str) -> None:
        """Note a success, which ends the outage if no other part still fails."""
        if self._failing.pop(part, 0) and not self._failing:
            self._told.clear()
            log.info("Redis works again", extra={"redis": self._location})
