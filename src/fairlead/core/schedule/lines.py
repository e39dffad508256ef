"""The tasks of a schedule in memory, in a line for each ordering key; one task of a line runs at a
time."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush

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


class FirstTasks:
    """Heap of the tasks that `first_of` returns for lines."""

    def __init__(
        self, lines: Mapping[str, Line], first_of: Callable[[Line], ScheduledTask | None]
    ) -> None:
        self._lines = lines
        self._first_of = first_of
        self._heap: list[tuple[int, TaskKey]] = []
        """Times and keys. Entries of tasks that are no longer first are stale and are ignored."""

    def add(self, line: Line) -> None:
        """Add the first task of a line."""
        if (first := self._first_of(line)) is None:
            return
        heappush(self._heap, (first.ready_at, first.key))
        if len(self._heap) > 4 * len(self._lines) + 64:
            fresh = map(self._first_of, self._lines.values())
            self._heap = [(task.ready_at, task.key) for task in fresh if task is not None]
            heapify(self._heap)

    def due(self, now: int) -> Iterator[ScheduledTask]:
        """Yield the tasks that are due, and remove them."""
        while self._heap and self._heap[0][0] <= now:
            if (task := self._fresh(heappop(self._heap))) is not None:
                yield task

    def first_at(self) -> int | None:
        """Return when the first task is due (microseconds since the epoch)."""
        while self._heap:
            if self._fresh(self._heap[0]) is not None:
                return self._heap[0][0]
            heappop(self._heap)
        return None

    def _fresh(self, entry: tuple[int, TaskKey]) -> ScheduledTask | None:
        line = self._lines.get(entry[1].ordering_key)
        first = None if line is None else self._first_of(line)
        return first if first is not None and (first.ready_at, first.key) == entry else None


class Lines(dict[str, Line]):
    """Lines by ordering key."""

    def __init__(self) -> None:
        super().__init__()
        self.task_keys: list[TaskKey] = []
        """Keys of all tasks in memory, ascending."""
        self.size = 0
        """Bytes of all tasks in memory."""
        self.held: dict[str, int] = {}
        """Bytes of the tasks in memory of each ordering key whose first task waits for a retry or
        cannot be read."""
        self.held_bytes = 0
        """Bytes of the tasks of all these ordering keys."""
        self._empty: set[str] = set()
        """Ordering keys whose tasks are all in the store only."""
        self.ready = FirstTasks(self, lambda line: line.next)
        """Next tasks of the lines."""
        self.incomplete = FirstTasks(self, lambda line: line.without_payload)
        """First tasks without a payload."""

    @property
    def live(self) -> int:
        """Number of ordering keys whose first task does not wait for a retry."""
        return len(self) - len(self.held)

    @property
    def runnable(self) -> int:
        """Number of ordering keys with a task in memory that runs or may run when it is due."""
        return self.live - len(self._empty)

    def put(self, task: ScheduledTask) -> None:
        """Add a task, in place of one with the same key."""
        replaced = self.setdefault(task.key.ordering_key, Line()).put(task)
        self.size += task.size
        if replaced is None:
            insort(self.task_keys, task.key)
        else:
            self.size -= replaced.size

    def unload(self, key: TaskKey) -> ScheduledTask:
        """Remove a task from memory and return it."""
        task = self[key.ordering_key].pop(key)
        self.size -= task.size
        del self.task_keys[bisect_left(self.task_keys, key)]
        return task

    def refresh(self, ordering_key: str) -> Line | None:
        """Update what depends on the line of this ordering key, and return the line; None if it has
        no tasks, here or in the store."""
        if (line := self.get(ordering_key)) is None:
            return None
        self.held_bytes -= self.held.pop(ordering_key, 0)
        self._empty.discard(ordering_key)
        if not line.tasks:
            if line.skipped_after is None:
                del self[ordering_key]
                return None
            self._empty.add(ordering_key)
        if line.is_held:
            self.held[ordering_key] = sum(task.size for task in line.tasks)
            self.held_bytes += self.held[ordering_key]
        self.ready.add(line)
        self.incomplete.add(line)
        return line


def _key_of(task: ScheduledTask) -> TaskKey:
    return task.key
