"""One ordering key of an ordered queue in memory: its first tasks, one of which may run at a
time."""

from __future__ import annotations

from bisect import bisect_left

from fairlead.model import ScheduledTask, TaskKey


class Line:
    """Tasks in the order of their keys. What is stored beyond `skipped_after` is left there until
    the line is short."""

    __slots__ = ("running", "skipped_after", "tasks")

    def __init__(self) -> None:
        self.tasks: list[ScheduledTask] = []
        """With the one that runs."""
        self.running: TaskKey | None = None
        """It has been handed out, and its end is not in the store yet."""
        self.skipped_after: TaskKey | None = None
        """Stored tasks of this ordering key with a greater key are not in memory."""

    @property
    def is_held(self) -> bool:
        """Its first task waits for another try, and with it all others."""
        return self.running is None and bool(self.tasks) and self.tasks[0].retry_at is not None

    @property
    def next(self) -> ScheduledTask | None:
        """What may be handed out when its time has come."""
        return self.tasks[0] if self.running is None and self.tasks else None

    @property
    def last_idle(self) -> ScheduledTask | None:
        """The last one that does not run."""
        for task in reversed(self.tasks):
            if task.key != self.running:
                return task
        return None

    def get(self, key: TaskKey) -> ScheduledTask | None:
        """The task with this key, if it is in memory."""
        place = self._place(key)
        return (
            self.tasks[place] if place < len(self.tasks) and self.tasks[place].key == key else None
        )

    def put(self, task: ScheduledTask) -> bool:
        """Add it, or put it in the place of the one with its key; True: there was none."""
        place = self._place(task.key)
        if place < len(self.tasks) and self.tasks[place].key == task.key:
            self.tasks[place] = task
            return False
        self.tasks.insert(place, task)
        return True

    def pop(self, key: TaskKey) -> None:
        """Take it out of memory."""
        del self.tasks[self._place(key)]

    def _place(self, key: TaskKey) -> int:
        return bisect_left(self.tasks, key, key=_key_of)


def _key_of(task: ScheduledTask) -> TaskKey:
    return task.key
