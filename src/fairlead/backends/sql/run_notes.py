"""The rows of notes of runs, for both dialects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead.model import Finish, LogLine, Progress, ProgressReport, RunNotes
from fairlead.ports.statements import Row

MOST_NOTES = 200
"""Runs of a task whose notes are read, the latest ones."""

_lines = msgspec.json.Decoder(tuple[LogLine, ...])
_encode = msgspec.json.Encoder().encode


def progress_rows(reports: Sequence[ProgressReport]) -> list[tuple[Any, ...]]:
    """Return the rows of `write_progress`."""
    return [
        (each.id, each.version, p.done, p.total, _storable(p.note), p.at)
        for each in reports
        for p in (each.progress,)
    ]


def run_notes(rows: Sequence[Row]) -> list[RunNotes]:
    """Return the notes in the rows of `notes`, which begin with the latest run."""
    return [
        RunNotes(
            attempt,
            None if at is None else Progress(done, total, note, at, attempt),
            () if lines is None else _lines.decode(lines),
            dropped,
        )
        for attempt, done, total, note, at, lines, dropped in reversed(rows)
    ]


def notes_rows(finishes: Sequence[Finish]) -> list[tuple[Any, ...]]:
    """Return the rows of `keep_notes` for those finishes that have notes."""
    rows: list[tuple[Any, ...]] = []
    for finish in finishes:
        if (notes := finish.notes) is None:
            continue
        p = notes.progress
        progress = (None,) * 4 if p is None else (p.done, p.total, _storable(p.note), p.at)
        lines = _encode(notes.lines).decode() if notes.lines else None
        rows.append((finish.id, notes.attempt, finish.finished_at, *progress, lines, notes.dropped))
    return rows


def _storable(text: str | None) -> str | None:
    """Return a text without NUL, which PostgreSQL rejects."""
    return text and text.replace("\0", "\N{REPLACEMENT CHARACTER}")
