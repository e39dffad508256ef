"""Notes of a run: its last progress and its log lines."""

from __future__ import annotations

import msgspec


class Progress(msgspec.Struct, frozen=True, gc=False):
    """Progress that a run has reported."""

    done: float
    """Work done so far, in a unit that the handler chooses."""
    total: float | None
    """All work of the run, in the same unit; None if the handler does not know it."""
    note: str | None
    at: int
    """Time of the report, in microseconds since the epoch."""
    attempt: int
    """Number of the run that reported it."""

    @property
    def text(self) -> str:
        """Progress as one line for people."""
        shown = f"{self.done:g}"
        if self.total is not None:
            shown += f" of {self.total:g}"
        if self.total and self.done <= self.total:
            shown += f" ({100 * self.done / self.total:.0f} %)"
        return f"{shown}: {self.note}" if self.note else shown


class LogLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One line that a handler logged; its text may have several lines."""

    at: int
    """Microseconds since the epoch."""
    level: str
    logger: str
    text: str


class RunNotes(msgspec.Struct, frozen=True, gc=False):
    """Notes of one run."""

    attempt: int
    progress: Progress | None = None
    """Last progress; at the end of a run, only one that is not stored yet."""
    lines: tuple[LogLine, ...] = ()
    """Last lines of the run's log, oldest first."""
    dropped: int = 0
    """Number of earlier lines that were not kept."""


class ProgressReport(msgspec.Struct, frozen=True, gc=False):
    """Progress of a task that a node holds at this version."""

    id: str
    version: int
    progress: Progress
