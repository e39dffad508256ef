"""The schedule of a partition: small exact cases, and its promises under random events."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.schedule.schedule import Schedule, ScheduleRead
from fairlead.core.schedule.throughput import Window
from fairlead.model import BEFORE_ALL, NewTask, ScheduledTask, TaskKey
from tests import builders
from tests.tiers import examples

SECOND = 1_000_000


def task(run_at: int, ordering_key: str = "a", unique_key: str = "u", **fields: Any) -> NewTask:
    keys = {"run_at": run_at, "ordering_key": ordering_key, "unique_key": unique_key}
    return builders.task(**{"id": f"{ordering_key}/{run_at}/{unique_key}"} | keys | fields)


def key(run_at: int, ordering_key: str = "a") -> TaskKey:
    return TaskKey(run_at, ordering_key, "u")


class Stored:
    """The store of a schedule, and the record of runs."""

    def __init__(self) -> None:
        self.rows: dict[TaskKey, ScheduledTask] = {}
        self.completed: set[TaskKey] = set()
        self.low_water_mark = BEFORE_ALL

    def read(self, read: ScheduleRead) -> list[ScheduledTask]:
        found = [
            row
            for row_key, row in sorted(self.rows.items())
            if read.after < row_key <= read.through
            and read.ordering_key in (None, row_key.ordering_key)
        ]
        return found[: read.limit]

    def page(self, read: ScheduleRead) -> tuple[list[ScheduledTask], bool]:
        """Return the tasks of a read within its bytes, and whether tasks were left out for them."""
        found, size = self.read(read), 0
        for n, row in enumerate(found):
            size += row.size
            if n and size > read.most_bytes:
                return found[:n], True
        return found, False

    def write(self, schedule: Schedule | None, tasks: list[NewTask]) -> None:
        done = {ScheduledTask.of(t).key for t in tasks} & self.completed
        if schedule is not None:
            self.low_water_mark = schedule.low_water_mark_with(tasks)
        for new in tasks:
            row = ScheduledTask.of(new)
            if row.key in done:
                continue
            known = self.rows.get(row.key)
            if known is None or known.task.id != new.id:
                self.rows[row.key] = row
        if schedule is not None:
            schedule.written(tasks, done)

    def end(self, schedule: Schedule, ran: ScheduledTask, retry_at: int | None = None) -> None:
        again = None
        if retry_at is None:
            self.completed.add(ran.key)
            self.rows.pop(ran.key, None)
        else:
            again = ScheduledTask(ran.key, ran.task, ran.attempt + 1, ran.tries + 1, retry_at)
            if self.rows[ran.key].task.id == ran.task.id:
                self.rows[ran.key] = again
        schedule.ended(ran.key, again)

    def catch_up(self, schedule: Schedule, now: int) -> None:
        while (read := schedule.next_read(now)) is not None:
            schedule.read_done(*self.page(read))


def started(stored: Stored, now: int, window: Window | None = None) -> Schedule:
    schedule = Schedule(stored.low_water_mark, window or Window())
    stored.catch_up(schedule, now)
    return schedule


# small cases --------------------------------------------------------------------------------------


def test_completed_ranges_between_unfinished_tasks_are_returned_once_largest_first() -> None:
    stored = Stored()
    schedule = started(stored, 0)
    stored.write(schedule, [task(n, f"k{n}") for n in range(1, 11)])
    stuck = {1, 4, 9}
    for ran in schedule.due(10):
        stored.end(schedule, ran, retry_at=100 if ran.key.run_at in stuck else None)
    first, second, third = (key(n, f"k{n}") for n in sorted(stuck))
    assert schedule.low_water_mark < first
    pairs = schedule.completed_ranges(2)
    assert pairs == [(second, third), (first, second)]
    assert schedule.completed_ranges(100) == []
    stored.write(schedule, [task(6, "late")])
    (ran,) = schedule.due(10)
    stored.end(schedule, ran)
    assert schedule.completed_ranges(100) == [(second, third)]
    (ran, *_) = schedule.due(100)
    stored.end(schedule, ran)
    assert schedule.low_water_mark >= first and schedule.completed_ranges(100) == [], (
        "ranges below the low-water mark are not returned"
    )


def test_a_burst_of_due_tasks_does_not_fill_memory_and_all_of_them_run() -> None:
    stored = Stored()
    schedule = started(stored, 1000, Window(in_flight=50, page=50))
    for start in range(0, 5000, 100):
        stored.write(schedule, [task(n, f"k{n}") for n in range(start, start + 100)])
        assert len(schedule) <= 50
    ran = []
    while stored.rows:
        due = schedule.due(10_000)
        ran += [t.key.run_at for t in due]
        assert len(schedule) <= 50
        for each in due:
            stored.end(schedule, each)
        stored.catch_up(schedule, 10_000)
    assert ran == list(range(5000)), "the task that is due for longest runs first"


def test_one_stuck_ordering_key_with_thousands_behind_it_delays_no_other() -> None:
    stored = Stored()
    stored.write(
        None, [task(n, "stuck") for n in range(5000)] + [task(5000 + n, f"k{n}") for n in range(10)]
    )
    schedule = started(stored, 10_000, Window(in_flight=100, page=100))
    assert len(schedule.due(10_000)) == 11
    assert len(schedule) <= 30


def test_an_ordering_key_with_very_many_tasks_is_skipped_in_whole_pages() -> None:
    stored = Stored()
    stored.write(
        None, [task(n, "much") for n in range(5000)] + [task(5000 + n, f"k{n}") for n in range(50)]
    )
    schedule, reads = Schedule(stored.low_water_mark, Window(in_flight=100, page=1000)), 0
    while (read := schedule.next_read(10_000)) is not None:
        schedule.read_done(stored.read(read))
        reads += 1
    assert reads <= 8
    assert len(schedule.due(10_000)) == 51


def run_all_large(
    payloads: list[bytes], keys: int, window: Window, failing: int = 0
) -> tuple[int, int]:
    """Run due tasks with these payloads, three at once; the first `failing` ones fail once. Return
    the greatest number of bytes in memory, and the number of reads."""
    store = Stored()
    new = [task(n % 7, f"k{n % keys}", f"u{n}", payload=each) for n, each in enumerate(payloads)]
    store.write(None, new)
    schedule = Schedule(BEFORE_ALL, window)
    most = reads = ran = 0
    now = SECOND
    running: list[ScheduledTask] = []
    while ran < len(payloads):
        now += SECOND
        while (read := schedule.next_read(now)) is not None:
            beside = [(one, store.page(one)) for one in schedule.reads_beside(7)]
            page = store.page(read)
            for one, rows in beside:
                schedule.read_beside_done(one, *rows)
            schedule.read_done(*page)
            reads += 1 + len(beside)
            most = max(most, schedule._lines.size)
        running += schedule.due(now)
        for scheduled in running[:3]:
            fails = failing > 0 and scheduled.tries == 0
            failing -= fails
            store.end(schedule, scheduled, now + 1000 * SECOND if fails else None)
            ran += not fails
        del running[:3]
    assert len(store.completed) == len(payloads) and not schedule._lines.size
    return most, reads


@pytest.mark.parametrize("keys", [1, 40, 300])
def test_due_tasks_with_large_payloads_stay_within_the_bytes_of_their_partition(keys: int) -> None:
    payload = b"x" * 1_000_000  # one object: only the counted bytes are those of 300
    most, reads = run_all_large([payload] * 300, keys, Window(most_bytes=20_000_000))
    assert most <= 20_000_000 + 9 * 1_002_000
    assert reads <= 600


def test_a_task_larger_than_all_bytes_of_its_partition_runs_among_small_ones() -> None:
    sizes = [10, 3_000_000, 10, 10, 5_000_000] * 40
    payloads = [b"x" * size for size in sizes]
    most, reads = run_all_large(payloads, len(sizes), Window(most_bytes=1_000_000))
    assert most <= 1_000_000 + 5_100_000
    assert reads <= 2 * len(sizes)
    most, reads = run_all_large(payloads, 50, Window(most_bytes=1_000_000))
    assert most <= 1_000_000 + 2 * 5_100_000
    assert reads <= 3 * len(sizes)


def test_large_tasks_that_wait_for_retries_stop_no_other_ordering_key() -> None:
    for failing in (1, 50, 200):
        payloads = [b"x" * 1_000_000] * 200
        most, reads = run_all_large(payloads, 200, Window(most_bytes=5_000_000), failing)
        assert most <= 6_500_000
        assert reads <= 600


def test_many_keys_that_wait_for_retries_keep_no_more_payloads_than_the_bytes_allow() -> None:
    store, window = Stored(), Window(most_bytes=4_000_000, in_flight=1000)
    payload = b"x" * 1_000_000
    store.write(None, [task(n % 7, f"k{n}", payload=payload) for n in range(200)])
    schedule, now = Schedule(BEFORE_ALL, window), SECOND
    runs = Counter[TaskKey]()
    most = 0
    while store.rows:
        times = (schedule.next_due(), schedule.next_read_at())
        now = max(now, min(at for at in times if at is not None))
        while (read := schedule.next_read(now)) is not None:
            schedule.read_done(*store.page(read))
            most = max(most, schedule._lines.size)
        for scheduled in schedule.due(now):
            assert scheduled == store.rows[scheduled.key]
            runs[scheduled.key] += 1
            fails = runs[scheduled.key] < 6
            store.end(schedule, scheduled, now + 100 * SECOND if fails else None)
            assert len(schedule) <= 200
    assert set(runs.values()) == {6}
    assert most <= 4_000_000 + 200 * 1_100 + 1_000_000


# random events ------------------------------------------------------------------------------------


@settings(max_examples=examples(120))
@given(seed=st.integers(0, 2**32 - 1))
def test_under_random_events_every_task_ends_once_in_order_and_memory_is_bounded(seed: int) -> None:
    Run(random.Random(seed)).go()


class Run:
    """One random schedule of writes, reads, runs, failures, drops and crashes, checked after every
    step."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.window = Window(
            in_flight=chance.choice([1, 2, 5, 20]),
            per_key=chance.choice([2, 3, 8]),
            page=chance.choice([1, 2, 7, 50]),
            look_ahead=chance.choice([0, 5, 50]),
            prefetch=chance.choice([0, 2]),
            most_bytes=chance.choice([1, 5_000, 20_000, 64_000_000]),
        )
        self.largest = chance.choice([0, 500, 30_000])
        """Bytes of the largest payload."""
        self.now = 0
        self.stored = Stored()
        self.schedule = Schedule(BEFORE_ALL, self.window)
        self.running: list[ScheduledTask] = []
        self.reading: tuple[list[ScheduledTask], bool] | None = None
        self.beside: list[tuple[ScheduleRead, tuple[list[ScheduledTask], bool]]] = []
        """Reads of single ordering keys together with the current one, with their rows."""
        self.submitted: set[TaskKey] = set()
        self.ends: Counter[TaskKey] = Counter()

    def go(self) -> None:
        steps = [
            self.write,
            self.read,
            self.answer,
            self.start,
            self.finish,
            self.retry,
            self.drop,
            self.tick,
            self.crash,
        ]
        weights = [self.chance.choice([1, 3, 10]) for _ in steps[:-1]] + [
            self.chance.choice([0, 0.3, 1])
        ]
        for _ in range(120):
            self.chance.choices(steps, weights)[0]()
            self.check()
        for _ in range(4000):
            if not self.stored.rows:
                break
            self.now += 100
            for step in (self.read, self.answer, self.start, self.finish):
                step()
                self.check()
        assert not self.stored.rows
        assert set(self.ends) == self.submitted and set(self.ends.values()) <= {1}

    def check(self) -> None:
        assert all(row_key > self.stored.low_water_mark for row_key in self.stored.rows)
        assert all(row_key > self.schedule.low_water_mark for row_key in self.stored.rows)
        keys = [ran.key.ordering_key for ran in self.running]
        assert len(keys) == len(set(keys))
        assert len(self.schedule) <= self.window.most_loaded + self.window.page + len(self.running)
        held = [self.schedule.get(row_key) for row_key in self.schedule._lines.task_keys]
        assert self.schedule._lines.size == sum(row.size for row in held if row is not None)
        assert self.schedule._lines.held_bytes == sum(self.schedule._lines.held.values())
        if self.chance.random() < 0.2:
            for above, below in self.schedule.completed_ranges(self.chance.choice([1, 100])):
                assert self.schedule.low_water_mark <= above < below
                assert not [row_key for row_key in self.stored.rows if above < row_key < below]

    def write(self) -> None:
        if self.reading is not None:
            return
        tasks = []
        for n in range(self.chance.choice([1, 3, 20])):
            run_at = max(0, self.now + self.chance.randint(-10, 60))
            tasks.append(
                task(
                    run_at,
                    self.chance.choice("abcde"),
                    self.chance.choice("uvw"),
                    id=str(self.chance.random()),
                    payload=b"x" * self.chance.randint(0, self.largest),
                )
            )
        self.submitted |= {ScheduledTask.of(t).key for t in tasks}
        self.stored.write(self.schedule, tasks)

    def read(self) -> None:
        if self.reading is None and (read := self.schedule.next_read(self.now)) is not None:
            self.reading = self.stored.page(read)
            beside = self.schedule.reads_beside(self.chance.choice([0, 1, 4]))
            self.beside = [(one, self.stored.page(one)) for one in beside]

    def answer(self) -> None:
        if self.reading is not None:
            for one, rows in self.beside:
                self.schedule.read_beside_done(one, *rows)
            self.schedule.read_done(*self.reading)
            self.reading = None

    def start(self) -> None:
        for found in self.schedule.due(self.now):
            assert found.ready_at <= self.now
            before = [
                k
                for k in self.stored.rows
                if k.ordering_key == found.key.ordering_key and k < found.key
            ]
            assert not before, f"{found.key} overtakes {before}"
            assert found == self.stored.rows[found.key]
            self.running.append(found)

    def _ended(self) -> ScheduledTask | None:
        return self.running.pop(self.chance.randrange(len(self.running))) if self.running else None

    def finish(self) -> None:
        if (ran := self._ended()) is not None:
            self.stored.end(self.schedule, ran)
            self.ends[ran.key] += 1

    def retry(self) -> None:
        if (ran := self._ended()) is not None:
            self.stored.end(self.schedule, ran, self.now + self.chance.randint(1, 30))

    def drop(self) -> None:
        idle = [
            row
            for row in self.stored.rows.values()
            if row.key not in {ran.key for ran in self.running}
        ]
        if idle and self.reading is None:
            dropped = self.chance.choice(idle)
            self.stored.end(self.schedule, dropped)
            self.ends[dropped.key] += 1

    def tick(self) -> None:
        self.now += self.chance.randint(1, 40)

    def crash(self) -> None:
        if self.chance.random() < 0.5:
            self.stored.low_water_mark = self.schedule.low_water_mark
        self.reading = None
        if self.chance.random() < 0.5:
            self.running.clear()
        self.schedule = Schedule(self.stored.low_water_mark, self.window, self.running)
