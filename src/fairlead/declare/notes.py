"""Notes that a handler takes during its run: progress, a checkpoint, log lines."""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from fairlead.clock import MICROS
from fairlead.core import values
from fairlead.declare.json_types import JsonType
from fairlead.errors import InvalidTask, NotSupported
from fairlead.model import LogLine, Progress, RunNotes

log = logging.getLogger("fairlead.progress")

MOST_NOTE_BYTES = 1000
"""Maximum number of UTF-8 bytes of the note of a progress; the rest is cut off."""

MOST_WORK = 1e15
"""Greatest amount of work of a progress; a float has all whole numbers up to here."""

MOST_LINES = 200
"""Log lines of one run that are kept, the last ones."""

MOST_LOG_CHARS = 32_768
"""Characters of all lines of one run together."""

MOST_LINE_CHARS = 4000
"""Characters of one line, with its traceback; the rest is cut off."""

_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"

_CHECKPOINT = JsonType("", Any)


class Reporter(Protocol):
    """Takes the notes of runs to the store."""

    def now(self) -> int:
        """Return the time, in microseconds since the epoch."""

    def report(self, notes: Notes) -> None:
        """Write the last progress soon. Never blocks. Called from any thread."""

    def store(self, notes: Notes, value: bytes) -> None:
        """Store a checkpoint. Raises StaleVersion, StoreUnavailable, NotSupported."""

    async def store_async(self, notes: Notes, value: bytes) -> None:
        """Store a checkpoint without blocking the event loop. Raises as `store` does."""


class RunLog:
    """The last log lines of a run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[LogLine] = deque()
        self._size = 0
        self._dropped = 0

    def add(self, record: logging.LogRecord) -> None:
        """Keep the line of a record; drop the oldest lines beyond the limits."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += "\n" + "".join(traceback.format_exception(record.exc_info[1]))
        at, logger = round(record.created * MICROS), _storable(record.name, 200)
        line = LogLine(
            at, _storable(record.levelname, 50), logger, _storable(text, MOST_LINE_CHARS)
        )
        with self._lock:
            self._lines.append(line)
            self._size += len(line.text)
            while len(self._lines) > MOST_LINES or self._size > MOST_LOG_CHARS:
                self._size -= len(self._lines.popleft().text)
                self._dropped += 1

    def kept(self) -> tuple[tuple[LogLine, ...], int]:
        """Return the lines, oldest first, and the number of dropped ones."""
        with self._lock:
            return tuple(self._lines), self._dropped


@dataclass(slots=True, eq=False)
class Notes:
    """Notes of one run. Its handler and the engine share them, in several threads."""

    id: str
    version: int
    attempt: int
    checkpoint: bytes | None
    limit: int
    """Maximum number of bytes of a checkpoint."""
    reporter: Reporter | None
    """None for a task whose store keeps no notes."""
    is_transactional: bool = False
    log: RunLog | None = None
    progress: Progress | None = None
    is_cut: bool = False
    """Whether a note of a progress was too long."""
    written: Progress | None = None
    """Last progress that the store has."""
    child_lines: tuple[tuple[LogLine, ...], int] | None = None
    """Log of the run in its child process."""

    def report(self, done: float, total: float | None, note: str | None) -> None:
        """Note the progress of the run; cut a note that is too long. Raises InvalidTask,
        NotSupported."""
        reporter = self._supported("progress")
        values.number("done", done, 0, MOST_WORK, InvalidTask)
        if total is not None:
            values.number("total", total, 0, MOST_WORK, InvalidTask)
        if note is not None:
            note = self._short(note)
        self.progress = Progress(done, total, note, reporter.now(), self.attempt)
        reporter.report(self)

    def store(self, value: object) -> None:
        """Store a checkpoint. Raises InvalidTask, NotSupported, StaleVersion, StoreUnavailable."""
        reporter = self._supported("checkpoint")
        if asyncio._get_running_loop() is not None:
            raise InvalidTask(
                "checkpoint() would block the event loop: use"
                " `await current_task().checkpoint_async(value)`"
            )
        encoded = self._encoded(value)
        reporter.store(self, encoded)
        self.checkpoint = encoded

    async def store_async(self, value: object) -> None:
        """Store a checkpoint as `store` does, without blocking the event loop."""
        reporter = self._supported("checkpoint")
        encoded = self._encoded(value)
        await reporter.store_async(self, encoded)
        self.checkpoint = encoded

    def kept(self) -> RunNotes | None:
        """Return what the end of the run has to write; None without notes."""
        progress = self.progress if self.progress is not self.written else None
        lines, dropped = self.child_lines or ((), 0)
        if self.log is not None:
            of_worker, more = self.log.kept()
            lines, dropped = lines + of_worker, dropped + more
        if progress is None and not lines:
            return None
        if progress is None:
            progress = self.written
        return RunNotes(self.attempt, progress, lines, dropped)

    def _short(self, note: str) -> str:
        """Return the note, at most MOST_NOTE_BYTES of it, in a form that every store takes."""
        if not isinstance(note, str):
            raise InvalidTask(f"note {values.brief(note)}: use a string")
        # A character has at least one byte, so one more character shows that the note is too long.
        encoded = _storable(note, MOST_NOTE_BYTES + 1).encode()
        if len(encoded) <= MOST_NOTE_BYTES:
            return encoded.decode()
        if not self.is_cut:
            self.is_cut = True
            log.warning(
                "the note of a progress is too long and was cut",
                extra={"task_id": self.id, "most_bytes": MOST_NOTE_BYTES},
            )
        return (
            encoded[: MOST_NOTE_BYTES - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS
        )

    def _encoded(self, value: object) -> bytes:
        try:
            encoded = _CHECKPOINT.encode(value)
        except Exception as error:
            raise InvalidTask(f"the checkpoint cannot be kept as JSON: {error}") from error
        if len(encoded) > self.limit:
            raise InvalidTask(
                f"the checkpoint has {len(encoded):,} bytes, more than {self.limit:,}; store large"
                " data elsewhere and keep a reference, or raise checkpoint_limit on the App"
            )
        return encoded

    def _supported(self, what: str) -> Reporter:
        if self.reporter is None:
            raise NotSupported(
                f"{what}(): the tasks of this queue have no rows, so no run can keep notes; use a"
                " queue that is not ordered, on sqlite:// or postgresql://"
            )
        if what == "checkpoint" and self.is_transactional:
            raise NotSupported(
                "checkpoint(): a transactional handler writes all or nothing, and a checkpoint"
                " would outlive its rollback; declare the task without transactional=True"
            )
        return self.reporter


def decoded(checkpoint: bytes | None) -> Any:
    """Return the value of a checkpoint; None without one."""
    return None if checkpoint is None else msgspec.json.decode(checkpoint)


def _storable(text: str, most: int) -> str:
    """Return at most `most` characters of a text, in a form that every store takes."""
    return text[:most].replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode()
