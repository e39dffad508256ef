"""The horizon of the history of a partition: the instant through which the history is complete.

The owner gives each run an instant of its end above the horizon. It raises the horizon only below
the runs that are being written, and below those whose write failed, because they may be written
again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

from fairlead.model import RunEnd
from fairlead.ports.schedule_store import HOUR, hour_of

CUT_OFF_SECONDS = 600.0
"""Longest time, in seconds, for which a failed write keeps the horizon below its runs. The next
tenure of the partition writes them again within a minute, unless another node has the partition."""

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
        self.noted: set[tuple[int, int]] = set()
        """Hours of ends and of tasks that are noted in the store."""
        self._newest = through
        self._writing: dict[RunKey, int] = {}
        self._cut_off: dict[RunKey, tuple[int, float]] = {}
        """Runs whose write failed, each with its instant and the monotonic time until which it
        keeps the horizon low."""
        if before is not None:
            self.through = max(through, before.through)
            self._newest = max(self.through, before._newest)
            self._on_failure(
                {key: instant for key, (instant, _) in before._cut_off.items()} | before._writing
            )

    @contextlib.contextmanager
    def write(self, ends: Sequence[RunEnd]) -> Iterator[dict[RunKey, int]]:
        """Give each run its instant in the history, while the runs are being written."""
        given = {}
        for end in ends:
            key = key_of(end)
            instant, _ = self._cut_off.get(key, (end.finished_at, 0.0))
            if instant <= self.through:
                # Above all runs, so that two ends of one task have two instants.
                instant = max([self._newest, self.through, *self._writing.values()]) + 1
            given[key] = instant
        self._writing |= given
        try:
            yield given
        except BaseException:
            self._on_failure(given)
            raise
        else:
            for key in given:
                self._cut_off.pop(key, None)
            self._newest = max(self._newest, *given.values())
        finally:
            for key in given:
                self._writing.pop(key, None)

    def to_note(self, ends: Sequence[RunEnd], given: Mapping[RunKey, int]) -> list[tuple[int, int]]:
        """Return the hours of these runs that are not noted in the store, ascending."""
        hours = {(given[key_of(end)] // HOUR, hour_of(end.scheduled.key)) for end in ends}
        return sorted(hours - self.noted)

    def raise_through(self) -> int | None:
        """Raise the horizon as far as possible. Return the instant that is to be stored; None if
        the store has it."""
        now = time.monotonic()
        unwritten = [*self._writing.values()]
        unwritten += [instant for instant, until in self._cut_off.values() if now < until]
        highest = min([self._newest, *(instant - 1 for instant in unwritten)])
        self.through = max(self.through, highest)
        return self.through if self.through > self.stored else None

    def _on_failure(self, given: Mapping[RunKey, int]) -> None:
        until = time.monotonic() + CUT_OFF_SECONDS
        for key, instant in given.items():
            self._cut_off[key] = instant, self._cut_off.get(key, (instant, until))[1]


def key_of(end: RunEnd) -> RunKey:
    """Return the key of a run."""
    return end.scheduled.task.id, end.attempt, end.finished_at
