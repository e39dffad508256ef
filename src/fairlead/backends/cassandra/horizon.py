"""The horizon of the history of a partition: the instant through which the history is complete.

The owner gives each run an instant of its end above the horizon. It raises the horizon only below
the runs that are being written, and below those whose write failed, as long as somebody may write
them again: while their ends are in memory. So a run that is written twice has one instant.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence

from fairlead.model import RunEnd

RunKey = tuple[str, int, int]
"""Id, attempt and end of a run, the same when it is written again."""


class Horizon:
    """The horizon of one partition, as its owner knows it. Instants are in microseconds since the
    epoch."""

    def __init__(self, through: int, before: Horizon | None = None) -> None:
        """`through`: the stored horizon. `before`: the horizon of the same node's tenure before, if
        no other node had the partition in between."""
        self.through = through
        """No new run gets an instant at or below this one."""
        self.stored = through
        self._newest = through
        self._writing: dict[RunKey, tuple[int, weakref.ref[RunEnd]]] = {}
        self._failed: dict[RunKey, tuple[int, weakref.ref[RunEnd]]] = {}
        """Runs whose write failed, each with its instant and its end, which keeps the horizon low
        while anything but this horizon refers to it."""
        if before is not None:
            self.through = max(through, before.through)
            self._newest = max(self.through, before._newest)
            self._failed = before._failed | before._writing

    @contextlib.contextmanager
    def write(self, ends: Sequence[RunEnd]) -> Iterator[dict[RunKey, int]]:
        """Give each run its instant in the history, while the runs are being written."""
        given: dict[RunKey, int] = {}
        known_runs = (*self._writing.values(), *self._failed.values())
        highest = max([self._newest, self.through, *(at for at, _ in known_runs)])
        for end in ends:
            key = key_of(end)
            known = self._failed.get(key)
            instant = end.finished_at if known is None else known[0]
            if instant <= self.through:
                # Above all runs, so that two ends of one task have two instants.
                instant = highest + 1
            given[key] = instant
        writing = {key_of(end): (given[key_of(end)], weakref.ref(end)) for end in ends}
        self._writing |= writing
        try:
            yield given
        except BaseException:
            self._failed |= writing
            raise
        else:
            for key in given:
                self._failed.pop(key, None)
            self._newest = max(self._newest, *given.values())
        finally:
            for key in given:
                self._writing.pop(key, None)

    def raise_through(self) -> int | None:
        """Raise the horizon as far as possible. Return the instant that is to be stored; None if
        the store has it."""
        self._failed = {key: each for key, each in self._failed.items() if each[1]() is not None}
        unwritten = [at for at, _ in (*self._writing.values(), *self._failed.values())]
        highest = min([self._newest, *(instant - 1 for instant in unwritten)])
        self.through = max(self.through, highest)
        return self.through if self.through > self.stored else None


def key_of(end: RunEnd) -> RunKey:
    """Return the key of a run."""
    return end.scheduled.task.id, end.attempt, end.finished_at
