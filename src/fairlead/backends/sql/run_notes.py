"""Notes of runs over SQL, for both dialects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from fairlead.backends.sql.rows import batch, canonical
from fairlead.model import Finish, LogLine, Progress, ProgressReport, RunNotes
from fairlead.ports.run_notes import MOST_NOTES
from fairlead.ports.statements import Row, SqlDatabase, Statement, Steps

_lines = msgspec.json.Decoder(tuple[LogLine, ...])
_encode = msgspec.json.Encoder().encode


class NotesTables(Protocol):
    """The part of a task store that its notes use."""

    database: SqlDatabase

    def statement(self, name: str, *params: Any) -> Statement:
        """Return the named statement with its parameters."""

    def alone(self, name: str, *params: Any) -> Steps[Sequence[Row]]:
        """Return steps of one statement, in the cheapest transaction."""


class SqlRunNotes:
    """A `fairlead.ports.run_notes.RunNotesStore` on the tables of a task store."""

    def __init__(self, tables: NotesTables) -> None:
        self._tables = tables

    async def write_progress(self, node: str, reports: Sequence[ProgressReport]) -> None:
        rows = [
            (each.id, each.version, p.done, p.total, _storable(p.note), p.at)
            for each in reports
            for p in (each.progress,)
        ]
        steps = self._tables.alone("write_progress", batch(rows), node)
        # Need not be durable: the next report, or the end of the run, is.
        await self._tables.database.run_async(steps, durable=False)

    def store_checkpoint(self, node: str, task_id: str, version: int, value: bytes) -> Steps[bool]:
        given = (canonical(task_id), version, node, value)
        return bool((yield self._tables.statement("store_checkpoint", *given)))

    def progress(self, task_id: str) -> Steps[Progress | None]:
        rows = yield self._tables.statement("progress", canonical(task_id))
        return Progress(*rows[0]) if rows else None

    def notes(self, task_id: str) -> Steps[list[RunNotes]]:
        rows = yield self._tables.statement("notes", canonical(task_id), MOST_NOTES)
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
