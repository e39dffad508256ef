"""Log lines and incidents about writes that the store refuses alone."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.clock import MICROS, Clock
from fairlead.core.batches import LONGEST_PAUSE, Refusal
from fairlead.model import IncidentKind, IncidentReport

REPEAT_SECONDS = 60.0
"""Seconds between two log lines about errors of one type, and between two rounds of incidents."""

REPORT_AFTER = 3
"""Refusals of one entry, with other entries accepted meanwhile, from which it is an incident."""

MOST_REPORTED = 100
"""Incidents of one round; further entries are only counted in their details."""

_CURE = (
    "correct what the error names, such as a trigger or constraint of your own on Fairlead's tables"
    " or a limit of the server. The task, and later {waits}, wait until then; all others continue."
    f" The write is tried again at least every {LONGEST_PAUSE:.0f} s"
)


class RefusedWrites:
    """Log refusals once a minute, and report the lasting ones as incidents."""

    def __init__(
        self,
        what: str,
        log: logging.Logger,
        clock: Clock,
        on_incidents: Callable[[Sequence[IncidentReport]], None],
        waits: str = "tasks of its ordering key",
    ) -> None:
        """`what`: the kind of write, such as "completion". `waits`: what waits for the refused
        write."""
        self._what = what
        self._cure = _CURE.replace("{waits}", waits)
        self._log = log
        self._clock = clock
        self._on_incidents = on_incidents
        self._log_at: dict[str, float] = {}
        """Monotonic seconds from which an error is logged again, by its kind."""
        self._round_ends = -math.inf
        """Monotonic seconds at which the present round of incidents ends."""
        self._reported = 0
        """Incidents of the present round."""

    def on_too_large(self, count: int, error: Exception) -> None:
        """Log that the limits of the server refuse a batch of this size."""
        if self._is_logged_now("a batch"):
            self._log.warning(
                f"the server refuses a batch of this size ({self._what}); writing smaller ones",
                extra={"refused": count, "error": str(error)},
            )

    def on_refused(
        self,
        refusal: Refusal[Any],
        is_alone: bool,
        count: int,
        task_id: str,
        queue: str,
        name: str,
    ) -> None:
        """Tell people of a refusal. `is_alone`: whether the store has accepted others since the
        first refusal. `count`: number of refused entries."""
        error, now = error_line(refusal.error), self._clock.monotonic()
        kind = type(refusal.error).__qualname__
        if self._is_logged_now(kind):
            self._log.error(
                f"the store refuses a {self._what}; it is tried again, and all others are written",
                extra={
                    "task_id": task_id,
                    "task_name": name,
                    "queue": queue,
                    "error": error,
                    "refused": count,
                    "cure": self._cure,
                },
            )
        if now >= self._round_ends:
            self._round_ends, self._reported = now + REPEAT_SECONDS, 0
        if is_alone and refusal.times >= REPORT_AFTER and self._reported < MOST_REPORTED:
            self._reported += 1
            more = f"; and {count - 1} more on this node" if count > 1 else ""
            since = self._clock.now() - round((now - refusal.since) * MICROS)
            self._on_incidents(
                [
                    IncidentReport(
                        kind=IncidentKind.WRITE_REFUSED,
                        subject=task_id,
                        details=f"the store refuses a {self._what} ({error}); {self._cure}{more}",
                        since=since,
                        queue=queue,
                        name=name,
                    )
                ]
            )

    def _is_logged_now(self, kind: str) -> bool:
        """Return whether a line about this kind of refusal is due."""
        now = self._clock.monotonic()
        if now < self._log_at.get(kind, -math.inf):
            return False
        self._log_at[kind] = now + REPEAT_SECONDS
        return True


def error_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its text, without the values of rows."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:500]}"
