"""The tasks of one ordering key of an ordered queue that are in memory; one of them runs at a
time."""

from __future__ import annotations

from bisect import bisect_left

from fairlead.model import ScheduledTask, TaskKey


class Line:
    """The first tasks of one ordering key, in order. If the key has many tasks, those after
    `skipped_after` stay in the store until few tasks are left in memory."""

    __slots__ = ("is_read_again", "running", "skipped_after", "tasks")

    def __init__(self) -> None:
        self.tasks: list[ScheduledTask] = []
        """Tasks in memory, including the running one."""
        self.running: TaskKey | None = None
        """Key of the task that was dispatched and whose end is not in the store yet; None without
        one."""
        self.skipped_after: TaskKey | None = None
        """Key above which the tasks of this ordering key are only in the store; None if all tasks
        are in memory."""
        self.is_read_again = False
        """Whether the payload of the first task was read again for its retry."""

    @property
    def is_held(self) -> bool:
        """Whether the first task waits for a retry, or cannot be read, so that all others wait
        behind it."""
        return self.running is None and not self.is_read_again and self.has_trouble

    @property
    def has_trouble(self) -> bool:
        """Whether the first task has failed, or cannot be read."""
        first = self.tasks[0] if self.tasks else None
        return first is not None and (first.retry_at is not None or first.unreadable is not None)

    @property
    def without_payload(self) -> ScheduledTask | None:
        """The first task if its payload must be read before its next run; None while a task
        runs."""
        is_idle = self.running is None and self.tasks
        return self.tasks[0] if is_idle and self.tasks[0].dropped else None

    @property
    def next(self) -> ScheduledTask | None:
        """The task that may be dispatched when it is due; None while a task runs, or if the first
        task cannot be read, or its payload is not in memory."""
        if self.running is not None or not self.tasks:
            return None
        first = self.tasks[0]
        return first if first.unreadable is None and not first.dropped else None

    @property
    def last_idle(self) -> ScheduledTask | None:
        """The last task that is not running, or None."""
        for task in reversed(self.tasks):
            if task.key != self.running:
                return task
        return None

    def get(self, key: TaskKey) -> ScheduledTask | None:
        """Return the task with this key, if it is in memory."""
        n = self._index(key)
        return self.tasks[n] if n < len(self.tasks) and self.tasks[n].key == key else None

    def put(self, task: ScheduledTask) -> ScheduledTask | None:
        """Add the task; if a task has the same key, replace that task and return it."""
        n = self._index(task.key)
        if n < len(self.tasks) and self.tasks[n].key == task.key:
            replaced, self.tasks[n] = self.tasks[n], task
            return replaced
        self.tasks.insert(n, task)
        return None

    def pop(self, key: TaskKey) -> ScheduledTask:
        """Remove a task from memory and return it."""
        return self.tasks.pop(self._index(key))

    def _index(self, key: TaskKey) -> int:
        return bisect_left(self.tasks, key, key=_key_of)


def _key_of(task: ScheduledTask) -> TaskKey:
    return task.key
