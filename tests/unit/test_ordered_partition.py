"""One partition of an ordered queue on a virtual clock: failure, recovery and release."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import msgspec
import pytest

from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.core.schedule.throughput import Window
from fairlead.errors import BatchTooLarge, StoreUnavailable
from fairlead.model import (
    Finish,
    IncidentReport,
    Outcome,
    PartitionKey,
    ScheduledTask,
    ScheduleRecord,
    State,
    TaskKey,
)
from fairlead.ordered import tenure as tenure_module
from fairlead.ordered.clock_guard import ClockGuard
from fairlead.ordered.context import OrderedContext
from fairlead.ordered.intake import OrderedIntake
from fairlead.ordered.partition import OrderedPartition
from fairlead.ports.observer import Silent
from fairlead.ports.schedule_store import HOUR
from fairlead.ports.task_log import Batch, Drop, Submit, encode
from tests.builders import task
from tests.ids import id_named, name_of
from tests.memory_schedule import MemoryScheduleStore
from tests.memory_task_log import MemoryTaskLog
from tests.simulation.virtual_clock import VirtualClock

KEY = PartitionKey("q", 0)


class Counting(Silent):
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def counted(self, what: str, count: int = 1) -> None:
        self.counts[what] += count


class Bench:
    """A partition with the parts of a node that it needs."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.log = MemoryTaskLog(self.clock)
        self.store = MemoryScheduleStore()
        self.observer = Counting()
        slot_ledger = SlotLedger(1000)
        slot_ledger.register_queue("q", None)
        slot_ledger.register_task("q", "work")
        self.table = TriggerTable(slot_ledger)
        self.stopped: list[tuple[str, bool]] = []
        self.settled: list[str] = []
        self.incidents: list[IncidentReport] = []
        self.is_paused = False
        self.last_pauses: list[str] = []
        self.guard = ClockGuard(self.clock, "node", self.incidents.extend, self.store.now)
        context = OrderedContext(
            node="node",
            log=self.log,
            store=self.store,
            table=self.table,
            dispatch=lambda: None,
            stop_run=lambda id, *stop: self.stopped.append((name_of(id), *stop)),
            settled=lambda ids: self.settled.extend(map(name_of, ids)),
            on_incidents=self.incidents.extend,
            is_paused=lambda queue: self.is_paused,
            on_last_pause=self.last_pauses.append,
            observer=self.observer,
            clock=self.guard,
        )
        self.partition = OrderedPartition(KEY, 1, Window(), context)
        self.tasks: list[asyncio.Task[None]] = []
        self._intake = OrderedIntake({KEY: self.partition}, context)

    def begin(self) -> None:
        self.tasks = [
            asyncio.create_task(self.partition.run()),
            asyncio.create_task(self._intake.run()),
        ]

    def submit(self, after: float = 0.0, ordering_key: str = "a", id: str = "t") -> ScheduledTask:
        run_at = self.clock.now() + round(after * 1_000_000)
        new = task(id_named(id), ordering_key=ordering_key, unique_key=id, submitted_at=run_at)
        self.log.append([Submit(new)])
        self.log.poke()
        return ScheduledTask.of(new)

    async def wait(self, seconds: float) -> None:
        await self.clock.run(lambda: False, seconds)

    def start(self) -> list[str]:
        """Claim the triggers in the table."""
        triggers, _ = self.table.take(100, self.clock.monotonic())
        tasks = [self.partition.in_flight.claim(trigger, self.clock.now()) for trigger in triggers]
        return [name_of(task.id) for task in tasks if task is not None]

    def done(self, id: str) -> None:
        now = self.clock.now()
        self.partition.in_flight.ended(Finish(id_named(id), 2, Outcome.DONE, State.DONE, now, now))

    async def release(self) -> None:
        """Let another node have the partition."""
        self.partition.leave()
        self.tasks[0].cancel()
        await asyncio.wait([self.tasks[0]])
        await self.partition.close()

    async def close(self) -> None:
        for each in self.tasks:
            each.cancel()
        await asyncio.wait(self.tasks)


async def away(*about: Any) -> Any:
    """Respond as a store that is away."""
    raise StoreUnavailable("the store is unavailable")


@pytest.fixture
async def bench() -> Any:
    bench = Bench()
    yield bench
    await bench.close()


async def test_a_failing_partition_waits_longer_each_time_and_starts_over_after_a_good_minute(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    at: list[float] = []

    async def away(partition: PartitionKey) -> Any:
        at.append(bench.clock.monotonic())
        raise StoreUnavailable("the store is unavailable")

    monkeypatch.setattr(bench.store, "take_over", away)
    bench.begin()
    with caplog.at_level(logging.WARNING, "fairlead.ordered"):
        await bench.wait(400)
    pauses = [round(after - before, 3) for before, after in zip(at, at[1:], strict=False)]
    assert pauses[:9] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert bench.partition.trouble == "StoreUnavailable: the store is unavailable"
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


async def test_a_store_outage_is_logged_once_for_all_partitions_with_its_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    context = bench.partition._context
    partitions = [OrderedPartition(PartitionKey("q", n), 10, Window(), context) for n in range(10)]

    monkeypatch.setattr(bench.store, "take_over", away)
    bench.tasks = [asyncio.create_task(partition.run()) for partition in partitions]
    with caplog.at_level(logging.INFO, "fairlead.ordered"):
        await bench.wait(30)
        assert all(partition.reloads >= 5 for partition in partitions)
        logged = [
            (record.levelname, record.partition, record.partitions) for record in caplog.records
        ]
        assert {partition for _, partition, _ in logged} == {PartitionKey("q", 0)} and len(
            logged
        ) == partitions[0].reloads
        assert logged[0] == ("WARNING", PartitionKey("q", 0), 1) and logged[-1] == (
            "ERROR",
            PartitionKey("q", 0),
            10,
        )
        caplog.clear()
        partitions[0].drop()
        bench.tasks[0].cancel()
        await bench.wait(33)
        assert {record.partition for record in caplog.records} == {PartitionKey("q", 1)}, (
            "another partition logs the outage now"
        )
        caplog.clear()
        monkeypatch.undo()
        await bench.wait(61)
    assert [(record.getMessage(), record.partitions) for record in caplog.records] == [
        ("the partitions of ordered queues are loaded again", 10)
    ]


async def test_a_run_outlives_the_failure_of_its_partition_and_its_end_is_written_by_the_next_tenure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.begin()
    first = bench.submit(id="first")
    bench.submit(0.001, id="second")
    await bench.wait(1)
    assert bench.start() == ["first"]

    monkeypatch.setattr(bench.store, "persist", away)
    bench.submit(500, id="another")
    await bench.wait(6)
    assert bench.partition.reloads > 0
    bench.done("first")
    await bench.wait(20)
    assert bench.start() == [], (
        "the end of the run is not stored, so the next task of its key waits"
    )
    monkeypatch.undo()
    await bench.wait(60)
    assert first.key in bench.store.partitions[KEY].completed
    assert bench.start() == ["second"]
    assert bench.settled == ["first"] and bench.stopped == []


async def test_the_next_owner_of_a_partition_learns_that_its_queue_is_paused(bench: Bench) -> None:
    bench.begin()
    await bench.wait(1)
    bench.is_paused = True
    await bench.wait(11)
    bench.is_paused = False  # a node that starts without the database does not know it
    await bench.close()
    assert not bench.last_pauses
    bench.begin()
    await bench.wait(1)
    assert bench.last_pauses == ["q"]


async def test_a_partition_that_leaves_starts_no_task_and_drains_and_can_be_kept_after_all(
    bench: Bench,
) -> None:
    bench.begin()
    bench.submit(id="runs")
    bench.submit(id="waits", ordering_key="b")
    await bench.wait(1)
    triggers, _ = bench.table.take(1, 0.0)
    (task,) = [bench.partition.in_flight.claim(trigger, 0) for trigger in triggers]
    assert task is not None
    bench.partition.leave()
    await bench.wait(1)
    assert len(bench.table) == 0 and not bench.partition.is_drained
    bench.done(name_of(task.id))
    assert await _in_time(bench, bench.partition.drained(10.0))
    bench.partition.stay()
    await bench.wait(1)
    assert len(bench.start()) == 1


async def _in_time(bench: Bench, waiting: Any) -> bool:
    task = asyncio.create_task(waiting)
    await bench.clock.run(task.done, 60)
    return bool(task.result())


async def test_a_lost_partition_still_tries_to_write_the_ends_of_its_runs_and_is_fenced_by_the_later_owner(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.begin()
    for n in range(2):
        bench.submit(ordering_key=f"k{n}", id=f"t{n}")
    await bench.wait(1)
    assert bench.start() == ["t0", "t1"]
    finish = bench.store.finish

    monkeypatch.setattr(bench.store, "finish", away)
    bench.done("t0")
    await bench.wait(0.1)
    bench.tasks[0].cancel()
    ends = bench.partition.drop()
    assert [name_of(end.scheduled.task.id) for end in ends] == ["t0"]
    monkeypatch.setattr(bench.store, "finish", finish)
    await bench.partition.write_last(ends)
    assert [name_of(end.scheduled.task.id) for end in bench.store.history.values()] == ["t0"]
    await bench.store.take_over(KEY)
    await bench.partition.write_last(ends)
    assert "ends of runs could not be written" in caplog.text
    assert len(bench.store.history) == 1


async def test_a_task_overwritten_while_it_waits_for_a_slot_runs_in_its_new_form(
    bench: Bench,
) -> None:
    bench.begin()
    first = bench.submit(id="u")
    await bench.wait(1)
    assert len(bench.table) == 1
    again = task(
        id_named("new"), payload=b"[]", ordering_key="a", unique_key="u", run_at=first.key.run_at
    )
    bench.log.append([Submit(again)])
    bench.log.poke()
    await bench.wait(1)
    assert bench.start() == []
    await bench.wait(1)
    assert bench.start() == ["new"]


async def test_a_long_move_to_the_history_does_not_hold_up_a_release(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def move_long(partition: PartitionKey, range_id: int) -> None:
        begun.set()
        await asyncio.Future()

    monkeypatch.setattr(bench.store, "move_attempts", move_long)
    monkeypatch.setattr(tenure_module, "LAST_MOVE_SECONDS", 0.0)
    bench.begin()
    await bench.wait(1)
    submitted = bench.submit(after=100.0, id="written")
    await bench.wait(1)
    await bench.release()
    assert begun.is_set()
    assert submitted.key in bench.store.partitions[KEY].tasks


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ordering_key": None}, "ordering_key is empty"),
        ({"ordering_key": "a" * 1025}, "ordering_key has 1025 bytes"),
        ({"unique_key": "\x00"}, "must not hold a NUL"),
        ({"run_at": 10**30}, "within the years 1 to 9999"),
        ({"priority": 10}, "priority 10"),
        ({"id": "broken"}, "$.id"),
        ({"name": "a\x00b"}, "$.name"),
        ({"submitted_at": 1 << 63}, "$.submitted_at"),
    ],
)
async def test_an_entry_that_no_schedule_can_hold_is_left_out_and_stops_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], why: str
) -> None:
    """Other programs may write to the log."""
    task = bench.submit(id="before").task
    bench.log.append(
        [Submit(msgspec.structs.replace(task, **{"id": id_named("broken"), **changes}))]
    )
    bench.log.append([Drop("q", 0, TaskKey(10**30, "a", "u"), "ada", 0)])
    bench.submit(ordering_key="b", id="after")
    bench.begin()
    await bench.wait(1)
    assert bench.start() == ["before", "after"]
    assert bench.observer.counts == {"corrupt_log_entries": 2}
    assert [record.getMessage() for record in caplog.records] == [
        "an entry of the task log is left out"
    ] * 2
    assert why in caplog.records[0].error
    assert not await bench.log.is_behind(KEY)
    assert bench.partition.reloads == 0


async def test_an_idle_wake_up_reads_nothing_and_tasks_are_handed_out_at_their_exact_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    read = bench.store.read

    async def counted(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read(*arguments)

    monkeypatch.setattr(bench.store, "read", counted)
    bench.begin()
    await bench.wait(1)
    due = bench.submit(after=10).key.run_at
    assert bench.partition.tenure is not None and reads == 1
    for _ in range(99):
        bench.partition.tenure.poke()
        bench.log.poke()
        await bench.wait(0.1)
        assert bench.start() == []
    await bench.wait((due - bench.clock.now()) / 1_000_000)
    assert (bench.clock.now(), bench.start(), reads) == (due, ["t"], 1)


async def test_a_partition_is_taken_over_only_after_the_log_is_rewound_and_a_failed_rewind_is_repeated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The take-over fences an earlier owner: entries that the earlier owner commits later must be
    received again."""
    done: list[str] = []
    rewind, take_over = bench.log.rewind, bench.store.take_over

    async def failing(partition: PartitionKey) -> None:
        done.append("rewind")
        if len(done) < 3:
            raise StoreUnavailable("the log is unavailable")
        await rewind(partition)

    async def noting(partition: PartitionKey) -> Any:
        done.append("take over")
        return await take_over(partition)

    monkeypatch.setattr(bench.log, "rewind", failing)
    monkeypatch.setattr(bench.store, "take_over", noting)
    bench.submit()
    bench.begin()
    await bench.wait(5)
    assert done == ["rewind", "rewind", "rewind", "take over"]
    assert bench.observer.counts["ordered_reloads"] == 2
    assert bench.start() == ["t"]


async def test_a_batch_refused_by_a_leaving_partition_is_received_again_if_the_partition_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is rewound to the batch, although the first two attempts to rewind it fail."""
    receive, rewind, failures = bench.log.receive, bench.log.rewind, 0

    async def leaving(*about: Any) -> Any:
        batches = await receive(*about)
        if batches:
            bench.partition.leave()
        return batches

    async def failing(partition: PartitionKey) -> None:
        nonlocal failures
        if failures < 2:
            failures += 1
            raise StoreUnavailable("the log is unavailable")
        await rewind(partition)

    bench.begin()
    await bench.wait(1)
    monkeypatch.setattr(bench.log, "receive", leaving)
    monkeypatch.setattr(bench.log, "rewind", failing)
    bench.submit()
    await bench.wait(5)
    assert failures == 2 and await bench.log.is_behind(KEY)
    monkeypatch.setattr(bench.log, "receive", receive)
    bench.partition.stay()
    await bench.wait(5)
    assert bench.start() == ["t"]


async def test_entries_in_partitions_that_the_queue_no_longer_has_run_too(bench: Bench) -> None:
    bench.begin()
    for n in (3, 7):
        late = task(id_named(f"t{n}"), ordering_key=f"k{n}", unique_key=f"t{n}", partition=n)
        bench.log.append([Submit(late)])
    while await bench.log.lag("q"):  # a thread passes them on, in real time
        await bench.wait(1)
    await bench.wait(5)
    assert sorted(bench.start()) == ["t3", "t7"]


async def test_batches_of_the_log_are_bounded_by_bytes_also_while_a_hundred_large_ones_wait(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, sizes = bench.partition.accept, list[int]()

    def noting(batch: Batch) -> None:
        sizes.append(sum(len(encode(entry)) for entry in batch.entries))
        accept(batch)

    monkeypatch.setattr(bench.partition, "accept", noting)
    task = bench.submit(ordering_key="k").task
    payload = b'"%s"' % (b"x" * 1_000_000)
    new = [
        msgspec.structs.replace(task, id=id_named(f"n{n}"), unique_key=f"n{n}", payload=payload)
        for n in range(100)
    ]
    bench.log.append([Submit(each) for each in new])
    bench.begin()
    await bench.wait(30)
    assert not await bench.log.is_behind(KEY)
    assert max(sizes) <= 16_000_000 and len(sizes) < 15


async def test_a_partition_loaded_during_continuous_submits_starts_tasks_after_a_bounded_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def always(partition: PartitionKey) -> bool:
        return True

    monkeypatch.setattr(bench.log, "is_behind", always)
    monkeypatch.setattr(bench.log, "commit", slowed(bench, bench.log.commit))
    bench.submit(id="waits")
    bench.begin()
    started: list[str] = []
    for n in range(30):
        await bench.wait(0.1)
        bench.submit(ordering_key=f"k{n}", id=f"t{n}")
        if started := bench.start():
            break
    assert started[:1] == ["waits"]
    assert 1.0 <= bench.clock.monotonic() < 2.5, (
        "tasks start when the earlier entries are in the schedule, not at the limit of ten seconds"
    )


def slowed(bench: Bench, call: Any) -> Any:
    async def slow(*arguments: Any) -> Any:
        await bench.clock.sleep(0.3)
        return await call(*arguments)

    return slow


def break_row(bench: Bench, scheduled: ScheduledTask) -> None:
    """Let the store return the row of this task as unreadable."""
    rows = bench.store.partitions[KEY].tasks
    rows[scheduled.key] = msgspec.structs.replace(scheduled, unreadable="no JSON")


async def test_an_unreadable_task_blocks_its_ordering_key_only_until_its_row_is_corrected(
    bench: Bench,
) -> None:
    await bench.store.take_over(KEY)
    tasks = [bench.submit(ordering_key=key, id=key + n) for n in "123" for key in "ab"]
    bench.log.entries.clear()
    await bench.store.persist(KEY, 1, [task.task for task in tasks], ScheduleRecord())
    break_row(bench, tasks[2])
    bench.begin()
    await bench.wait(1)
    for n in "123":
        assert bench.start() == ([f"a{n}", f"b{n}"] if n == "1" else [f"b{n}"])
        for id in [f"a{n}", f"b{n}"]:
            bench.done(id)
        await bench.wait(1)
    assert bench.partition.reloads == 0 and bench.observer.counts == {"unreadable_rows": 1}
    (incident,) = bench.incidents
    key = tasks[2].key
    assert incident.subject == f"q/0/{key.run_at // HOUR}/{key.run_at}/a/a2"
    assert "no JSON" in incident.details and "fairlead ordered drop q" in incident.details
    await bench.wait(40)
    assert bench.start() == []
    assert bench.store.partitions[KEY].record.unreadable == 1
    assert bench.store.partitions[KEY].record.low_water_mark < key
    bench.store.partitions[KEY].tasks[key] = tasks[2]
    await bench.wait(31)
    assert bench.start() == ["a2"]
    bench.done("a2")
    await bench.wait(6)
    assert bench.start() == ["a3"]
    assert bench.store.partitions[KEY].record.unreadable == 0


class Picky:
    """Refuse writes of the store of a bench: large ones, and single tasks and ends."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 1000
        self.refuses: set[str] = set()
        """Names of the refused tasks."""
        self.sizes: list[int] = []
        """Sizes of all writes of tasks."""
        persist, finish = bench.store.persist, bench.store.finish

        async def picky_persist(key: Any, range_id: int, tasks: Any, record: Any) -> Any:
            self.sizes.append(len(tasks))
            self._check([task.id for task in tasks])
            return await persist(key, range_id, tasks, record)

        async def picky_finish(key: Any, range_id: int, ends: Any) -> None:
            self._check([end.scheduled.task.id for end in ends])
            await finish(key, range_id, ends)

        monkeypatch.setattr(bench.store, "persist", picky_persist)
        monkeypatch.setattr(bench.store, "finish", picky_finish)

    def _check(self, ids: list[str]) -> None:
        if len(ids) > self.most:
            raise BatchTooLarge("raise temp_file_limit")
        if self.refuses.intersection(map(name_of, ids)):
            raise RuntimeError("no changes before Monday")


async def test_entries_that_the_store_refuses_together_are_persisted_in_smaller_batches(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    picky = Picky(bench, monkeypatch)
    picky.most = 7
    for n in range(100):
        bench.submit(ordering_key=f"k{n}", id=f"t{n}")
    bench.begin()
    await bench.wait(1)
    assert len(bench.store.partitions[KEY].tasks) == 100
    assert bench.partition.reloads == 0
    assert sum(size > 7 for size in picky.sizes) <= len(picky.sizes) / 2


async def test_a_task_that_the_store_refuses_alone_holds_back_only_its_key_and_the_next_batch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    picky = Picky(bench, monkeypatch)
    picky.refuses = {"bad"}
    for n in range(20):
        bench.submit(ordering_key=f"k{n}", id=f"t{n}")
    bench.submit(ordering_key="a", id="bad")
    bench.submit(ordering_key="a", id="behind")
    for n in range(20, 40):
        bench.submit(ordering_key=f"k{n}", id=f"t{n}")
    bench.begin()
    await bench.wait(30)
    started = bench.start()
    assert sorted(started) == sorted(f"t{n}" for n in range(40))
    for name in started:
        bench.done(name)
    await bench.wait(100)
    assert bench.start() == [] and bench.partition.reloads == 0
    assert ("write_refused", id_named("bad")) in {(i.kind, i.subject) for i in bench.incidents}
    picky.refuses.clear()
    bench.submit(ordering_key="b", id="later")
    await bench.wait(70)
    assert sorted(bench.start()) == ["bad", "later"]
    bench.done("bad")
    await bench.wait(1)
    assert bench.start() == ["behind"]


async def test_many_refused_tasks_do_not_keep_a_partition_from_reading_and_starting_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    picky = Picky(bench, monkeypatch)
    picky.refuses = {f"bad{n}" for n in range(1000)}
    for n in range(1000):
        bench.submit(ordering_key=f"b{n}", id=f"bad{n}")
    later = range(400, 1200, 10)  # the look-ahead is 300 s
    for seconds in later:
        bench.submit(seconds, ordering_key=f"k{seconds}", id=f"t{seconds}")
    bench.begin()
    began = bench.clock.monotonic()
    late = []
    for seconds in later:
        await bench.wait(began + seconds + 2 - bench.clock.monotonic())
        started = bench.start()
        late += [] if started == [f"t{seconds}"] else [(seconds, started)]
        for name in started:
            bench.done(name)
    assert not late
    picky.refuses.clear()
    await bench.wait(200)
    assert len(bench.start()) == 100


async def refused_end(bench: Bench, picky: Picky) -> tuple[ScheduledTask, ScheduledTask]:
    """Run what may run; the store refuses the end of the first of two tasks of a key. Return both."""
    bad = bench.submit(ordering_key="a", id="bad")
    behind = bench.submit(after=0.001, ordering_key="a", id="behind")
    bench.begin()
    await bench.wait(1)
    picky.refuses = {"bad"}
    for name in bench.start():
        bench.done(name)
    await bench.wait(100)
    return bad, behind


async def test_a_refused_end_keeps_its_key_and_lets_the_partition_be_released(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.submit(ordering_key="b", id="other")
    await refused_end(bench, Picky(bench, monkeypatch))
    assert bench.settled == ["other"] and bench.start() == []
    await bench.release()
    assert bench.partition.is_drained
    assert [task.task.id for task in bench.store.partitions[KEY].tasks.values()] == [
        id_named("bad"),
        id_named("behind"),
    ]


async def test_a_person_ends_a_task_whose_end_the_store_refuses(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    picky = Picky(bench, monkeypatch)
    bad, _ = await refused_end(bench, picky)
    bench.log.append([Drop("q", 0, bad.key, "ada", bench.clock.now())])
    bench.log.poke()
    await bench.wait(100)
    assert bench.start() == [] and bench.partition.reloads == 0
    picky.refuses.clear()
    await bench.wait(70)
    assert bench.start() == ["behind"]
