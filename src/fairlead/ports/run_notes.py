"""Notes of runs: progress, checkpoints and log lines. `SqlStore.run_notes` returns them.

A write names the version of the task that the run holds, so that a run whose task was given to
another node writes nothing. The notes of a run that ends are written by its completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fairlead.model.run_notes import Progress, ProgressReport, RunNotes
from fairlead.ports.statements import Steps

MOST_NOTES = 200
"""Runs of a task whose notes are read, the latest ones."""


class RunNotesStore(Protocol):
    """Keeps the notes of runs as long as the history, and a checkpoint until its task ends."""

    async def write_progress(self, node: str, reports: Sequence[ProgressReport]) -> None:
        """Store the progress of tasks that this node holds, all in one statement. An earlier report
        of a run never replaces a later one."""

    def store_checkpoint(self, node: str, task_id: str, version: int, value: bytes) -> Steps[bool]:
        """Store JSON that the next run of the task gets with its claim, in place of an earlier
        one. Return False, and store nothing, if the node does not hold the task at this version."""

    def progress(self, task_id: str) -> Steps[Progress | None]:
        """Return the progress of the latest run that reported any."""

    def notes(self, task_id: str) -> Steps[list[RunNotes]]:
        """Return the notes of the latest MOST_NOTES runs that have any, first to last."""
