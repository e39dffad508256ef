"""The schedule of one partition of an ordered queue: the tasks in memory, which of them may run,
and the key up to which all tasks have ended.

No I/O and no clock: the schedule returns what to read, and the caller reports what was read and
written and which runs have ended. Two rules hold at every moment, in whatever order the reports
come:

- Memory holds all unfinished stored tasks with a key up to `read_through`. If an ordering key has
  many tasks, memory holds only those up to the key `skipped_after`. Later tasks are in memory only
  while they run. So the first task of an ordering key in memory is the first unfinished task of
  that ordering key. Of a task that waits for a retry, memory may hold all but the payload, which is
  read again when the retry is due.
- Every unfinished stored task has a key above `low_water_mark`. So an owner that begins to read
  there misses no task, however old.

One read of a page may be under way at a time, or several of single ordering keys, and no write
meanwhile; runs may end at any time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from fairlead.core.schedule.lines import Line, Lines
from fairlead.core.schedule.throughput import Window
from fairlead.model import BEFORE_ALL, NewTask, ScheduledTask, TaskKey

_MOST_COMPLETED = 50_000


class ScheduleRead(NamedTuple):
    """A read to do: unfinished tasks with after < key <= through, ascending, at most `limit`, and
    no more than the first one if it and the next ones have more than `most_bytes` together."""

    ordering_key: str | None
    """Ordering key to read, or None for all keys."""
    after: TaskKey
    through: TaskKey
    limit: int
    most_bytes: int


def just_before(run_at: int) -> TaskKey:
    """Return a key below every task of this time and above every earlier one. No task's key has
    empty texts."""
    return TaskKey(run_at, "", "")


class Schedule:
    """The schedule of one partition in memory; the module describes its rules."""

    def __init__(
        self, low_water_mark: TaskKey, window: Window, running: Iterable[ScheduledTask] = ()
    ) -> None:
        """`low_water_mark`: as saved in the store. `running`: stored tasks whose runs continue from
        an earlier tenure."""
        self.read_through = low_water_mark
        self._window = window
        self._lines = Lines()
        self._mean = 0
        """Bytes of a task in the last page."""
        self._next_size = 0
        """Bytes of the task that a page would begin with, if it was dropped for lack of room."""
        self._now = BEFORE_ALL.run_at
        """Time of the last read (microseconds since the epoch)."""
        self._short: dict[str, None] = {}
        """Ordering keys of which more tasks, or the payload of the first one, must be read."""
        self._reading: ScheduleRead | None = None
        self._beside: list[ScheduleRead] = []
        """Reads of single ordering keys that are under way together with `_reading`."""
        self._ended_meanwhile: dict[TaskKey, ScheduledTask | None] = {}
        """Tasks whose runs ended during the current read: the task for its next run, or None if it
        is completed. The read may return these tasks as they were before."""
        self._ended_first = BEFORE_ALL
        """Key of the last task that ended while it was the first in memory. All tasks up to this
        key have ended, except tasks that were submitted later."""
        self._completed: deque[TaskKey] = deque(maxlen=_MOST_COMPLETED)
        """Keys completed since the last call of `completed_ranges`."""
        self._is_short_next = False
        self._was_mostly_skipped = False
        """Whether most of the last page stayed in the store, because one key has many tasks."""
        for task in running:
            self._lines.put(task)
            self._lines[task.key.ordering_key].running = task.key
            self._changed(task.key.ordering_key)

    def resize(self, window: Window) -> None:
        """Change the limits of tasks in memory."""
        self._window = window
        if self._reading is None:
            self._evict()

    # state ----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of tasks in memory."""
        return len(self._lines.task_keys)

    @property
    def low_water_mark(self) -> TaskKey:
        """Key at or below which every task has ended."""
        if self._lines.task_keys:
            first = self._lines.task_keys[0]
            bound = just_before(first.run_at)
            if bound < self._ended_first < first:
                bound = self._ended_first
        else:
            bound = self.read_through
        return min(bound, self._known_through)

    @property
    def _known_through(self) -> TaskKey:
        """Key at or below which every unfinished task is in memory."""
        skipped = (
            line.skipped_after for line in self._lines.values() if line.skipped_after is not None
        )
        return min(self.read_through, min(skipped, default=self.read_through))

    def completed_ranges(self, most: int) -> list[tuple[TaskKey, TaskKey]]:
        """Return at most `most` ranges of keys above the low-water mark in which every stored task
        has ended, those with most tasks first. A range excludes both of its ends. Ranges in which
        no task has ended since the last call are left out."""
        mark, bound = self.low_water_mark, self._known_through
        ended, keys = Counter[tuple[TaskKey, TaskKey]](), self._lines.task_keys
        for key in self._completed:
            if mark < key < bound:
                n = bisect_left(keys, key)
                above = max(mark, keys[n - 1]) if n else mark
                ended[above, min([bound, *keys[n : n + 1]])] += 1
        self._completed.clear()
        return [pair for pair, _ in ended.most_common(most)]

    def due_before(self, run_at: int) -> int:
        """Return how many tasks in memory were due before this time."""
        return bisect_left(self._lines.task_keys, just_before(run_at))

    def get(self, key: TaskKey) -> ScheduledTask | None:
        """Return the task with this key, if it is in memory."""
        line = self._lines.get(key.ordering_key)
        return None if line is None else line.get(key)

    def is_running(self, key: TaskKey) -> bool:
        """Return whether the task was dispatched and its end is not yet reported."""
        line = self._lines.get(key.ordering_key)
        return line is not None and line.running == key

    # reading --------------------------------------------------------------------------------------

    def next_read(self, now: int) -> ScheduleRead | None:
        """Return the read to do now, which must be followed by `read_done`: after a failed read, a
        new schedule is loaded. Return None without a read, or while one is under way."""
        if self._reading is not None:
            return None
        self._now = now
        for first in self._lines.incomplete.due(now):
            self._short[first.key.ordering_key] = None
        page, short = self._page(now), self._next_short()
        self._reading = (short or page) if self._is_short_next else (page or short)
        if self._reading is not None:
            self._is_short_next = self._reading.ordering_key is None
            if self._reading.ordering_key is not None:
                del self._short[self._reading.ordering_key]
        return self._reading

    def next_read_at(self) -> int | None:
        """Return when to read the next page, if there is room, or a payload that was dropped
        (microseconds since the epoch)."""
        page, payload = self._next_page_at(), self._lines.incomplete.first_at()
        return min((at for at in (page, payload) if at is not None), default=None)

    def _next_page_at(self) -> int | None:
        return self.read_through.run_at - self._window.prefetch if self._room else None

    @property
    def _room(self) -> int:
        """Number of tasks that a page may have now."""
        window = self._window
        least = max(self._next_size, window.least_bytes)
        if self._lines.runnable and self._lines.size + least > window.most_bytes:
            return 0
        room = window.room(self._lines.live, len(self))
        if not (room and self._mean):
            return room
        return min(room, 1 + 2 * self._free // self._mean)

    @property
    def _is_exceeded(self) -> bool:
        """Whether there is more in memory than allowed. One task that can run may always stay."""
        is_too_large = self._lines.size > self._window.most_bytes and self._lines.runnable > 1
        return is_too_large or self._window.is_exceeded(self._lines.live, len(self))

    @property
    def _free(self) -> int:
        """Bytes that are free for tasks."""
        return max(0, self._window.most_bytes - self._lines.size)

    def _page(self, now: int) -> ScheduleRead | None:
        at = self._next_page_at()
        if at is None or at > now:
            return None
        through = just_before(now + self._window.look_ahead + 1)
        if through <= self.read_through:
            return None
        return ScheduleRead(
            None,
            self.read_through,
            through,
            self._window.page if self._was_mostly_skipped else self._room,
            self._free,
        )

    def _next_short(self, coming: int = 0, coming_bytes: int = 0) -> ScheduleRead | None:
        """`coming`, `coming_bytes`: tasks that other reads may bring, and their bytes."""
        free = max(0, self._free - coming_bytes)
        for ordering_key in list(self._short):
            line = self._lines.get(ordering_key)
            first = None if line is None else line.without_payload
            if line is None or (line.skipped_after is None and first is None):
                del self._short[ordering_key]
            elif first is not None:
                if free >= first.dropped or not (coming or self._lines.runnable):
                    after, size = just_before(first.key.run_at), max(free // 2, first.dropped)
                    return ScheduleRead(ordering_key, after, first.key, 1, size)
            elif line.skipped_after is None:
                continue
            elif free or not (coming or line.tasks or self._lines.runnable):
                room = self._window.line_room(len(line.tasks), len(self) + coming)
                after, through = line.skipped_after, self.read_through
                return ScheduleRead(ordering_key, after, through, room, free // 2)
        return None

    def reads_beside(self, most: int) -> list[ScheduleRead]:
        """Return at most `most` reads of other ordering keys to do together with the current read
        of one. Each must be followed by `read_beside_done`, before `read_done` of the current
        read."""
        if self._reading is None or self._reading.ordering_key is None:
            return []
        coming, coming_bytes = self._reading.limit, max(self._reading.most_bytes, self._mean)
        while len(self._beside) < most:
            if (read := self._next_short(coming, coming_bytes)) is None:
                break
            assert read.ordering_key is not None
            del self._short[read.ordering_key]
            coming += read.limit
            coming_bytes += max(read.most_bytes, self._mean)
            self._beside.append(read)
        return list(self._beside)

    def read_beside_done(
        self, read: ScheduleRead, rows: Sequence[ScheduledTask], is_cut: bool = False
    ) -> None:
        """Record the tasks that a read beside the current one returned. `is_cut`: as for
        `read_done`."""
        self._beside.remove(read)
        self._of_key_done(read, rows, is_cut)

    def read_done(self, rows: Sequence[ScheduledTask], is_cut: bool = False) -> None:
        """Record the tasks that the read returned. `is_cut`: whether there are more tasks, which
        had too many bytes for the read."""
        read, self._reading = self._reading, None
        assert read is not None and not self._beside
        if read.ordering_key is not None:
            self._of_key_done(read, rows, is_cut)
        else:
            is_cut = is_cut or len(rows) == read.limit
            self.read_through = rows[-1].key if is_cut else read.through
            if rows:
                self._mean = sum(row.size for row in rows) // len(rows)
            self._next_size = 0
            loaded_before = len(self)
            self._take_in_all(rows)
            self._drop_payloads(*(row.key.ordering_key for row in rows))
            is_mostly_skipped = 2 * (len(self) - loaded_before) < len(rows)
            # If the page overflowed memory, limit the next page to the room, because an eviction
            # may drop a whole page.
            self._was_mostly_skipped = not self._evict() and is_mostly_skipped
        self._ended_meanwhile.clear()

    def _of_key_done(self, read: ScheduleRead, rows: Sequence[ScheduledTask], is_cut: bool) -> None:
        assert read.ordering_key is not None
        line = self._lines[read.ordering_key]
        if (first := line.without_payload) is not None and first.key == read.through:
            self._payload_done(line, first, rows)
            return
        line.skipped_after = None
        self._take_in_all(rows)
        line = self._lines[read.ordering_key]
        if line.skipped_after is None and (is_cut or len(rows) == read.limit):
            line.skipped_after = rows[-1].key
        self._changed(read.ordering_key)
        self._drop_payloads(read.ordering_key)

    def _payload_done(
        self, line: Line, first: ScheduledTask, rows: Sequence[ScheduledTask]
    ) -> None:
        """Record the first task of a line, which was read again: none if a person deleted it."""
        if rows and rows[-1].key == first.key:
            self._lines.put(rows[-1])
            line.is_read_again = rows[-1].ready_at <= self._now
            self._changed(first.key.ordering_key)
        else:
            self.ended(first.key, None)

    def _take_in_all(self, rows: Sequence[ScheduledTask]) -> None:
        for row in rows:
            again = self._ended_meanwhile.get(row.key, row)
            if again is not None:
                self._take_in(again if again.task.id == row.task.id else row)

    # writing --------------------------------------------------------------------------------------

    def low_water_mark_with(self, tasks: Iterable[NewTask]) -> TaskKey:
        """Return the low-water mark to save with a write of these tasks. The mark is lower than
        today's if a new task is due before all known tasks."""
        return min([self.low_water_mark, *(just_before(task.run_at) for task in tasks)])

    def written(self, tasks: Iterable[NewTask], completed: Collection[TaskKey]) -> None:
        """Record that these tasks are in the store, except those whose keys were completed before.
        Tasks with a key up to `read_through` go straight to memory. If memory overflows, drop the
        tasks with the last keys from memory; they are read again later."""
        for task in tasks:
            scheduled = ScheduledTask.of(task)
            if scheduled.key in completed:
                continue
            if scheduled.key <= self.read_through or self.get(scheduled.key) is not None:
                self._take_in(scheduled)
        self._drop_payloads(*(task.ordering_key or "" for task in tasks))
        self._evict()

    def _take_in(self, task: ScheduledTask) -> None:
        line = self._lines.get(task.key.ordering_key) or Line()
        known = line.get(task.key)
        if known is not None:
            is_repaired = known.unreadable is not None and task.unreadable is None
            if is_repaired or known.task.id != task.task.id:
                self._lines.put(task)  # a new task with the same key replaces the old one
                self._changed(task.key.ordering_key)
            return
        if line.skipped_after is not None and task.key > line.skipped_after:
            return
        most = self._window.line(len(self), self._lines.size)
        if len(line.tasks) >= most and (last := line.last_idle) is not None:
            if task.key > last.key:
                line.skipped_after = last.key
                return
            self._lines.put(task)
            self._lines.unload(last.key)
            idle = line.last_idle
            assert idle is not None
            line.skipped_after = idle.key
        else:
            self._lines.put(task)
        self._changed(task.key.ordering_key)

    def _evict(self) -> bool:
        """Drop tasks from memory until the rest is within the limits: those with the last keys,
        without the running ones. Return False if nothing had to be dropped."""
        lowest, keys = None, self._lines.task_keys
        n = len(keys) - 1
        while n >= 0 and self._is_exceeded:
            key = keys[n]
            n -= 1
            if not self.is_running(key):
                unloaded = self._lines.unload(key)
                self._next_size = unloaded.size + unloaded.dropped
                line = self._lines[key.ordering_key]
                if not line.tasks:
                    # All skipped tasks lie above `read_through`, so the schedule reads them later.
                    line.skipped_after = None
                self._changed(key.ordering_key)
                lowest = key
        if lowest is None:
            return False
        # Set `read_through` to the key of the last task that stays in memory, not to a time,
        # because a million tasks may be due at the same time.
        below = bisect_left(keys, lowest) - 1
        last = keys[below] if below >= 0 else just_before(lowest.run_at)
        self.read_through = min(self.read_through, last)
        for ordering_key, line in list(self._lines.items()):
            if line.skipped_after is not None and line.skipped_after >= self.read_through:
                line.skipped_after = None  # all skipped tasks are above `read_through`
                self._changed(ordering_key)
        return True

    # running --------------------------------------------------------------------------------------

    def due(self, now: int) -> list[ScheduledTask]:
        """Return the tasks that may run now, longest due first: the first of each ordering key, if
        no task of it runs. Record these tasks as running."""
        found = []
        for task in self._lines.ready.due(now):
            self._lines[task.key.ordering_key].running = task.key
            self._changed(task.key.ordering_key)
            found.append(task)
        return found

    def next_due(self) -> int | None:
        """Return when the next task in memory may run (microseconds since the epoch)."""
        return self._lines.ready.first_at()

    def ended(self, key: TaskKey, again: ScheduledTask | None) -> None:
        """Record that the end of a run, or of a task without a run, is in the store. `again`: the
        task for its next run, or None if its key is completed."""
        if self._reading is not None:
            self._ended_meanwhile[key] = again
        line = self._lines.get(key.ordering_key)
        known = None if line is None else line.get(key)
        if line is None or known is None:
            return
        if line.running == key:
            line.running = None
        line.is_read_again = False
        if again is not None and self._is_beyond(line, key):
            self._lines.unload(key)
        elif again is None:
            if self._lines.task_keys[0] == key:
                self._ended_first = key
            self._completed.append(key)
            self._lines.unload(key)
        elif known.task.id == again.task.id:
            self._lines.put(again)
        self._changed(key.ordering_key)
        self._drop_payloads(key.ordering_key)

    def returned(self, key: TaskKey) -> None:
        """Record that a dispatched task did not run. The task may be dispatched again at once."""
        line = self._lines.get(key.ordering_key)
        if line is not None and line.running == key:
            line.running = None
            if self._is_beyond(line, key):
                self._lines.unload(key)
            self._changed(key.ordering_key)

    def repaired(self, task: ScheduledTask) -> None:
        """Record that the row of this task, which could not be read, can be read again."""
        line = self._lines.get(task.key.ordering_key)
        if line is not None and line.get(task.key) is not None:
            self._lines.put(task)
            self._changed(task.key.ordering_key)

    def _is_beyond(self, line: Line, key: TaskKey) -> bool:
        """Return whether tasks before this one may be in the store and not in memory."""
        return key > self.read_through or (
            line.skipped_after is not None and key > line.skipped_after
        )

    def _drop_payloads(self, *ordering_keys: str) -> None:
        """Keep only the first task, without its payload, of each of these ordering keys that waits
        for a retry or a repair, if tasks that wait have too many bytes."""
        for ordering_key in ordering_keys:
            if self._lines.held_bytes <= self._window.most_held_bytes:
                return
            if ordering_key not in self._lines.held or self._is_read_now(ordering_key):
                continue
            line = self._lines[ordering_key]
            first = line.tasks[0]
            if first.ready_at <= self._now:
                continue
            if len(line.tasks) > 1:
                line.skipped_after = first.key
                for task in line.tasks[1:]:
                    self._lines.unload(task.key)
            if first.unreadable is None and not first.dropped:
                self._lines.put(first.without_payload)
            self._changed(ordering_key)

    def _is_read_now(self, ordering_key: str) -> bool:
        reads = self._beside if self._reading is None else (self._reading, *self._beside)
        return any(read.ordering_key == ordering_key for read in reads)

    def _changed(self, ordering_key: str) -> None:
        """Update everything that depends on this ordering key's line."""
        line = self._lines.refresh(ordering_key)
        if line is not None and line.skipped_after is not None:
            # A task that fails again and again has those behind it read once, after its end.
            most = self._window.line(len(self), self._lines.size) // 2
            if not line.has_trouble and len(line.tasks) <= most:
                self._short[ordering_key] = None
