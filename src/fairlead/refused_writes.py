"""Log lines and incidents about writes that the store refuses alone."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence

from fairlead.clock import Clock
from fairlead.model import INCIDENT_REPORTED, IncidentKind, IncidentReport

REPEAT_SECONDS = 60.0
"""Seconds between two log lines about errors of one type."""

MOST_REPORTED = 100
"""Refused entries that are incidents; further ones are only counted in the log."""

_CURE = (
    "correct what the error names, such as a trigger or constraint of your own on Fairlead's tables"
    " or a limit of the server. The task, and later {waits}, wait until then; all others continue."
    " The write is tried again"
)


class RefusedWrites:
    """Log refusals once a minute, and report them as incidents."""

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
        self._reports: dict[str, IncidentReport] = {}
        """The last report of each entry that is an incident, by task id."""
        self._report_at = -math.inf
        """Monotonic seconds from which all of them are reported again: the next try of one of many
        entries may come after its incident would have ended."""

    def on_refused(
        self, error: Exception, refused: Collection[str], task_id: str, queue: str, name: str
    ) -> None:
        """Tell people of a refusal. `refused`: the task ids of all entries that are refused now."""
        kind, now = type(error).__qualname__, self._clock.monotonic()
        if now >= self._log_at.get(kind, -math.inf):
            self._log_at[kind] = now + REPEAT_SECONDS
            self._log.error(
                f"the store refuses a {self._what}; it is tried again, and all others are written",
                extra={
                    "task_id": task_id,
                    "task_name": name,
                    "queue": queue,
                    "error": error_line(error),
                    "refused": len(refused),
                    "cure": self._cure,
                },
            )
        is_due = now >= self._report_at
        if is_due or len(self._reports) >= MOST_REPORTED:
            ids = set(refused)
            self._reports = {id: each for id, each in self._reports.items() if id in ids}
        is_new = task_id not in self._reports
        if not is_new or len(self._reports) < MOST_REPORTED:
            self._reports[task_id] = report = IncidentReport(
                kind=IncidentKind.WRITE_REFUSED,
                subject=task_id,
                details=f"the store refuses a {self._what} ({error_line(error)}); {self._cure}",
                since=self._clock.now(),
                queue=queue,
                name=name,
            )
            if is_new and not is_due:
                self._on_incidents([report])
        if is_due:
            self._report_at = now + INCIDENT_REPORTED
            self._on_incidents([*self._reports.values()])


def error_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its text, without the values of rows."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:500]}"
