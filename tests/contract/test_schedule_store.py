"""Promises of `fairlead.ports.schedule_store.ScheduleStore`, for every adapter on its real
database."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from fairlead.backends.sql.migrate import migrate
from fairlead.backends.sql.schedule import SqlScheduleStore, append_unfenced, attempt_row
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.clock import SYSTEM_CLOCK
from fairlead.connect import task_store
from fairlead.core.sharding.partitions import partition_of
from fairlead.errors import StoreUnavailable
from fairlead.model import (
    BEFORE_ALL,
    AttemptRecord,
    NewTask,
    Outcome,
    PartitionKey,
    RunEnd,
    ScheduledTask,
    ScheduleRecord,
    State,
    TaskKey,
)
from fairlead.ports.schedule_store import HOUR, Fenced, ScheduleStore
from fairlead.ports.statements import Steps
from fairlead.testing.contract.tasks import make
from tests.adapters import schedule_of
from tests.databases import beside_an_open_transaction
from tests.memory_schedule import MemoryScheduleStore

PARTITION, BESIDE, ELSEWHERE = (
    PartitionKey("reminders", 3),
    PartitionKey("reminders", 4),
    PartitionKey("letters", 3),
)
AWKWARD = """'); DROP TABLE fairlead_schedule;-- "quoted" \\ %s $1 ?1 ü 🧭\nline\ttab"""
END = TaskKey(1 << 60, "", "")
NOW = 470_000 * HOUR

Adapter = Any
"""A ScheduleStore."""


async def opened(kind: str, tasks: SqlTaskStore, url: str = "") -> Adapter:
    """Return the adapter; its history is in `tasks`, or in the adapter if it is alone."""
    if kind.startswith("cassandra"):
        pytest.importorskip(
            "cassandra", reason="the driver is missing: pip install 'fairlead[cassandra]'"
        )
        from fairlead.backends.cassandra.schedule import CassandraScheduleStore

        return CassandraScheduleStore(url, None if kind == "cassandra alone" else tasks)
    return MemoryScheduleStore() if kind == "memory" else schedule_of(tasks)


def attempts(store: Adapter, tasks: SqlTaskStore, task_id: str) -> list[Any]:
    """Return the history of a task."""
    if isinstance(store, MemoryScheduleStore):
        rows = [
            attempt_row(end) for end in store.history.values() if end.scheduled.task.id == task_id
        ]
        return [AttemptRecord(n, *row) for n, row in enumerate(rows)]
    if getattr(store, "_history", store) is None:
        rows = [row for row in runs_here(store) if row[0] == task_id]
        rows.sort(key=lambda row: AttemptRecord(0, *row).finished_at)
        return [AttemptRecord(n, *row) for n, row in enumerate(rows)]
    return tasks.database.read_now(tasks.attempts(task_id))


def runs_here(store: Adapter) -> list[list[Any]]:
    """Return the runs of a history in Cassandra, with the columns of `attempt_row`."""
    with store.session.make_cluster() as cluster:
        session = cluster.connect(store.session.url.keyspace)
        return [msgspec.json.decode(row) for (row,) in session.execute(_RUNS)]


_RUNS = "SELECT row FROM fairlead_history"


@pytest.fixture(params=["memory", "sqlite", "postgres", "cassandra", "cassandra alone"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def tasks(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[SqlTaskStore]:
    """Return the task store with the history."""
    tasks = task_store(
        str(request.getfixturevalue("postgres_url" if kind == "postgres" else "sqlite_url"))
    )
    migrate(tasks.database)
    yield tasks
    await tasks.database.close_async()
    tasks.database.close()  # type: ignore[attr-defined]


@pytest.fixture
async def store(
    kind: str, tasks: SqlTaskStore, request: pytest.FixtureRequest
) -> AsyncIterator[ScheduleStore]:
    is_cassandra = kind.startswith("cassandra")
    url = str(request.getfixturevalue("migrated_cassandra_url")) if is_cassandra else ""
    store = await opened(kind, tasks, url)
    await store.migrate()
    yield store
    await store.close()


def task(run_at: int, ordering_key: str = "a", unique_key: str = "u", **changes: Any) -> NewTask:
    (made,) = make(
        queue=PARTITION.queue,
        partition=PARTITION.partition,
        name="work",
        fairness_key="tenant",
        weight=1.5,
        ordering_key=ordering_key,
        unique_key=unique_key,
        run_at=run_at,
        submitted_at=NOW,
        context='{"trace": "1"}',
    )
    return msgspec.structs.replace(made, **changes)


def ended(scheduled: ScheduledTask, **changes: Any) -> RunEnd:
    end = RunEnd(
        scheduled,
        scheduled.attempt + 1,
        scheduled.tries + 1,
        Outcome.DONE,
        State.DONE,
        NOW + 3,
        None,
        NOW + 1,
        NOW + 2,
        None,
        None,
        "node",
    )
    return msgspec.structs.replace(end, **changes)


def again(scheduled: ScheduledTask, retry_at: int) -> RunEnd:
    return ended(
        scheduled,
        outcome=Outcome.RETRIED,
        next_state=State.WAITING,
        retry_at=retry_at,
        error_type="E",
        error_text=AWKWARD,
    )


RECORD = ScheduleRecord(
    low_water_mark=TaskKey(5, AWKWARD, "u"),
    read_through=END,
    loaded=3,
    in_flight=2,
    node="n",
    reloads=1,
    trouble="x",
)


async def everything(store: Adapter, partition: PartitionKey = PARTITION) -> list[ScheduledTask]:
    return await read(store, partition, BEFORE_ALL, END, 100_000)


async def read(store: Adapter, *where: Any) -> list[ScheduledTask]:
    return list((await store.read(*where)).tasks)


async def holding(
    store: Adapter, tasks: Sequence[NewTask], record: ScheduleRecord = ScheduleRecord()
) -> tuple[int, list[ScheduledTask]]:
    """Take over the partition and persist these tasks; return the range id and their rows."""
    range_id = (await store.take_over(PARTITION)).range_id
    await store.persist(PARTITION, range_id, tasks, record)
    return range_id, await everything(store)


async def test_every_take_over_raises_the_range_id_and_finds_the_saved_record(
    store: Adapter,
) -> None:
    first = await store.take_over(PARTITION)
    assert first.record == ScheduleRecord()
    await store.keep(PARTITION, first.range_id, RECORD)
    second = await store.take_over(PARTITION)
    assert second.record == RECORD
    assert second.range_id > first.range_id >= 1
    assert (await store.take_over(BESIDE)).record == ScheduleRecord()


async def test_only_the_later_of_two_owners_can_write(store: Adapter) -> None:
    first = (await store.take_over(PARTITION)).range_id
    await store.persist(PARTITION, first, [task(1)], ScheduleRecord())
    (stored,) = await everything(store)
    second = (await store.take_over(PARTITION)).range_id
    for write in (
        store.persist(PARTITION, first, [task(2)], RECORD),
        store.finish(PARTITION, first, [ended(stored)]),
        store.keep(PARTITION, first, RECORD),
        store.clean(PARTITION, first, END.run_at),
    ):
        with pytest.raises(Fenced):
            await write
    assert await everything(store) == [stored]
    assert (await store.take_over(PARTITION)).record == ScheduleRecord()
    with pytest.raises(Fenced):
        await store.persist(PARTITION, second, [task(2)], RECORD)
    with pytest.raises(Fenced):
        await store.persist(BESIDE, 1, [task(2)], RECORD)


async def test_tasks_are_read_in_the_order_of_their_keys_from_any_key_across_hours(
    store: Adapter,
) -> None:
    range_id = (await store.take_over(PARTITION)).range_id
    times = [NOW - 1, NOW, NOW + 1, NOW + HOUR - 1, NOW + HOUR, NOW + 5 * HOUR, NOW + 500 * HOUR]
    tasks = [
        task(at, o, u)
        for at in times
        for o in ("", "a", "aa", "B", AWKWARD, "é", "\uffff", "🧭")
        for u in ("u", "U", "ü")
        if o
    ]
    shuffled = random.Random(7).sample(tasks, len(tasks))
    assert await store.persist(PARTITION, range_id, shuffled, RECORD) == set()
    expected = sorted(map(ScheduledTask.of, tasks), key=lambda scheduled: scheduled.key)
    assert await everything(store) == expected
    keys = [scheduled.key for scheduled in expected]
    for first, last, limit in [(0, 3, 100), (5, 60, 7), (20, 21, 1), (10, 10, 5), (30, 20, 5)]:
        found = await read(store, PARTITION, keys[first], keys[last], limit)
        assert found == expected[first + 1 : last + 1][:limit]
    assert await read(store, PARTITION, TaskKey(NOW, "", ""), TaskKey(NOW + 2, "", ""), 100) == [
        s for s in expected if NOW <= s.key.run_at <= NOW + 1
    ]
    of_one = [s for s in expected if s.key.ordering_key == AWKWARD]
    assert await read(store, PARTITION, BEFORE_ALL, END, 1000, AWKWARD) == of_one
    assert await read(store, PARTITION, of_one[1].key, of_one[6].key, 4, AWKWARD) == of_one[2:6]
    assert await everything(store, BESIDE) == await everything(store, ELSEWHERE) == []
    assert await read(store, PARTITION, END, BEFORE_ALL, 100) == [], (
        "a range whose end is before its start is empty"
    )


async def test_a_page_ends_before_it_has_too_many_bytes_and_says_so(store: Adapter) -> None:
    large = [
        task(HOUR * n, f"k{n % 2}", f"u{n}", payload=b'"' + b"\xc3\xa4" * 30_000 + b'"')
        for n in range(1, 7)
    ]
    fence = (await store.take_over(PARTITION)).range_id
    await store.persist(PARTITION, fence, large, ScheduleRecord())
    keys = [ScheduledTask.of(each).key for each in large]

    async def page(most_bytes: int, limit: int = 9, *more: str) -> tuple[list[TaskKey], bool]:
        found = await store.read(PARTITION, BEFORE_ALL, END, limit, *(more or (None,)), most_bytes)
        return [each.key for each in found.tasks], found.is_cut

    assert await page(10_000_000) == (keys, False)
    assert await page(10_000_000, 6) == (keys, False)
    assert await page(10_000_000, 2) == (keys[:2], False)
    assert await page(0) == (keys[:1], True)
    assert await page(59_000) == (keys[:1], True)
    assert await page(250_000, 2) == (keys[:2], False)
    some, is_cut = await page(250_000)
    assert (some, is_cut) == (keys[: len(some)], True) and 2 <= len(some) <= 4
    assert await page(10_000_000, 9, "k1") == (keys[::2], False)
    assert await page(1, 9, "k1") == (keys[:1], True)
    assert await page(1, 1, "k1") == (keys[:1], False)


async def test_another_task_with_the_same_key_overwrites_and_the_same_task_changes_nothing(
    store: Adapter,
) -> None:
    range_id = (await store.take_over(PARTITION)).range_id
    first, second = task(1), task(1, payload=b'{"n": 2}')
    await store.persist(PARTITION, range_id, [first], RECORD)
    (stored,) = await everything(store)
    await store.finish(PARTITION, range_id, [again(stored, 99)])
    await store.persist(PARTITION, range_id, [first], RECORD)
    assert await everything(store) == [ScheduledTask(stored.key, first, 1, 1, 99)]
    await store.persist(PARTITION, range_id, [second], RECORD)
    assert await everything(store) == [ScheduledTask.of(second)]
    await store.finish(PARTITION, range_id, [again(stored, 100)])  # of the overwritten task
    assert await everything(store) == [ScheduledTask.of(second)]


async def test_a_task_with_a_completed_key_is_never_persisted(store: Adapter) -> None:
    range_id = (await store.take_over(PARTITION)).range_id
    await store.persist(PARTITION, range_id, [task(1), task(2), task(1, "b")], RECORD)
    done = (await everything(store))[0]
    await store.finish(PARTITION, range_id, [ended(done)])
    assert [s.key for s in await everything(store)] == [TaskKey(1, "b", "u"), TaskKey(2, "a", "u")]
    assert await store.find(PARTITION, done.key) is None
    assert await store.persist(PARTITION, range_id, [task(1), task(3)], RECORD) == {done.key}
    range_id = (await store.take_over(PARTITION)).range_id
    assert await store.persist(PARTITION, range_id, [task(1)], RECORD) == {done.key}
    assert [s.key for s in await everything(store)] == [
        TaskKey(1, "b", "u"),
        TaskKey(2, "a", "u"),
        TaskKey(3, "a", "u"),
    ]


async def test_a_run_is_in_the_history_once_even_if_its_end_is_reported_twice(
    store: Adapter, tasks: SqlTaskStore
) -> None:
    range_id, (stored,) = await holding(store, [task(NOW)], RECORD)
    failed = again(stored, NOW + 50)
    for _ in range(3):
        await store.finish(PARTITION, range_id, [failed])
    (stored,) = await everything(store)
    assert (stored.attempt, stored.tries, stored.retry_at) == (1, 1, NOW + 50)
    for _ in range(3):
        await store.finish(PARTITION, range_id, [ended(stored, finished_at=NOW + 60)])
    first, second = map(msgspec.structs.asdict, attempts(store, tasks, stored.task.id))
    assert (
        first.items()
        >= {
            "attempt": 1,
            "tries": 1,
            "outcome": "retried",
            "next_state": "WAITING",
            "run_at": NOW,
            "error_text": AWKWARD,
            "started_at": NOW + 2,
            "finished_at": NOW + 3,
            "node": "node",
        }.items()
    )
    assert (
        second.items()
        >= {
            "attempt": 2,
            "tries": 2,
            "outcome": "done",
            "next_state": "DONE",
            "run_at": NOW + 50,
            "queue": PARTITION.queue,
            "partition": PARTITION.partition,
            "ordering_key": "a",
            "fairness_key": "tenant",
        }.items()
    )
    assert await everything(store) == []


@pytest.mark.parametrize("way", ["finish", "append_unfenced"])
def test_a_run_whose_commit_hangs_while_another_connection_appends_it_is_in_the_history_once(
    postgres_url: str, way: str
) -> None:
    tasks = task_store(postgres_url)
    migrate(tasks.database)
    schedule = schedule_of(tasks)
    range_id = tasks.database.run(schedule._take_over(PARTITION)).range_id
    end = ended(ScheduledTask.of(task(1)))

    def append() -> Steps[None]:
        if way == "finish":
            return schedule._finish(PARTITION, range_id, [end])
        return append_unfenced(schedule._sql, [attempt_row(end)])

    beside_an_open_transaction(tasks.database, append(), append())
    assert len(attempts(schedule, tasks, end.scheduled.task.id)) == 1
    tasks.database.close()


async def test_an_unfinished_task_is_found_by_its_id_alone(store: Adapter) -> None:
    one, later, replaced = task(HOUR), task(99_000 * HOUR, "b"), task(HOUR, "c")
    foreign = task(HOUR, AWKWARD, AWKWARD, id="00000000-0000-4000-8000-000000000001")
    fence = (await store.take_over(PARTITION)).range_id
    await store.persist(PARTITION, fence, [one, later, replaced, foreign], ScheduleRecord())
    again_ = task(HOUR, "c")
    await store.persist(PARTITION, fence, [again_], ScheduleRecord())
    for each in (one, later, again_, foreign):
        assert store.find_now(each.id) == ScheduledTask.of(each)
    assert store.find_now(replaced.id) is None
    assert store.find_now(task(HOUR).id) is None
    assert store.find_now("no id") is None
    failed = again(ScheduledTask.of(later), NOW)
    await store.finish(PARTITION, fence, [ended(ScheduledTask.of(one)), failed])
    assert store.find_now(one.id) is None
    assert store.find_now(later.id) == failed.again


async def test_a_task_is_found_by_its_id_after_a_move_to_another_partition(store: Adapter) -> None:
    keys = [key for key in map(str, range(99)) if partition_of(key, 0, 5) == BESIDE.partition]
    moved, ran = task(HOUR, keys[0]), task(2 * HOUR, keys[1])
    fences = {
        each.partition: (await store.take_over(each)).range_id for each in (PARTITION, BESIDE)
    }
    await store.persist(PARTITION, fences[3], [moved, ran], ScheduleRecord())
    after, steps = None, 0
    while steps == 0 or after is not None:
        steps += 1
        after = (await store.move_tasks(PARTITION, fences, 5, after)).after
    found = store.find_now(moved.id)
    assert (found.key, found.task.partition) == (ScheduledTask.of(moved).key, BESIDE.partition)
    await store.finish(BESIDE, fences[4], [ended(store.find_now(ran.id))])
    assert store.find_now(ran.id) is None


@pytest.mark.parametrize("kind", ["cassandra alone"], indirect=True)
async def test_a_task_that_has_ended_is_found_by_its_id_also_after_a_crash_before_its_index_row(
    store: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairlead.backends.cassandra.cluster import CassandraCluster

    tasks = CassandraCluster(cassandra_url_of(store))
    tasks.migrate()
    find = partial(read_task, tasks)
    done, killed, waiting, replaced = (task(HOUR, name) for name in "abcd")
    fence = (await store.take_over(PARTITION)).range_id
    new = [done, killed, waiting, replaced]
    await store.persist(PARTITION, fence, new, ScheduleRecord())
    await store.persist(PARTITION, fence, [task(HOUR, "d")], ScheduleRecord())
    (other,) = await read(store, PARTITION, BEFORE_ALL, END, 9, "d")
    assert [find(each.id) for each in new] == [None] * 4
    counted = Counter[str]()
    batch = store.session.batch

    async def counting(statements: Any) -> None:
        counted.update(name for name, _ in statements)
        await batch(statements)

    has_ended = asyncio.Event()

    async def killing(statements: Any) -> None:
        if statements[0][0] == "end_id":
            await has_ended.wait()
            raise StoreUnavailable("killed")
        await batch(statements)
        if any(name == "complete" for name, _ in statements):
            has_ended.set()

    monkeypatch.setattr(store.session, "batch", counting)
    failed = again(ScheduledTask.of(waiting), NOW)
    ends = [ended(ScheduledTask.of(done)), ended(other), failed]
    await store.finish(PARTITION, fence, ends)
    assert counted["end_id"] == 2 and not counted["drop_id"]
    assert counted["append_run"] == 3 and counted["complete"] == counted["mark_done"] == 2
    monkeypatch.setattr(store.session, "batch", killing)
    with pytest.raises(StoreUnavailable):
        end = ended(ScheduledTask.of(killed), next_state=State.FAILED, error_text=AWKWARD)
        await store.finish(PARTITION, fence, [end])
    monkeypatch.undo()
    record = find(done.id)
    assert (record.state, record.ordering_key, record.claimed_at) == (State.DONE, "a", NOW + 1)
    record = find(killed.id)
    assert (record.state, record.error_text) == (State.FAILED, AWKWARD)
    assert find(waiting.id) is None and store.find_now(waiting.id) == failed.again
    assert find(replaced.id) is None and find(other.task.id).state == State.DONE
    with store.session.make_cluster() as cluster:
        rows = cluster.connect(store.session.url.keyspace).execute(
            "SELECT id, ended_at, TTL(run_at) FROM fairlead_schedule_ids"
        )
        lives = {row[0]: (row[1] is not None, row[2] <= 14 * 86_400) for row in rows}
    assert lives[done.id] == (True, True) and lives[killed.id] == (False, False)
    tasks.database.close()  # type: ignore[attr-defined]


def cassandra_url_of(store: Adapter) -> str:
    url = store.session.url
    hosts = ",".join(f"{host}:{port}" for host, port in url.hosts)
    return f"cassandra://{hosts}/{url.keyspace}"


def read_task(tasks: Any, task_id: str) -> Any:
    last = tasks.database.read_now(tasks.runs.last_attempt(task_id))
    return None if last is None else last.ended_task


async def test_completions_are_cleaned_by_age_although_a_stuck_task_holds_the_mark_down(
    store: Adapter,
) -> None:
    range_id = (await store.take_over(PARTITION)).range_id
    day = 24 * HOUR
    tasks = [task(NOW + n * HOUR + m, f"k{m}") for n in range(4) for m in range(6)]
    future = task(NOW + 30 * day, "future")
    await store.persist(PARTITION, range_id, [*tasks, future], ScheduleRecord())
    stuck, *rows, early = await everything(store)
    for row in (*rows, early):
        late = row.key.run_at >= NOW + 3 * HOUR and row is not early
        at = NOW + (20 * day if late else 4 * HOUR)
        await store.finish(PARTITION, range_id, [ended(row, finished_at=at)])
    await store.finish(PARTITION, range_id, [again(stuck, NOW + 40 * day)])
    record = ScheduleRecord(low_water_mark=TaskKey(NOW, "", ""))
    await store.keep(PARTITION, range_id, record)
    cleaned = 0
    while some := await store.clean(PARTITION, range_id, NOW + 15 * day):
        cleaned += some
    assert cleaned > 0 and await store.clean(PARTITION, range_id, NOW + 15 * day) == 0
    assert [row.key for row in await everything(store)] == [stuck.key]
    completed = await store.persist(PARTITION, range_id, [*tasks[1:], future], record)
    assert completed == {row.key for row in rows[-6:]} | {early.key}
    expected = {ScheduledTask.of(t).key for t in tasks} - completed
    assert {row.key for row in await everything(store)} == expected
    of_one = await read(store, PARTITION, BEFORE_ALL, END, 100, "k0")
    assert [row.key.run_at - NOW for row in of_one] == [0, HOUR, 2 * HOUR]


def damaged(scheduled: ScheduledTask, **changes: Any) -> str:
    return msgspec.json.encode(msgspec.structs.replace(scheduled.task, **changes)).decode()


DAMAGES: dict[str, Any] = {
    "no JSON": lambda row: "nonsense",
    "no task": lambda row: "[]",
    "of another partition": lambda row: damaged(row, partition=5),
    "of another queue": lambda row: damaged(row, queue="letters"),
    "with another ordering key": lambda row: damaged(row, ordering_key="z"),
    "without an ordering key": lambda row: damaged(row, ordering_key=None),
    "with another time": lambda row: damaged(row, run_at=7),
    "with a bad priority": lambda row: damaged(row, priority=99),
    "with a bad weight": lambda row: damaged(row, weight=0.0),
}


async def test_a_row_that_cannot_be_read_is_returned_as_unreadable_and_hides_no_other(
    store: Adapter, kind: str, tasks: SqlTaskStore
) -> None:
    if kind == "memory":
        pytest.skip("the store in memory has no rows to damage")
    new = [task(n, f"k{n}") for n in range(1, len(DAMAGES) + 3)]
    range_id, rows = await holding(store, new)
    for row, damage in zip(rows[1:], DAMAGES.values(), strict=False):
        await overwrite(store, tasks, row.key, damage(row))
    found = await everything(store)
    assert [row.key for row in found] == [row.key for row in rows]
    assert (found[0], found[-1]) == (rows[0], rows[-1])
    for row, before, name in zip(found[1:-1], rows[1:-1], DAMAGES, strict=True):
        assert row.unreadable, name
        assert (row.task.id, row.attempt) == (before.task.id, 0), name
        assert await store.find(PARTITION, row.key) == row
        (of_one,) = await read(store, PARTITION, BEFORE_ALL, END, 10, row.key.ordering_key)
        assert of_one == row
    assert await store.unfinished("reminders", 1000) == len(rows)
    assert (await store.statuses("reminders", 0))[3].unfinished == len(rows)
    drops = [
        ended(row, outcome=Outcome.CANCELLED, next_state=State.CANCELLED) for row in found[1:-1]
    ]
    await store.finish(PARTITION, range_id, drops)
    assert await everything(store) == [rows[0], rows[-1]]


async def test_a_record_that_cannot_be_read_lets_its_owner_begin_before_all_tasks(
    store: Adapter, kind: str, tasks: SqlTaskStore
) -> None:
    if kind == "memory":
        pytest.skip("the store in memory has no rows to damage")
    range_id = (await store.take_over(PARTITION)).range_id
    await store.persist(PARTITION, range_id, [task(1)], RECORD)
    await overwrite_record(store, tasks, "nonsense")
    owned = await store.take_over(PARTITION)
    assert owned.record.low_water_mark == BEFORE_ALL
    assert owned.record.trouble is not None and "cannot be read" in owned.record.trouble
    statuses = await store.statuses("reminders", 0)
    assert statuses[3].record == owned.record
    await store.keep(PARTITION, owned.range_id, RECORD)
    assert (await store.take_over(PARTITION)).record == RECORD


async def overwrite(store: Adapter, tasks: SqlTaskStore, key: TaskKey, text: str) -> None:
    """Overwrite the task of a row."""
    row = (*PARTITION, *key)
    columns = ("queue", "partition", "run_at", "ordering_key", "unique_key")
    if isinstance(store, SqlScheduleStore):
        await change(tasks, "fairlead_schedule", "task", text, dict(zip(columns, row, strict=True)))
    else:
        where = {"hour": key.run_at // HOUR} | dict(zip(columns, row, strict=True))
        await asyncio.to_thread(change_cassandra, store, "fairlead_schedule", "task", text, where)


async def overwrite_record(store: Adapter, tasks: SqlTaskStore, text: str) -> None:
    """Overwrite the record of the partition."""
    where = dict(zip(("queue", "partition"), PARTITION, strict=True))
    if isinstance(store, SqlScheduleStore):
        is_sqlite = tasks.database.dialect == "sqlite"
        table = "fairlead_schedule_owners" if is_sqlite else "fairlead_schedule_records"
        await change(tasks, table, "record", text, where)
    else:
        table = "fairlead_schedule_records"
        await asyncio.to_thread(change_cassandra, store, table, "record", text, where)


async def change(
    tasks: SqlTaskStore, table: str, column: str, text: str, where: dict[str, Any]
) -> None:
    mark = "?" if tasks.database.dialect == "sqlite" else "%s"
    conditions = " AND ".join(f"{name} = {mark}" for name in where)

    def run() -> None:
        with tasks.database.transaction() as connection:  # type: ignore[attr-defined]
            connection.execute(
                f"UPDATE {table} SET {column} = {mark} WHERE {conditions}",
                (text, *where.values()),
            )

    await asyncio.to_thread(run)


def change_cassandra(
    store: Adapter, table: str, column: str, text: str, where: dict[str, Any]
) -> None:
    """Change a cell with the timestamp that it has, plus one, so that later writes win."""
    conditions = " AND ".join(f"{name} = %s" for name in where)
    with store.session.make_cluster() as cluster:
        session = cluster.connect(store.session.url.keyspace)
        values = tuple(where.values())
        found = session.execute(
            f"SELECT writetime({column}) FROM {table} WHERE {conditions}", values
        )
        ((at,),) = found.current_rows
        session.execute(
            f"UPDATE {table} USING TIMESTAMP {at + 1} SET {column} = %s WHERE {conditions}",
            (text, *values),
        )


async def test_keep_deletes_the_given_completed_ranges_and_nothing_else(store: Adapter) -> None:
    tasks = [task(n, unique_key=u) for n in (1, 2, HOUR - 1, HOUR, 3 * HOUR) for u in "uv"]
    range_id, rows = await holding(store, tasks)
    for kept, done in ((rows, rows[2:8]), ([*rows[:2], *rows[8:]], [rows[8]])):
        await store.finish(PARTITION, range_id, [ended(row) for row in done])
        left = [row for row in kept if row not in done]
        gap = [
            (low.key, high.key)
            for low, high in pairwise(left)
            if any(low.key < d.key < high.key for d in done)
        ]
        assert len(gap) == 1
        await store.keep(PARTITION, range_id, ScheduleRecord(), gap)
        assert await everything(store) == left
    assert len(await store.persist(PARTITION, range_id, tasks, ScheduleRecord())) == 7
    assert await everything(store) == left
    late = task(HOUR - 5)  # in a range that was completed
    await store.persist(PARTITION, range_id, [late], ScheduleRecord())
    assert await everything(store) == [*left[:2], ScheduledTask.of(late), *left[2:]]


async def test_unfinished_tasks_are_counted(store: Adapter) -> None:
    record = msgspec.structs.replace(RECORD, low_water_mark=BEFORE_ALL)
    range_id = (await store.take_over(PARTITION)).range_id
    await store.persist(PARTITION, range_id, [task(n) for n in range(1, 11)], record)
    beside = (await store.take_over(BESIDE)).range_id
    await store.persist(BESIDE, beside, [task(100, partition=4)], record)
    last = (await everything(store))[-1]
    await store.finish(PARTITION, range_id, [again(last, 500)])
    assert await store.unfinished("reminders", 3) == 4
    assert await store.unfinished("reminders", 100) == 11
    assert await store.unfinished("letters", 100) == 0
    first = min(scheduled.key.run_at for scheduled in await everything(store))
    assert await store.has_due("reminders", first)
    assert not await store.has_due("reminders", first - 1)
    assert not await store.has_due("letters", 100)
    statuses = await store.statuses("reminders", 8)
    assert set(statuses) == {3, 4}
    assert statuses[3] == (range_id, record, 10, 7, TaskKey(1, "a", "u"))
    assert statuses[4] == (beside, record, 1, 0, TaskKey(100, "a", "u"))


async def test_concurrent_writes_of_one_partition_are_atomic(store: Adapter) -> None:
    """The engine stores the ends of runs while it persists the same tasks again."""
    tasks = [task(n) for n in range(40)]
    range_id, rows = await holding(store, tasks, RECORD)
    await asyncio.gather(
        *(store.finish(PARTITION, range_id, [ended(row)]) for row in rows),
        *(store.persist(PARTITION, range_id, tasks, RECORD) for _ in range(10)),
    )
    assert await everything(store) == []
    assert len(await store.persist(PARTITION, range_id, tasks, RECORD)) == 40


async def test_a_store_with_a_server_tells_the_time_of_its_own_clock(
    store: Adapter, kind: str
) -> None:
    before, found, after = SYSTEM_CLOCK.now(), await store.now(), SYSTEM_CLOCK.now()
    if kind in ("memory", "sqlite"):
        assert found is None
    else:  # on this machine; Cassandra's is in milliseconds
        assert before - 1000 <= found <= after


class Layout:
    """A queue of some partitions, owned by the test."""

    def __init__(self, store: Adapter) -> None:
        self.store = store
        self.range_ids: dict[int, int] = {}

    async def own(self, numbers: range) -> None:
        for number in numbers:
            owned = await self.store.take_over(PartitionKey("reminders", number))
            self.range_ids[number] = owned.range_id

    async def move(self, source: int, partitions: int) -> tuple[int, int]:
        tasks = completed = 0
        after = None
        key = PartitionKey("reminders", source)
        await self.store.move_attempts(key, self.range_ids[source])
        while True:
            moved = await self.store.move_tasks(key, self.range_ids, partitions, after)
            tasks += moved.tasks
            completed += moved.completed
            if (after := moved.after) is None:
                return tasks, completed

    async def rows(self, partition: int) -> list[ScheduledTask]:
        return await everything(self.store, PartitionKey("reminders", partition))


def in_layout(partitions: int, ordering_key: str, run_at: int, unique_key: str = "u") -> NewTask:
    number = partition_of(ordering_key, 0, partitions)
    return task(run_at, ordering_key, unique_key, partition=number)


async def test_moved_tasks_keep_their_runs_and_completed_keys_stay_completed(
    store: Adapter,
) -> None:
    layout = Layout(store)
    await layout.own(range(8))
    keys = [f"k{n}" for n in range(60)] + [AWKWARD]
    for number in range(4):
        made = [
            in_layout(4, key, NOW + hour * HOUR, unique_key)
            for key in keys
            for hour in (0, 1, 170)
            for unique_key in ("u", AWKWARD)
            if partition_of(key, 0, 4) == number
        ]
        partition = PartitionKey("reminders", number)
        await store.persist(partition, layout.range_ids[number], made, ScheduleRecord())
        rows = await layout.rows(number)
        over = [ended(row) for row in rows if row.key.run_at == NOW]
        retried = [again(row, NOW + 7) for row in rows if row.key.run_at == NOW + HOUR]
        await store.finish(partition, layout.range_ids[number], [*over, *retried])
    before = {row.key: row for number in range(4) for row in await layout.rows(number)}
    assert len(before) == 4 * len(keys)

    for partitions in (8, 3, 4):
        sums = [await layout.move(number, partitions) for number in range(8)]
        assert sum(tasks for tasks, _ in sums) > 0
        assert sum(completed for _, completed in sums) > 0
        assert sum(tasks for tasks, _ in [await layout.move(n, partitions) for n in range(8)]) == 0
        found = [row for number in range(8) for row in await layout.rows(number)]
        assert len(found) == len(before)
        for row in found:
            assert row.task.partition == partition_of(row.key.ordering_key, 0, partitions)
            known = before[row.key]
            moved = msgspec.structs.replace(known.task, partition=row.task.partition)
            assert row == msgspec.structs.replace(known, task=moved)
        for number in range(partitions):
            one = [in_layout(partitions, key, NOW) for key in keys]
            mine = [each for each in one if each.partition == number]
            partition = PartitionKey("reminders", number)
            completed = await store.persist(
                partition, layout.range_ids[number], mine, ScheduleRecord()
            )
            assert completed == {ScheduledTask.of(each).key for each in mine}
        for number in range(8):
            key = keys[number]
            rows = await read(
                store,
                PartitionKey("reminders", partition_of(key, 0, partitions)),
                BEFORE_ALL,
                END,
                100,
                key,
            )
            assert [row.key for row in rows] == sorted(k for k in before if k.ordering_key == key)


async def test_a_former_owner_moves_nothing(store: Adapter) -> None:
    layout = Layout(store)
    await layout.own(range(4))
    old = dict(layout.range_ids)
    made = [in_layout(2, f"k{n}", NOW) for n in range(20)]
    mine = [each for each in made if each.partition == 1]
    partition = PartitionKey("reminders", 1)
    await store.persist(partition, layout.range_ids[1], mine, ScheduleRecord())
    for fenced in (1, 3):
        layout.range_ids = dict(old)
        before = await layout.rows(1)
        assert any(partition_of(row.key.ordering_key, 0, 4) == 3 for row in before)
        await store.take_over(PartitionKey("reminders", fenced))
        with pytest.raises(Fenced):
            await layout.move(1, 4)
        assert await layout.rows(1) == before
