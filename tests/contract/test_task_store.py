"""Promises of `fairlead.ports.task_store.TaskStore`, of its records and of its tables, for every
store on its real database."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.postgres.task_store import PostgresTaskStore
from fairlead.backends.sql import task_store as sql_store
from fairlead.backends.sql.migrate import migrate
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.backends.sqlite.task_store import SqliteTaskStore
from fairlead.errors import NotAllowed
from fairlead.model import (
    AttemptRecord,
    ClaimedTask,
    IncidentKind,
    State,
    Submitted,
    TaskRecord,
)
from fairlead.ports.statements import Statement, Steps
from fairlead.ports.task_records import TaskFilter
from fairlead.ports.task_store import IGNORE_STUCK, RESUME_STUCK, ClaimTerms
from fairlead.testing.contract.claims import *  # noqa: F403
from fairlead.testing.contract.insertion import *  # noqa: F403
from fairlead.testing.contract.lane_reads import *  # noqa: F403
from fairlead.testing.contract.tasks import (
    AWKWARD,
    FACTS,
    LATE,
    NOW,
    SECOND,
    awkward,
    claimed,
    done,
    in_error,
    make,
    ready_ids,
    submit,
    wanted,
    without_positions,
)

pytestmark = pytest.mark.asyncio

NO_IDS = ["", "no id", "'; DROP TABLE fairlead_tasks;--", "00000000-0000-7000-8000-000000000000"]

Store = SqliteTaskStore | PostgresTaskStore


def open_store(url: str) -> Store:
    if url.startswith("sqlite"):
        return SqliteTaskStore(SqliteDatabase(url.removeprefix("sqlite:///")))
    return PostgresTaskStore(PostgresDatabase(url))


@pytest.fixture
def url(store_url: str) -> str:
    """Return the URL of a new database with tables."""
    database = open_store(store_url).database
    migrate(database)
    database.close()
    return store_url


@pytest_asyncio.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = open_store(url)
    yield store
    await store.database.close_async()
    store.database.close()


def listed(store: Store, limit: int = 10_000, **where: Any) -> list[TaskRecord]:
    return store.database.run(store.tasks(TaskFilter(**where), limit))


def shown(store: Store, task_id: str) -> TaskRecord:
    task = store.database.run(store.task(task_id))
    assert task is not None
    return task


def history(store: Store, task_id: str) -> list[AttemptRecord]:
    return store.database.run(store.attempts(task_id))


# submission ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 49, 500])
async def test_every_field_of_a_submitted_task_is_kept(store: Store, count: int) -> None:
    tasks = awkward(count, ordering_key=AWKWARD, keep_result=True, tags=AWKWARD)
    submitted, notification = store.database.run(store.submission(tasks))
    assert without_positions(submitted) == [Submitted(task.id, True) for task in tasks]
    if notification is not None:
        lanes = [(lane.queue, lane.partition, lane.priority) for lane in notification.ready]
        assert (lanes, notification.due) == ([(AWKWARD, 3, 0)], None)
    records = listed(store)
    assert [record.id for record in records] == [task.id for task in tasks]
    record = records[0]
    assert record == TaskRecord(
        tasks[0].id,
        AWKWARD,
        3,
        AWKWARD,
        State.SUBMITTED,
        1,
        0,
        0,
        0,
        AWKWARD,
        0.001,
        AWKWARD,
        None,
        NOW,
        NOW - 5,
        NOW,
        None,
        None,
        None,
        None,
        '{"a":"b"}',
        len(tasks[0].payload),
        AWKWARD,
    )
    assert store.database.run(store.payload(record.id)) == (tasks[0].payload, "json+zlib")
    task = (await claimed(store, tasks[:1]))[0]
    assert msgspec.structs.replace(task, row=0, batch=0) == ClaimedTask(
        record.id, 2, 1, 1, tasks[0].payload, "json+zlib", NOW, True, '{"a":"b"}'
    )
    await store.complete(AWKWARD, [done(task)])
    assert (
        shown(store, record.id).state is State.PROCESSING
    )  # a completion by another node, whatever its name, changes nothing


@pytest.mark.parametrize("count", [1, 300])
async def test_a_rollback_leaves_no_task_and_no_key(store: Store, count: int) -> None:
    """A failure after an insert in the caller's transaction also undoes the tasks and the keys."""

    def failing() -> Steps[None]:
        yield from store.submission([*make(count), *make(1, unique_key="k")])
        raise RuntimeError("after the insert")

    with pytest.raises(RuntimeError, match="after the insert"):
        store.database.run(failing())
    with pytest.raises(RuntimeError, match="after the insert"):
        await store.database.run_async(failing())
    assert listed(store) == []
    assert submit(store, make(1, unique_key="k"))[0].is_new
    assert len(listed(store)) == 1


# unique keys --------------------------------------------------------------------------------------


def _submit_keys(url: str, seed: int, results: Any) -> None:
    store = open_store(url)
    tasks = [make(1, unique_key=f"key-{n}")[0] for n in range(1000)]
    random.Random(seed).shuffle(tasks)
    new = 0
    for start in range(0, 1000, 125):
        new += sum(each.is_new for each in submit(store, tasks[start : start + 125]))
    store.database.close()
    results.put(new)


def _submit_keys_in_threads(url: str, seed: int, results: Any) -> None:
    threads = [
        threading.Thread(target=_submit_keys, args=(url, seed + n, results)) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def test_8_threads_and_2_processes_that_submit_the_same_1000_keys_make_1000_tasks(
    store: Store, url: str
) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=_submit_keys, args=(url, seed, results)) for seed in (100, 200)
    ]
    for process in processes:
        process.start()
    await asyncio.to_thread(_submit_keys_in_threads, url, 1, results)
    counts = [await asyncio.to_thread(results.get, True, 60) for _ in range(10)]
    for process in processes:
        process.join(30)
    assert sum(counts) == 1000
    records = listed(store)
    assert len(records) == 1000
    assert {record.unique_key for record in records} == {f"key-{n}" for n in range(1000)}


# order and claiming -------------------------------------------------------------------------------


async def test_tasks_of_an_ordering_key_run_one_at_a_time_in_order_also_after_a_skipped_one(
    store: Store,
) -> None:
    tasks = make(100, ordering_key="o")
    (first, second), outside = tasks[:2], tasks[50:]
    *_, skipped_too, skipped = outside
    submit(store, tasks)

    def skip() -> Steps[None]:
        for task in outside:
            yield Statement(f"UPDATE fairlead_tasks SET order_at = NULL WHERE id = '{task.id}'")

    store.database.run(skip())
    assert await claimed(store, [second]) == []
    (running,) = await claimed(store, [skipped])
    assert await claimed(store, [first]) == []
    await store.complete("node-1", [done(running)])
    (head,) = await claimed(store, [first])
    for other in (second, skipped_too):
        assert await claimed(store, [other]) == []
    await store.complete("node-1", [done(head)])
    assert [task.id for task in await claimed(store, [second])] == [second.id]


@pytest.mark.parametrize("seed", range(6))
async def test_a_batch_keeps_the_values_of_each_task_whichever_are_shared(
    store: Store, seed: int
) -> None:
    """Claims and ends of a batch whose tasks share some of their values, and differ in others."""
    chance = random.Random(seed)
    count = chance.choice([1, 2, 30])

    def column(*values: Any) -> list[Any]:
        shared = chance.choice(values)
        return [shared if chance.random() < 0.5 else chance.choice(values) for _ in range(count)]

    names = column("send", "ring")
    tasks = [
        msgspec.structs.replace(task, name=name)
        for task, name in zip(make(len(names)), names, strict=True)
    ]
    if chance.random() < 0.5:
        tasks[0] = msgspec.structs.replace(tasks[0], ordering_key="o")
    submit(store, tasks)
    await store.register_node("node-1", [], [], NOW, FACTS)
    draw = chance.choice([lambda *values: column(*values[:1]), column])
    versions, paths = draw(1, 2), draw("hook", "poller")
    policies = 0, RESUME_STUCK, IGNORE_STUCK
    terms = {
        name: ClaimTerms(chance.choice([NOW + 5, NOW + SECOND]), chance.choice(policies))
        for name in ("send", "ring")
    }
    triggers = [
        trigger
        for each in zip(tasks, versions, paths, strict=True)
        for trigger in wanted(each[:1], *each[1:])
    ]
    chance.shuffle(triggers)
    won = {task.id: task for task in await store.claim("node-1", triggers, NOW + 1, terms)}
    expected = {each.id: each for each in triggers if each.version == 1}
    assert won.keys() == expected.keys()
    stuck = {each.id: each.to for each in await store.stuck(NOW + 9, 100)}
    assert stuck == {
        each.id: State.SUBMITTED if policy & RESUME_STUCK else State.ERROR
        for each in expected.values()
        for stuck_at, policy in (terms[each.name],)
        if stuck_at < NOW + 9 and not policy & IGNORE_STUCK
    }
    right = dict(zip(won, draw(True, False), strict=False))
    ends = [
        done(msgspec.structs.replace(task, version=task.version + (not right[id])))
        for id, task in won.items()
    ]
    completed = await store.complete("node-1", ends)
    assert set(completed.refused) == {id for id in won if not right[id]}
    for id in won:
        assert [each.trigger_path for each in history(store, id)] == (
            [expected[id].path] if right[id] else []
        )


# completion ---------------------------------------------------------------------------------------


async def test_a_done_task_leaves_the_table_and_becomes_an_attempt(store: Store) -> None:
    tasks = make(3, fairness_key="acme", ordering_key="o", weight=2.0, tags="vip")
    submit(store, tasks)
    for task in tasks:  # tasks of one ordering key one at a time, in order
        (held,) = await claimed(store, tasks)
        assert held.id == task.id
        completed = await store.complete("node-1", [done(held)])
        assert completed.refused == []
    assert listed(store) == []
    attempt = history(store, tasks[0].id)[0]
    assert attempt == AttemptRecord(
        attempt.seq,
        tasks[0].id,
        1,
        1,
        "mail",
        "send",
        0,
        5,
        "acme",
        2.0,
        "o",
        None,
        2,
        NOW,
        NOW,
        NOW,
        NOW,
        NOW + 1,
        NOW + 2,
        NOW + 3,
        "done",
        "DONE",
        None,
        None,
        "node-1",
        "hook",
        7,
        "vip",
    )
    record = shown(store, tasks[0].id)
    assert (record.state, record.version, record.fairness_key) == (State.DONE, 3, "acme")
    assert store.database.run(store.payload(tasks[0].id)) is None
    assert store.database.run(store.result(tasks[0].id)) is None


@pytest.mark.parametrize("with_result", [False, True])
async def test_a_refused_completion_writes_nothing(store: Store, with_result: bool) -> None:
    """A slow node cannot end a task that another node has claimed, because the version has changed."""
    tasks = make(4)
    submit(store, tasks)
    held = await claimed(store, tasks)
    await store.resume_lost(["node-1"], NOW + 9, 1)
    lost = next(record.id for record in listed(store, state=State.SUBMITTED))
    result = b"1" if with_result else None
    completed = await store.complete("node-1", [done(task, result=result) for task in held])
    assert completed.refused == [lost]
    assert shown(store, lost).state is State.SUBMITTED
    assert [attempt.outcome for attempt in history(store, lost)] == ["lost"]
    assert store.database.run(store.result(lost)) is None
    assert [record.id for record in listed(store)] == [lost]
    again = (await store.complete("node-1", [done(task, result=result) for task in held])).refused
    assert sorted(again) == sorted(task.id for task in held)
    assert [len(history(store, task.id)) for task in held] == [1] * 4
    assert (await store.complete("node-2", [done(held[0])])).refused == [held[0].id]


async def test_an_error_text_with_a_nul_character_is_stored(store: Store) -> None:
    tasks = make(1)
    submit(store, tasks)
    task = (await claimed(store, tasks))[0]
    await store.complete(
        "node-1",
        [
            done(
                task, outcome="failed", next_state="ERROR", error_type="E", error_text="a\0b\\u0000"
            )
        ],
    )
    assert shown(store, task.id).error_text == "a\ufffdb\\u0000"


async def test_a_kept_result_can_be_read_and_its_waiters_are_notified(store: Store) -> None:
    tasks = make(2, keep_result=True)
    submit(store, tasks)
    held = await claimed(store, tasks)
    completed = await store.complete("node-1", [done(task, result=b'{"ok":true}') for task in held])
    assert completed.notification is not None
    assert sorted(completed.notification.finished) == sorted(task.id for task in tasks)
    assert store.database.run(store.result(tasks[0].id)) == b'{"ok":true}'


async def test_a_completion_joins_the_handlers_own_transaction(store: Store) -> None:
    tasks = make(2)
    submit(store, tasks)
    held = await claimed(store, tasks)

    def work(fails: bool) -> Steps[None]:
        yield from store.completion("node-1", [done(task) for task in held])
        yield from store.submission(make(1, name="next"))
        if fails:
            raise RuntimeError("handler")

    with pytest.raises(RuntimeError):
        store.database.run(work(True))
    assert {record.name for record in listed(store)} == {"send"}
    assert history(store, tasks[0].id) == []
    store.database.run(work(False))
    assert [record.name for record in listed(store)] == ["next"]


@pytest.mark.parametrize("count", [1, 100])
async def test_a_task_that_succeeds_costs_four_row_operations(store: Store, count: int) -> None:
    """A task costs one insert, one update and one delete, and one insert of its attempt."""
    await store.register_node("node-1", [], [], NOW, FACTS)
    store.database.run(_count_row_operations(store.database.dialect))
    tasks = make(count)
    submit(store, tasks)
    held = await store.claim("node-1", wanted(tasks), NOW + 1, {})
    await store.complete("node-1", [done(task) for task in held])
    rows = store.database.run(
        _statement("SELECT operation, count(*) FROM row_operations GROUP BY operation")
    )
    assert {row[0].upper(): row[1] for row in rows} == {
        "INSERT FAIRLEAD_TASKS": count,
        "UPDATE FAIRLEAD_TASKS": count,
        "DELETE FAIRLEAD_TASKS": count,
        "INSERT FAIRLEAD_ATTEMPTS": count,
    }


async def test_a_batch_of_any_length_costs_a_few_statements(store: Store) -> None:
    def steps_of(steps: Steps[Any]) -> int:
        return store.database.run(_counted(steps))

    tasks = make(1000)
    assert steps_of(store.submission(tasks[:500])) <= 3
    assert steps_of(store.submission(tasks[500:])) <= 3
    held = await claimed(store, tasks)
    assert len(held) == 1000
    assert steps_of(store.completion("node-1", [done(task) for task in held[:500]])) <= 3
    again = [done(task, next_state="SUBMITTED", outcome="retried") for task in held[500:]]
    assert steps_of(store.completion("node-1", again)) <= 6


def _statement(sql: str) -> Steps[Sequence[Any]]:
    return (yield Statement(sql))


def _counted(steps: Steps[Any]) -> Steps[int]:
    count = 0
    try:
        step = next(steps)
        while True:
            count += 1
            rows = yield Statement(*step) if isinstance(step, Statement) else step
            step = steps.send(rows)
    except StopIteration:
        return count


def _count_row_operations(dialect: str) -> Steps[None]:
    yield Statement("CREATE TABLE row_operations (operation text)")
    if dialect == "postgres":
        yield Statement(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "INSERT INTO row_operations VALUES (TG_OP || ' ' || TG_TABLE_NAME); RETURN NULL; END $$"
        )
    for table in ("tasks", "attempts", "results", "unique_keys", "queues", "nodes", "leases"):
        for operation in ("INSERT", "UPDATE", "DELETE"):
            head = f"CREATE TRIGGER note_{operation}_{table} AFTER {operation} ON fairlead_{table} "
            yield Statement(
                head + "FOR EACH ROW EXECUTE FUNCTION note()"
                if dialect == "postgres"
                else head
                + f"BEGIN INSERT INTO row_operations VALUES ('{operation} fairlead_{table}'); END"
            )


# pollers ------------------------------------------------------------------------------------------


async def test_a_stuck_run_becomes_a_lost_attempt_and_no_later_end_records_its_times_again(
    store: Store,
) -> None:
    tasks = make(1)
    submit(store, tasks)
    (held,) = await claimed(store, tasks, stuck_at=NOW + 10 * SECOND)
    await store.release_stuck(held.id, held.version, State.ERROR, NOW + 12 * SECOND, AWKWARD)
    ended = shown(store, held.id)
    assert (ended.state, ended.error_text) == (State.ERROR, AWKWARD)
    assert (ended.ready_at, ended.claimed_at) == (None, None)
    assert [attempt.outcome for attempt in history(store, held.id)] == ["lost"]


async def test_history_is_cleaned_in_batches_of_1_and_of_60(store: Store) -> None:
    """Cleaning 117 finished tasks deletes their attempts, keys and results, and nothing younger or
    unfinished."""
    far = 2 * NOW  # beyond the present time, at which a server frees keys at the earliest
    old = [make(1, unique_key=f"k{n}", unique_until=far, keep_result=True)[0] for n in range(117)]
    young = make(3, unique_key=None)
    living = make(1, unique_key="living", unique_until=far)
    submit(store, old + young + living)
    held = await claimed(store, old)
    await store.complete("node-1", [done(task, result=b"1", finished_at=NOW + 10) for task in held])
    held = await claimed(store, young)
    await store.complete("node-1", [done(task, finished_at=NOW + 99) for task in held])
    assert await store.clean(NOW + 11, 1) == 1
    assert len([task for task in old if history(store, task.id)]) == 116
    counts = []
    while count := await store.clean(NOW + 11, 60):
        assert count <= 60
        counts.append(count)
    assert sum(counts) == 2 * 117 - 1
    assert all(history(store, task.id) == [] for task in old)
    assert all(store.database.run(store.result(task.id)) is None for task in old)
    assert all(len(history(store, task.id)) == 1 for task in young)
    assert await store.clean(far + 1, 1000) == len(young) + 117
    assert [submit(store, make(1, unique_key=key))[0].is_new for key in ("k5", "living")] == [
        True,
        False,
    ]


# management ---------------------------------------------------------------------------------------


async def test_tasks_are_listed_by_each_filter(store: Store) -> None:
    a = make(2, queue="a", name="x", fairness_key="acme")
    b = make(2, queue="b", name=AWKWARD, fairness_key=AWKWARD, run_at=NOW + SECOND)
    c = make(1, queue="a", name="y", submitted_at=NOW + 50)
    submit(store, a + b + c)

    def ids(**where: Any) -> list[str]:
        return [record.id for record in listed(store, **where)]

    assert ids() == [task.id for task in a + b + c]
    assert ids(queue="a") == [task.id for task in a + c]
    assert (
        ids(name=AWKWARD)
        == ids(fairness_key=AWKWARD)
        == ids(state=State.WAITING)
        == [task.id for task in b]
    )
    assert ids(queue="a", name="y") == ids(queue="a", fairness_key="") == [c[0].id]
    assert ids(older_than=NOW + 50) == [task.id for task in a + b]
    assert ids(queue="' OR 1=1 --") == []
    assert len(listed(store, limit=2, queue="a")) == 2


@pytest.mark.parametrize("task_id", NO_IDS)
async def test_an_unknown_id_is_not_found_without_an_error(store: Store, task_id: str) -> None:
    run = store.database.run
    assert run(store.task(task_id)) is None
    assert run(store.payload(task_id)) is None
    assert run(store.result(task_id)) is None
    assert run(store.attempts(task_id)) == []
    assert run(store.move([(task_id, 1)], State.SUBMITTED, NOW, NOW, False))[0] == set()
    assert run(store.end([(task_id, 1)], State.CANCELLED, NOW, "me"))[0] == set()
    assert await store.release_stuck(task_id, 1, State.SUBMITTED, NOW, "x") is None


async def test_a_change_of_state_by_a_person_is_a_compare_and_set(store: Store) -> None:
    tasks = make(2, run_at=NOW + 60 * SECOND)
    submit(store, tasks)
    task_id = tasks[0].id

    def move(version: int, to: State, run_at: int, reset: bool = False) -> Any:
        moved, notification = store.database.run(
            store.move([(task_id, version)], to, run_at, NOW + 5, reset)
        )
        return notification if moved else None

    assert move(2, State.SUBMITTED, NOW) is None
    assert shown(store, task_id).version == 1
    notification = move(1, State.WAITING, NOW + 30 * SECOND)
    assert notification is not None and notification.due == NOW + 30 * SECOND
    assert await store.next_due() == NOW + 30 * SECOND
    notification = move(2, State.SUBMITTED, NOW)
    assert notification is not None and len(notification.ready) == 1
    assert await store.next_due() == NOW + 60 * SECOND
    assert ready_ids(store) == [task_id]
    held = (await claimed(store, tasks[:1], version=3))[0]
    assert (held.attempt, held.tries, held.ready_at) == (1, 1, NOW + 5)
    assert move(held.version, State.WAITING, NOW + 40 * SECOND, reset=True) is not None
    assert (await store.complete("node-1", [done(held)])).refused == [task_id]
    record = shown(store, task_id)
    assert (record.state, record.tries, record.attempt, record.node) == (State.WAITING, 0, 1, None)
    assert await store.next_due() == NOW + 40 * SECOND


async def test_a_change_of_priority_or_key_by_a_person_is_a_compare_and_set_before_the_claim(
    store: Store,
) -> None:
    submit(store, make(1, priority=5, fairness_key="acme", ordering_key="o", unique_key="u"))
    submit(store, make(1, run_at=NOW + 60 * SECOND, priority=5))
    task, waiting = listed(store)

    def change(task_id: str, version: int, priority: int | None, key: str | None) -> Any:
        changed, notification = store.database.run(
            store.change([(task_id, version)], priority, key, NOW + 5, "ann")
        )
        return notification if changed else None

    assert change(task.id, 2, 0, None) is None
    assert shown(store, task.id) == task
    notification = change(task.id, 1, 0, None)
    (lane,) = notification.ready
    assert (lane.queue, lane.partition, lane.priority) == (task.queue, task.partition, 0)
    changed = shown(store, task.id)
    assert changed == msgspec.structs.replace(task, version=2, priority=0)
    notification = change(task.id, 2, None, AWKWARD)
    changed = shown(store, task.id)
    assert changed == msgspec.structs.replace(task, version=3, priority=0, fairness_key=AWKWARD)
    assert ready_ids(store, priority=0, partition=task.partition) == [task.id]
    assert change(waiting.id, 1, 9, "bulk").ready == []
    assert shown(store, waiting.id).priority == 9
    assert await store.next_due() == NOW + 60 * SECOND
    held = (await claimed(store, [task], version=3))[0]
    assert change(task.id, held.version, 5, None) is None
    assert (await store.complete("node-1", [done(held)])).refused == []


async def test_a_changed_task_comes_last_in_its_lane_and_keeps_its_ordering_position(
    store: Store,
) -> None:
    tasks = make(3, ordering_key="o", priority=5)
    submit(store, tasks)
    before = [task.id for task in tasks]
    assert ready_ids(store) == before
    assert store.database.run(store.change([(before[0], 1)], None, "acme", NOW + 5, "ann"))[0]
    assert ready_ids(store) == [*before[1:], before[0]]
    assert [claim.id for claim in await claimed(store, tasks, version=2)] == [before[0]]


async def test_an_end_by_a_person_writes_an_attempt(store: Store) -> None:
    cancelled, failed = tasks = make(2)
    submit(store, tasks)
    held = (await claimed(store, [failed]))[0]
    run = store.database.run
    assert run(store.end([(cancelled.id, 7)], State.CANCELLED, NOW + 9, "ann"))[0] == set()
    assert history(store, cancelled.id) == []
    assert run(store.end([(cancelled.id, 1)], State.CANCELLED, NOW + 9, "ann"))[0] == {cancelled.id}
    assert run(store.end([(failed.id, held.version)], State.FAILED, NOW + 9, AWKWARD))[0] == {
        failed.id
    }
    assert run(store.end([(failed.id, held.version)], State.FAILED, NOW + 9, "twice"))[0] == set()
    assert listed(store) == []
    attempt = history(store, cancelled.id)[0]
    assert (attempt.outcome, attempt.next_state, attempt.started_at, attempt.error_text) == (
        "cancelled",
        "CANCELLED",
        None,
        "by ann",
    )
    assert shown(store, failed.id).state is State.FAILED
    assert (await store.complete("node-1", [done(held)])).refused == [failed.id]
    with pytest.raises(NotAllowed, match="DONE"):
        run(store.end([(cancelled.id, 1)], State.DONE, NOW, "ann"))


# the cluster --------------------------------------------------------------------------------------


async def test_queues_are_known_counted_and_paused(store: Store) -> None:
    run = store.database.run
    assert await store.register_queues({"mail": 4, AWKWARD: 1}) == {
        "mail": (4, False, 0),
        AWKWARD: (1, False, 0),
    }
    assert await store.register_queues({"mail": 2}) == {"mail": (4, False, 0)}
    assert await store.register_queues({"mail": 6}) == {"mail": (6, False, 1)}
    assert run(store.pause("no queue has this name", True)) is False
    assert run(store.pause("mail", True)) is True
    assert await store.register_queues({"mail": 6}) == {"mail": (6, True, 2)}
    tasks = make(3)
    submit(store, tasks + make(2, run_at=NOW + SECOND) + make(1, queue="unregistered"))
    await claimed(store, tasks[:1])
    mail = next(status for status in run(store.queue_statuses()) if status.queue == "mail")
    assert (mail.partitions, mail.paused, mail.oldest_ready_at) == (6, True, NOW)
    assert (mail.waiting, mail.submitted, mail.processing, mail.error) == (2, 2, 1, 0)
    assert run(store.oldest_ready()) == {"mail": NOW, "unregistered": NOW}
    assert {status.queue for status in run(store.queue_statuses())} == {
        "mail",
        AWKWARD,
        "unregistered",
    }


async def test_a_person_who_settles_a_task_in_error_ends_its_incident(store: Store) -> None:
    retried, ended = await in_error(store, 2)
    store.database.run(store.move([(retried, 3)], State.SUBMITTED, NOW, NOW, True))
    assert await store.incidents.counts() == {("error", "mail", "send"): 1}
    store.database.run(store.end([(ended, 3)], State.FAILED, NOW, "me"))
    assert await store.incidents.counts() == {}
    assert await store.incidents.claim(NOW * 2, NOW * 2, 10) == []


async def test_a_sweep_looks_at_every_incident_page_by_page(store: Store) -> None:
    await in_error(store, 7)
    after, pages = 0, 0
    while (after := await store.incidents.sweep(after, NOW, 3)) != 0:
        pages += 1
    assert pages == 2
    assert sum((await store.incidents.counts()).values()) == 7


async def test_two_nodes_never_claim_the_same_incident(store: Store, url: str) -> None:
    await in_error(store, 60)
    other = open_store(url)
    claims = [by.incidents.claim(NOW * 2, NOW * 3, 10) for _ in range(4) for by in (store, other)]
    found = [incident.id for part in await asyncio.gather(*claims) for incident in part]
    assert len(found) == len(set(found)) == 60
    await other.database.close_async()
    other.database.close()


async def test_tasks_without_a_fairness_key_are_found_behind_many_with_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One search passes few of the others, and the next one goes on behind them."""
    monkeypatch.setattr(sql_store, "MOST_PASSED", 5)
    await test_the_tasks_without_a_fairness_key_are_read_page_by_page(store)  # noqa: F405


# with the cluster and the people ----------------------------------------------------------------


async def test_claims_of_tasks_that_a_node_holds_are_not_dropped(store: Store) -> None:
    """`drop_claims` keeps what finds the tasks that the node holds, named or not."""
    tasks = make(3)
    submit(store, tasks)
    first = await claimed(store, tasks[:2])
    await claimed(store, tasks[2:])
    await store.complete("node-1", [done(first[0])])
    await store.drop_claims("node-1", [])
    assert sorted(await store.held("node-1")) == sorted((task.id, 2) for task in tasks[1:])
    assert (await store.resume_lost(["node-1"], NOW + 9, 10)).moved == 2


async def test_a_node_that_was_dropped_claims_nothing_and_leaves_nothing(store: Store) -> None:
    """`claim` refuses a node that is not registered; `resume_lost` finds what it held."""
    tasks = make(2)
    submit(store, tasks)
    await claimed(store, tasks[:1])
    await store.drop_node("node-1")
    assert await store.claim("node-1", wanted(tasks[1:]), NOW, {}) == []
    assert (await store.resume_lost(["node-1"], NOW + 9, 10)).moved == 1
    await store.drop_node("node-1")
    assert len(await claimed(store, tasks[1:])) == 1


async def test_a_task_in_error_is_an_incident_until_it_is_delivered(store: Store) -> None:
    """`claim` of incidents returns a task in ERROR again after the lease, until `delivered`."""
    (task_id,) = await in_error(store, 1)
    incidents = store.incidents
    (found,) = await incidents.claim(LATE, LATE + SECOND, 10)
    assert (found.kind, found.subject, found.version) == (IncidentKind.ERROR, task_id, 3)
    assert (found.queue, found.name, found.details) == ("mail", "send", "ValueError: no")
    assert (found.deliveries, found.delivered_at) == (1, None)
    assert found.task is not None and found.task.state == State.ERROR
    assert await incidents.claim(LATE + SECOND - 1, LATE + 9 * SECOND, 10) == []
    (again,) = await incidents.claim(LATE + SECOND, LATE + 2 * SECOND, 10)
    assert (again.id, again.deliveries) == (found.id, 2)
    await incidents.delivered([found.id], LATE)
    assert await incidents.claim(LATE + 9 * SECOND, LATE + 10 * SECOND, 10) == []
    assert await incidents.counts() == {("error", "mail", "send"): 1}


async def test_claims_of_incidents_bring_each_once_and_then_those_put_back(
    store: Store,
) -> None:
    """Claims return each incident once, and then those that `retry` has put back."""
    expected = set(await in_error(store, 25))
    found = [i for _ in range(4) for i in await store.incidents.claim(LATE, LATE + SECOND, 10)]
    assert len(found) == 25 and {incident.subject for incident in found} == expected
    first, second, *_ = found
    await store.incidents.delivered([second.id], LATE)
    await store.incidents.retry([(first.id, LATE), (second.id, LATE)])
    put_back = await store.incidents.claim(LATE, LATE + SECOND, 10)
    assert [incident.id for incident in put_back] == [first.id]


async def test_the_oldest_ready_task_of_a_queue_is_known(store: Store) -> None:
    """`oldest_ready` and `unfinished` count the tasks of a queue that are ready."""
    await store.register_queues({"mail": 1})
    tasks = make(2) + make(1, run_at=NOW + SECOND)
    submit(store, tasks)
    assert store.database.run(store.oldest_ready()) == {"mail": NOW}
    assert store.database.run(store.unfinished(["mail"])) == (2, 0)
    assert store.database.run(store.unfinished(["other"])) == (0, 0)
    assert store.database.run(store.has_unfinished(["other", "mail"]))
    assert not store.database.run(store.has_unfinished(["other"]))
    assert store.database.run(store.weights("mail")) == {}
    assert store.database.run(store.limits("mail")) == {}
