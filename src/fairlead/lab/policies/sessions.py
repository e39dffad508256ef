"""Who waits for results before sending more: the closed loop of users, rebuilt from a record.

Source: Zakay and Feitelson, "Preserving user behavior characteristics in trace-based simulation of
parallel job scheduling" (2014). A batch is what a user sends before what they sent is done; the
next batch follows its end by the think time. A pause longer than `BREAK` ends a session: what comes
after it keeps its hour, or waits for the end if that is later.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fairlead.clock import MICROS
from fairlead.lab.policies.arrivals import Arrivals

BREAK = 20 * 60 * MICROS
"""Microseconds; in most recorded systems think times are shorter and breaks are longer."""


class Sessions:
    """Of all users. A batch is released once what its user sent before is done. For one run of one
    schedule."""

    def __init__(self, arrivals: Arrivals, pause: int = BREAK) -> None:
        """Ends are those of the record; where it tells no wait, there was none."""
        self._at: list[int] = arrivals.at.tolist()
        ends = (arrivals.at + np.maximum(arrivals.wait, 0) + arrivals.run).tolist()
        count = len(arrivals)
        self._batch = [0] * count
        """By task."""
        self._tasks: list[list[int]] = []
        """By batch, like the following."""
        self._next: list[int | None] = []
        self._think: list[int | None] = []
        """From the end of the batch before to its first task; None: it keeps its hour."""
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
            self._tasks[following][0] for following in self._next if following is not None
        }
        self._left = [len(tasks) for tasks in self._tasks]

    def first(self) -> list[tuple[int, int]]:
        """(when, task) of all that wait for nothing, ascending."""
        return sorted(
            (self._at[task], task)
            for first in self._first
            for task in self._tasks[self._batch[first]]
        )

    def ended(self, task: int, now: int) -> Iterator[tuple[int, int]]:
        """The task has ended: (when, task) of what its user sends next, if they waited for just
        this."""
        batch = self._batch[task]
        self._left[batch] -= 1
        following = self._next[batch]
        if self._left[batch] or following is None:
            return
        recorded, think = self._at[self._tasks[following][0]], self._think[following]
        begin = max(now, recorded) if think is None else now + think
        for each in self._tasks[following]:
            yield begin + self._at[each] - recorded, each
