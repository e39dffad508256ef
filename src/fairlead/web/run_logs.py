"""Kept log lines of a task's runs, bounded for one response."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.model import Progress, RunNotes

MOST_LOG_CHARS = 100_000
"""Maximum characters of all log lines that are shown for a task, those of the latest runs."""


def latest_progress(notes: Sequence[RunNotes]) -> Progress | None:
    """Return the progress of the latest run that reported any; None if none did."""
    return next((each.progress for each in reversed(notes) if each.progress is not None), None)


def shown_logs(notes: Sequence[RunNotes]) -> tuple[list[RunNotes], int]:
    """Return the notes of the runs whose log lines are shown, first to last, and the number of
    earlier runs whose lines are left out. The latest run with lines is always shown."""
    logged = [each for each in notes if each.lines]
    shown: list[RunNotes] = []
    left = MOST_LOG_CHARS
    for each in reversed(logged):
        left -= sum(len(line.text) for line in each.lines)
        if left < 0 and shown:
            break
        shown.append(each)
    return shown[::-1], len(logged) - len(shown)
