"""Users who wait for results before they send more: the closed loop of users, rebuilt from a
record.

Source: Zakay and Feitelson, "Preserving user behavior characteristics in trace-based simulation of
parallel job scheduling" (2014). A batch is the work that a user sends before the previous work is
done. The think time lies between the end of a batch and the next batch. A pause longer than `BREAK`
ends a session: the next batch keeps its recorded time, or waits for the end of the last batch if
that is later.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fairlead.clock import MICROS
from fairlead.lab.policies.arrivals import Arrivals

BREAK = 20 * 60 * MICROS
"""Microseconds; in most recorded systems think times are shorter and breaks are longer."""


class Sessions:
    """The sessions of all users, for one run of one schedule. A batch is released when the previous
    batch of its user is done."""

    def __init__(self, arrivals: Arrivals, pause: int = BREAK) -> None:
        """Use the recorded ends; assume that a task without a recorded wait did not wait."""
        self._at: list[int] = arrivals.at.tolist()
        ends = (arrivals.at + np.maximum(arrivals.wait, 0) + arrivals.run).tolist()
        count = len(arrivals)
        self._batch = [0] * count
        """Batch of each task."""
        self._tasks: list[list[int]] = []
        """Tasks of each batch."""
        self._next: list[int | None] = []
        self._think: list[int | None] = []
        """Microseconds from the end of the previous batch to the first task of the batch; None if
        the batch keeps its recorded time."""
        last: dict[int, int] = {}
        end: dict[int, int] = {}
        for task, (at, key) in enumerate(zip(self._at, arrivals.key.tolist(), strict=True)):
            if key not in last or at > end[key]:
                self._tasks.append([])
                self._next.append(None)
                think = at - end[key] if key in last else None
                self._think.append(None if think is None or think > pause else think)
                batch = len(self._tasks) - 1
                if key in last:
                    self._next[last[key]] = batch
                last[key] = batch
                end[key] = ends[task]
            batch = last[key]
            self._batch[task] = batch
            self._tasks[batch].append(task)
            end[key] = max(end[key], ends[task])
        self._first = {tasks[0] for tasks in self._tasks} - {
            self._tasks[after][0] for after in self._next if after is not None
        }
        self._left = [len(tasks) for tasks in self._tasks]

    def first(self) -> list[tuple[int, int]]:
        """Return (time, task) of all tasks that wait for nothing, ascending."""
        return sorted(
            (self._at[task], task)
            for first in self._first
            for task in self._tasks[self._batch[first]]
        )

    def ended(self, task: int, now: int) -> Iterator[tuple[int, int]]:
        """Return (time, task) of what the user sends next, if the user waited for the end of this
        task."""
        batch = self._batch[task]
        self._left[batch] -= 1
        next_batch = self._next[batch]
        if self._left[batch] or next_batch is None:
            return
        recorded, think = self._at[self._tasks[next_batch][0]], self._think[next_batch]
        begin = max(now, recorded) if think is None else now + think
        for each in self._tasks[next_batch]:
            yield begin + self._at[each] - recorded, each
