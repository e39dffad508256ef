"""One partition of an ordered queue on a virtual clock: how it fails, comes back, and lets go."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from fairlead.core.booking import Booking
from fairlead.core.throughput import Window
from fairlead.core.trigger_table import TriggerTable
from fairlead.errors import StoreUnavailable
from fairlead.model import Finish, NewTask, Outcome, PartitionKey, ScheduledTask, State
from fairlead.ordered.intake import Intake
from fairlead.ordered.life import Life
from fairlead.ordered.partition import Partition, pause_after
from fairlead.ordered.surroundings import Surroundings
from fairlead.ports.observer import Silent
from fairlead.ports.schedule_store import Fenced
from fairlead.ports.task_log import Submit
from fairlead.testing.memory_schedule import MemoryScheduleStore
from fairlead.testing.memory_task_log import MemoryTaskLog
from tests.simulation.virtual_clock import VirtualClock

KEY = PartitionKey("q", 0)


class Counting(Silent):
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def counted(self, what: str, count: int = 1) -> None:
        self.counts[what] += count


class Bench:
    """A partition, and what a node would do for it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.log = MemoryTaskLog(self.clock)
        self.store = MemoryScheduleStore()
        self.observer = Counting()
        booking = Booking(1000)
        booking.register_queue("q", None)
        booking.register_task("q", "work")
        self.table = TriggerTable(booking)
        self.stopped: list[tuple[str, bool]] = []
        self.settled: list[str] = []
        around = Surroundings(
            "node", self.log, self.store, self.table, lambda: None, lambda *stop: self.stopped.append(stop), self.settled.extend,
            self.observer, self.clock,
        )  # fmt: skip
        self.partition = Partition(KEY, Window(), around)
        self.tasks: list[asyncio.Task[None]] = []
        self._intake = Intake({KEY: self.partition}, around)

    def begin(self) -> None:
        self.tasks = [asyncio.create_task(self.partition.run()), asyncio.create_task(self._intake.run())]

    def submit(self, after: float = 0.0, ordering_key: str = "a", id: str = "t") -> ScheduledTask:
        run_at = self.clock.now() + round(after * 1_000_000)
        task = NewTask(id, "q", 0, "work", b"{}", "json", 5, "", 1.0, ordering_key, id, run_at, run_at, False, None)
        self.log.append([Submit(task)])
        self.log.look()
        return ScheduledTask.of(task)

    async def wait(self, seconds: float) -> None:
        await self.clock.run(lambda: False, seconds)

    def start(self) -> list[str]:
        """Grab what waits in the table."""
        triggers, _ = self.table.take(100, self.clock.monotonic())
        tasks = [self.partition.grab(trigger, self.clock.now()) for trigger in triggers]
        return [task.id for task in tasks if task is not None]

    def done(self, id: str) -> None:
        now = self.clock.now()
        self.partition.ended(Finish(id, 2, Outcome.DONE, State.DONE, now, now))

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


@pytest.fixture
async def bench() -> Any:
    bench = Bench()
    yield bench
    await bench.close()


async def test_it_waits_longer_and_longer_while_it_fails_and_says_so_and_begins_anew_after_a_good_minute(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    at: list[float] = []

    async def away(partition: PartitionKey) -> Any:
        at.append(bench.clock.monotonic())
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(bench.store, "take_over", away)
    bench.begin()
    with caplog.at_level(logging.WARNING, "fairlead.ordered"):
        await bench.wait(400)
    pauses = [round(after - before, 3) for before, after in zip(at, at[1:], strict=False)]
    assert pauses[:9] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert bench.partition.trouble == "StoreUnavailable: the store is away"
    assert bench.observer.counts["ordered_reloads"] == bench.partition.reloads == len(at)
    levels = [record.levelno for record in caplog.records if record.name == "fairlead.ordered"]
    assert levels == [logging.WARNING] * 4 + [logging.ERROR] * (len(at) - 4)
    monkeypatch.undo()
    bench.submit(id="late")
    await bench.wait(61)
    assert bench.start() == ["late"]
    assert bench.partition.gauges().failing == 0
    await bench.wait(70)
    assert (bench.partition.reloads, bench.store.partitions[KEY].record.trouble) == (0, None)


def test_pauses_grow_to_a_minute_and_stay_there_for_ever() -> None:
    assert [pause_after(n) for n in (1, 2, 3, 8, 100_000)] == [0.5, 1.0, 2.0, 60.0, 60.0]


async def test_a_run_outlives_the_failure_of_its_partition_and_its_end_is_written_by_the_next_life(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.begin()
    first = bench.submit(id="first")
    bench.submit(0.001, id="second")
    await bench.wait(1)
    assert bench.start() == ["first"]

    async def away(*rest: Any) -> Any:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(bench.store, "persist", away)
    bench.submit(500, id="another")
    await bench.wait(6)
    assert bench.partition.reloads > 0
    bench.done("first")
    await bench.wait(20)
    assert bench.start() == [], "its end is not in the store, so the next of its key waits"
    monkeypatch.undo()
    await bench.wait(60)
    assert first.key in bench.store.partitions[KEY].completed
    assert bench.start() == ["second"]
    assert bench.settled == ["first"] and bench.stopped == []


async def test_an_owner_that_is_fenced_waits_for_its_lease_to_tell_before_it_takes_over_again(bench: Bench) -> None:
    bench.begin()
    bench.submit(id="first")
    await bench.wait(1)
    await bench.store.take_over(KEY)
    bench.submit(id="second")
    await bench.wait(9)
    with pytest.raises(Fenced):
        await bench.store.keep(KEY, 1, bench.store.partitions[KEY].record)
    assert bench.store.partitions[KEY].range_id == 2
    await bench.wait(3)
    assert bench.store.partitions[KEY].range_id == 3, "it is still wanted"


async def test_a_partition_that_leaves_starts_nothing_drains_and_may_stay_after_all(bench: Bench) -> None:
    bench.begin()
    bench.submit(id="runs")
    bench.submit(id="waits", ordering_key="b")
    await bench.wait(1)
    triggers, _ = bench.table.take(1, 0.0)
    (task,) = [bench.partition.grab(trigger, 0) for trigger in triggers]
    assert task is not None
    bench.partition.leave()
    await bench.wait(1)
    assert len(bench.table) == 0 and not bench.partition.is_drained
    bench.done(task.id)
    assert await _in_time(bench, bench.partition.drained(10.0))
    bench.partition.stay()
    await bench.wait(1)
    assert len(bench.start()) == 1


async def _in_time(bench: Bench, waiting: Any) -> bool:
    task = asyncio.create_task(waiting)
    await bench.clock.run(task.done, 60)
    return bool(task.result())


async def test_a_partition_that_is_lost_stops_its_runs_and_writes_none_of_their_ends(bench: Bench) -> None:
    bench.begin()
    bench.submit(id="first")
    await bench.wait(1)
    bench.start()
    bench.tasks[0].cancel()
    bench.partition.drop()
    assert bench.stopped == [("first", False)]
    bench.done("first")
    await bench.wait(1)
    assert bench.store.history == {} and bench.settled == ["first"]


async def test_a_task_overwritten_while_it_waits_for_a_slot_runs_as_it_is_now(bench: Bench) -> None:
    bench.begin()
    first = bench.submit(id="u")
    await bench.wait(1)
    assert len(bench.table) == 1
    again = NewTask("new", "q", 0, "work", b"[]", "json", 5, "", 1.0, "a", "u", first.key.run_at, 0, False, None)
    bench.log.append([Submit(again)])
    bench.log.look()
    await bench.wait(1)
    assert bench.start() == []
    await bench.wait(1)
    assert bench.start() == ["new"]


async def test_a_partition_given_up_in_the_middle_of_a_write_leaves_a_floor_below_what_that_write_brought(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.begin()
    await bench.wait(1)
    persist = bench.store.persist

    async def unanswered(*rest: Any) -> Any:
        await persist(*rest)
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(bench.store, "persist", unanswered)
    submitted = bench.submit(id="written")
    await bench.wait(1)
    bench.partition.trouble = "something new to keep"
    bench.partition.leave()
    bench.tasks[0].cancel()
    await asyncio.wait([bench.tasks[0]])
    await bench.partition.close()
    rows = bench.store.partitions[KEY]
    assert submitted.key in rows.tasks and rows.record.floor < submitted.key


async def test_one_that_is_cancelled_while_it_fails_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task group that has failures raises these, and forgets that it was cancelled."""

    async def fails_as_it_is_cancelled(life: Life) -> None:
        async def part() -> None:
            bench.tasks[0].cancel()
            raise StoreUnavailable("the store is away")

        async with asyncio.TaskGroup() as parts:
            parts.create_task(part())

    monkeypatch.setattr(Life, "run", fails_as_it_is_cancelled)
    bench.begin()
    await bench.wait(100)
    assert bench.tasks[0].cancelled()
