"""The schedule of one partition of an ordered queue, as far as it is in memory: what is read, what
may run, what is done.

No I/O and no clock: it says what to read and is told what came, what was written, and which runs
have ended. Two things hold at every moment, whatever is told in whatever order:

- Every unfinished task of the store with a key at or below `read_through` is in memory, or behind
  the `skipped_after` of its ordering key; beyond either, only what runs is in memory. So the first
  one in memory of an ordering key is the first there is.
- Every unfinished task of the store has a key above `floor`. So whoever begins there misses
  nothing, however old it is.

One read may be on its way at a time, and no write meanwhile; runs may end at any time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from fairlead.core.schedule.serial import Line
from fairlead.core.schedule.throughput import Window
from fairlead.model import BEFORE_ALL, NewTask, ScheduledTask, TaskKey

_MOST_OVER = 50_000


class Read(NamedTuple):
    """What to read: unfinished tasks with after < key <= through, ascending, at most `limit`."""

    ordering_key: str | None
    """Of this ordering key only; None: of all."""
    after: TaskKey
    through: TaskKey
    limit: int


def just_before(run_at: int) -> TaskKey:
    """Below every task of this time, above every earlier one: keys have no empty texts."""
    return TaskKey(run_at, "", "")


class Schedule:
    """See the module."""

    def __init__(
        self, low_water_mark: TaskKey, window: Window, running: Iterable[ScheduledTask] = ()
    ) -> None:
        """`floor`: as it was kept in the store. `running`: tasks of the store whose runs go on from
        before."""
        self.read_through = low_water_mark
        self._window = window
        self._lines: dict[str, Line] = {}
        self._held: set[str] = set()
        self._keys: list[TaskKey] = []
        """Of all tasks in memory, ascending."""
        self._ready: list[tuple[int, TaskKey]] = []
        """A heap of (ready_at, key) with the next task of every line; others in it are stale."""
        self._short: dict[str, None] = {}
        """Ordering keys of which more is to be read."""
        self._reading: Read | None = None
        self._ended_meanwhile: dict[TaskKey, ScheduledTask | None] = {}
        """What the read that is on its way may bring as it was before its run ended, and what came
        of it."""
        self._ended_first = BEFORE_ALL
        """The last key that ended while it was the first of all: what is at or below it and in the
        store came later."""
        self._over: deque[TaskKey] = deque(maxlen=_MOST_OVER)
        """Keys that were completed since `done` was asked."""
        self._is_turn_of_short = False
        self._is_passing_over = False
        """Most of the last page stayed in the store: a key with very much behind it."""
        for task in running:
            self._load(task)
            self._lines[task.key.ordering_key].running = task.key
            self._changed(task.key.ordering_key)

    def resize(self, window: Window) -> None:
        """So much may be in memory from now on."""
        self._window = window
        if self._reading is None:
            self._evict()

    # looking at it --------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Tasks in memory."""
        return len(self._keys)

    @property
    def live(self) -> int:
        """Ordering keys in memory whose first task does not wait for a retry."""
        return len(self._lines) - len(self._held)

    @property
    def low_water_mark(self) -> TaskKey:
        """Every task with this key or a lower one has ended."""
        if self._keys:
            first = self._keys[0]
            bound = just_before(first.run_at)
            if bound < self._ended_first < first:
                bound = self._ended_first
        else:
            bound = self.read_through
        return min(bound, self._known_through)

    @property
    def _known_through(self) -> TaskKey:
        """Every unfinished task with this key or a lower one is in memory."""
        skipped = (
            line.skipped_after for line in self._lines.values() if line.skipped_after is not None
        )
        return min(self.read_through, min(skipped, default=self.read_through))

    def done(self, most: int) -> list[tuple[TaskKey, TaskKey]]:
        """Pairs of keys above the floor between which, themselves left out, no task of the store is
        unfinished: those where most tasks have ended since it was last asked."""
        low_water_mark, bound = self.low_water_mark, self._known_through
        ended = Counter[tuple[TaskKey, TaskKey]]()
        for key in self._over:
            if low_water_mark < key < bound:
                place = bisect_left(self._keys, key)
                above = max(low_water_mark, self._keys[place - 1]) if place else low_water_mark
                ended[above, min([bound, *self._keys[place : place + 1]])] += 1
        self._over.clear()
        return [pair for pair, _ in ended.most_common(most)]

    def due_before(self, run_at: int) -> int:
        """How many tasks in memory were due before this time."""
        return bisect_left(self._keys, just_before(run_at))

    def get(self, key: TaskKey) -> ScheduledTask | None:
        """The task with this key, if it is in memory."""
        line = self._lines.get(key.ordering_key)
        return None if line is None else line.get(key)

    def is_running(self, key: TaskKey) -> bool:
        """It has been handed out, and its end was not told yet."""
        line = self._lines.get(key.ordering_key)
        return line is not None and line.running == key

    # reading --------------------------------------------------------------------------------------

    def next_read(self, now: int) -> Read | None:
        """What to read now; then tell `read_done` or `read_failed`. None: nothing, or one is on its
        way."""
        if self._reading is not None:
            return None
        page, short = self._page(now), self._next_short()
        self._reading = (short or page) if self._is_turn_of_short else (page or short)
        if self._reading is not None:
            self._is_turn_of_short = self._reading.ordering_key is None
            if self._reading.ordering_key is not None:
                del self._short[self._reading.ordering_key]
        return self._reading

    def next_read_at(self) -> int | None:
        """When the next page is to be read (microseconds), if there is room for it by then."""
        if not self._window.room(self.live, len(self)):
            return None
        return self.read_through.run_at - self._window.prefetch

    def _page(self, now: int) -> Read | None:
        at = self.next_read_at()
        if at is None or at > now:
            return None
        through = just_before(now + self._window.look_ahead + 1)
        if through <= self.read_through:
            return None
        room = self._window.room(self.live, len(self))
        return Read(
            None, self.read_through, through, self._window.page if self._is_passing_over else room
        )

    def _next_short(self) -> Read | None:
        for ordering_key in list(self._short):
            line = self._lines.get(ordering_key)
            if line is not None and line.skipped_after is not None:
                return Read(
                    ordering_key, line.skipped_after, self.read_through, self._window.per_key
                )
            del self._short[ordering_key]
        return None

    def read_done(self, rows: Sequence[ScheduledTask]) -> None:
        """The read has answered these."""
        read, self._reading = self._reading, None
        assert read is not None
        if read.ordering_key is None:
            self.read_through = rows[-1].key if len(rows) == read.limit else read.through
        else:
            self._lines[read.ordering_key].skipped_after = None
        loaded_before = len(self)
        for row in rows:
            again = self._ended_meanwhile.get(row.key, row)
            if again is not None:
                self._take_in(again if again.task.id == row.task.id else row)
        self._ended_meanwhile.clear()
        if read.ordering_key is None:
            is_mostly_passed = 2 * (len(self) - loaded_before) < len(rows)
            # A page that was too large may leave nothing behind, so the next one is as large as
            # there is room.
            self._is_passing_over = not self._evict() and is_mostly_passed
        else:
            line = self._lines[read.ordering_key]
            if line.skipped_after is None and len(rows) == read.limit:
                line.skipped_after = rows[-1].key
            self._changed(read.ordering_key)

    def read_failed(self) -> None:
        """The read has answered nothing."""
        read, self._reading = self._reading, None
        self._ended_meanwhile.clear()
        if read is not None and read.ordering_key is not None:
            self._short[read.ordering_key] = None

    # writing --------------------------------------------------------------------------------------

    def low_water_mark_with(self, tasks: Iterable[NewTask]) -> TaskKey:
        """The floor to keep with the write of these: some may be older than all that was there."""
        return min([self.low_water_mark, *(just_before(task.run_at) for task in tasks)])

    def written(self, tasks: Iterable[NewTask], completed: Collection[TaskKey]) -> None:
        """These are in the store now, but for those whose keys were completed before. What lies in
        the part that was read goes straight to memory; if that is too much, the last by key leave
        it, to be read again later."""
        for task in tasks:
            scheduled = ScheduledTask.of(task)
            if scheduled.key in completed:
                continue
            if scheduled.key <= self.read_through or self.get(scheduled.key) is not None:
                self._take_in(scheduled)
        self._evict()

    def _take_in(self, task: ScheduledTask) -> None:
        line = self._lines.get(task.key.ordering_key) or Line()
        known = line.get(task.key)
        if known is not None:
            if known.task.id != task.task.id:  # the same key again overwrites
                line.put(task)
                self._changed(task.key.ordering_key)
            return
        if line.skipped_after is not None and task.key > line.skipped_after:
            return
        if len(line.tasks) >= self._window.line(len(self)) and (last := line.last_idle) is not None:
            if task.key > last.key:
                line.skipped_after = last.key
                return
            self._load(task)
            self._unload(last.key)
            idle = line.last_idle
            assert idle is not None
            line.skipped_after = idle.key
        else:
            self._load(task)
        self._changed(task.key.ordering_key)

    def _evict(self) -> bool:
        """Forget the last by key of what does not run, until the rest may stay; False when all
        may."""
        lowest = None
        place = len(self._keys) - 1
        while place >= 0 and self._window.is_exceeded(self.live, len(self)):
            key = self._keys[place]
            place -= 1
            if not self.is_running(key):
                self._unload(key)
                line = self._lines[key.ordering_key]
                if not line.tasks:
                    line.skipped_after = (
                        None  # all that was passed over lies above what counts as read from here on
                    )
                self._changed(key.ordering_key)
                lowest = key
        if lowest is None:
            return False
        # Up to the last that stays below it, not to a time: a million tasks may be due at the same
        # one.
        below = bisect_left(self._keys, lowest) - 1
        self.read_through = min(
            self.read_through, self._keys[below] if below >= 0 else just_before(lowest.run_at)
        )
        for ordering_key, line in list(self._lines.items()):
            if line.skipped_after is not None and line.skipped_after >= self.read_through:
                line.skipped_after = None  # all of that is above what counts as read
                self._changed(ordering_key)
        return True

    # running --------------------------------------------------------------------------------------

    def due(self, now: int) -> list[ScheduledTask]:
        """Tasks that may run now, the longest due first: of each ordering key the first one, if
        none of it runs. They count as running from here on."""
        found = []
        for task in self._due(now):
            self._lines[task.key.ordering_key].running = task.key
            self._changed(task.key.ordering_key)
            found.append(task)
        return found

    def _due(self, now: int) -> Iterator[ScheduledTask]:
        while self._ready and self._ready[0][0] <= now:
            if (task := self._fresh(heappop(self._ready))) is not None:
                yield task

    def next_due(self) -> int | None:
        """When the next of the tasks in memory may run (microseconds)."""
        while self._ready:
            if self._fresh(self._ready[0]) is not None:
                return self._ready[0][0]
            heappop(self._ready)
        return None

    def _fresh(self, entry: tuple[int, TaskKey]) -> ScheduledTask | None:
        ready_at, key = entry
        line = self._lines.get(key.ordering_key)
        first = None if line is None else line.next
        return (
            first if first is not None and first.key == key and first.ready_at == ready_at else None
        )

    def ended(self, key: TaskKey, again: ScheduledTask | None) -> None:
        """The end of its run, or of the task without one, is in the store. `again`: the task as it
        waits for its next run; None: its key is completed."""
        if self._reading is not None:
            self._ended_meanwhile[key] = again
        line = self._lines.get(key.ordering_key)
        known = None if line is None else line.get(key)
        if line is None or known is None:
            return
        if line.running == key:
            line.running = None
        if again is not None and self._is_beyond(line, key):
            self._unload(key)
        elif again is None:
            if self._keys[0] == key:
                self._ended_first = key
            self._over.append(key)
            self._unload(key)
        elif known.task.id == again.task.id:
            line.put(again)
        self._changed(key.ordering_key)

    def returned(self, key: TaskKey) -> None:
        """It was handed out and has not run: it may run at once."""
        line = self._lines.get(key.ordering_key)
        if line is not None and line.running == key:
            line.running = None
            if self._is_beyond(line, key):
                self._unload(key)
            self._changed(key.ordering_key)

    def _is_beyond(self, line: Line, key: TaskKey) -> bool:
        """There may be others before it in the store that are not in memory."""
        return key > self.read_through or (
            line.skipped_after is not None and key > line.skipped_after
        )

    # its lines ------------------------------------------------------------------------------------

    def _load(self, task: ScheduledTask) -> None:
        if self._lines.setdefault(task.key.ordering_key, Line()).put(task):
            insort(self._keys, task.key)

    def _unload(self, key: TaskKey) -> None:
        self._lines[key.ordering_key].pop(key)
        del self._keys[bisect_left(self._keys, key)]

    def _changed(self, ordering_key: str) -> None:
        """Something of this line is another: what follows from it is made anew."""
        line = self._lines.get(ordering_key)
        if line is None:
            return
        self._held.discard(ordering_key)
        if line.skipped_after is not None:
            if len(line.tasks) <= self._window.line(len(self)) // 2:
                self._short[ordering_key] = None
        elif not line.tasks:
            del self._lines[ordering_key]
            return
        if line.is_held:
            self._held.add(ordering_key)
        if (first := line.next) is not None:
            heappush(self._ready, (first.ready_at, first.key))
            if len(self._ready) > 4 * len(self._keys) + 64:
                self._ready = [
                    (n.ready_at, n.key)
                    for n in (line.next for line in self._lines.values())
                    if n is not None
                ]
                heapify(self._ready)
