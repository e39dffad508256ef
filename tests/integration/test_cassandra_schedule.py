"""The schedule on Cassandra: late writes of former owners, range deletes and their tombstones, and
datacentres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

pytest.importorskip("cassandra", reason="the driver is missing: pip install 'fairlead[cassandra]'")

from cassandra import ConsistencyLevel  # noqa: E402

from fairlead.backends.cassandra import datacentres as cassandra_datacentres  # noqa: E402
from fairlead.backends.cassandra import owner as cassandra_owner  # noqa: E402
from fairlead.backends.cassandra import schedule as cassandra_schedule  # noqa: E402
from fairlead.backends.cassandra import schedule_writes  # noqa: E402
from fairlead.backends.cassandra.owner import ScheduleOwner, next_range_id  # noqa: E402
from fairlead.backends.cassandra.schedule import OVERLAP, CassandraScheduleStore  # noqa: E402
from fairlead.backends.cassandra.session import CassandraSession  # noqa: E402
from fairlead.backends.sql.migrate import migrate  # noqa: E402
from fairlead.connect import task_store  # noqa: E402
from fairlead.engine.outcome import MOST_ERROR_TEXT  # noqa: E402
from fairlead.errors import BatchTooLarge, StoreUnavailable  # noqa: E402
from fairlead.model import BEFORE_ALL, ScheduledTask, ScheduleRecord, TaskKey  # noqa: E402
from fairlead.ordered.in_flight import MOST_AT_ONCE  # noqa: E402
from fairlead.ports.schedule_store import HOUR, Fenced  # noqa: E402
from fairlead.ports.task_log import Submit, encode  # noqa: E402
from services.cassandra import CassandraServer  # noqa: E402
from tests.cassandra_scans import Scan, traced
from tests.contract.test_schedule_store import (  # noqa: E402
    END,
    NOW,
    PARTITION,
    again,
    ended,
    everything,
    holding,
    task,
)

DAY = 24 * HOUR


@pytest.fixture
async def opened(
    sqlite_url: str, migrated_cassandra_url: str
) -> AsyncIterator[Callable[[], CassandraScheduleStore]]:
    """Yield a function that opens another store on the same tables, as another node does."""
    tasks = task_store(sqlite_url)
    migrate(tasks.database)
    stores: list[CassandraScheduleStore] = []

    def open_one() -> CassandraScheduleStore:
        stores.append(CassandraScheduleStore(migrated_cassandra_url, tasks))
        return stores[-1]

    await open_one().migrate()
    yield open_one
    for store in stores:
        await store.close()
    await tasks.database.close_async()
    tasks.database.close()  # type: ignore[attr-defined]


@pytest.fixture
def store(opened: Callable[[], CassandraScheduleStore]) -> CassandraScheduleStore:
    return opened()


def low_water_mark_at(run_at: int) -> ScheduleRecord:
    return ScheduleRecord(low_water_mark=TaskKey(run_at, "", ""))


async def traced_read(
    store: CassandraScheduleStore, *where: Any
) -> tuple[list[ScheduledTask], Scan]:
    """Return a page of the schedule, and what its requests scanned."""
    page, scan = await traced(store.session, lambda: store.read(PARTITION, *where))
    return list(page.tasks), scan


async def insist(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat the call until the server responds."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except StoreUnavailable:
                await asyncio.sleep(0.1)


async def unmoved(store: CassandraScheduleStore) -> list[tuple[Any, ...]]:
    """Return task id and attempt of the runs in Cassandra."""

    def read() -> list[tuple[Any, ...]]:
        with store.session.make_cluster() as cluster:
            found = cluster.connect(store.session.url.keyspace).execute(
                "SELECT id, attempt FROM fairlead_history"
            )
            return [tuple(row) for row in found]

    return await asyncio.to_thread(read)


@contextmanager
def history_away(store: CassandraScheduleStore) -> Iterator[None]:
    """Let the database of the history refuse every write during the block."""
    database = store._history._database

    async def refuse(steps: Any) -> None:
        raise StoreUnavailable("the database is away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "run_async", refuse)
        yield
    store._history._try_at = 0.0


def history_of(store: CassandraScheduleStore) -> list[tuple[str, int, str]]:
    """Return task id, attempt and outcome of each run in the history, by task and attempt."""
    with store._history._database.transaction() as connection:  # type: ignore[attr-defined]
        rows = connection.execute("SELECT task_id, attempt, outcome FROM fairlead_attempts")
        return sorted(tuple(row) for row in rows)


# the history --------------------------------------------------------------------------------------


async def test_runs_end_while_the_history_is_away_and_are_moved_once_when_it_is_back(
    store: CassandraScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cassandra_schedule, "MOVED_AT_ONCE", 3)
    tasks = [task(NOW + n * HOUR // 4, f"k{n}") for n in range(10)]
    range_id, rows = await holding(store, tasks)
    with history_away(store):
        await store.finish(PARTITION, range_id, [again(row, NOW) for row in rows])
        rows = await everything(store)
        await store.finish(PARTITION, range_id, [ended(row, finished_at=NOW + 9) for row in rows])
        assert await everything(store) == []
        await store.move_attempts(PARTITION, range_id)
        assert history_of(store) == []
    assert len(await unmoved(store)) == 20
    expected = sorted(
        (each.id, attempt, outcome)
        for each in tasks
        for attempt, outcome in ((1, "retried"), (2, "done"))
    )
    with pytest.MonkeyPatch.context() as patch:  # a crash between the move and the deletion
        patch.setattr(store.session, "batch", _crash)
        with pytest.raises(StoreUnavailable):
            await store.move_attempts(PARTITION, range_id)
    for _ in range(2):
        await store.move_attempts(PARTITION, range_id)
        assert history_of(store) == expected
        assert await unmoved(store) == []


async def _crash(statements: Any) -> None:
    raise StoreUnavailable("the process ended")


async def test_the_next_owner_moves_the_runs_that_a_former_owner_has_left(
    opened: Callable[[], CassandraScheduleStore],
) -> None:
    former, later = opened(), opened()
    range_id, rows = await holding(former, [task(NOW), task(NOW + 9 * DAY)])
    with history_away(former):
        await former.finish(PARTITION, range_id, [ended(row) for row in rows])
    range_id = (await later.take_over(PARTITION)).range_id
    await later.move_attempts(PARTITION, range_id)
    assert [row[0] for row in history_of(later)] == sorted(row.task.id for row in rows)
    assert await unmoved(later) == []


async def test_a_run_that_ends_during_a_move_of_its_hour_is_kept_for_the_next_move(
    store: CassandraScheduleStore,
) -> None:
    tasks = [task(NOW + n, f"k{n}") for n in range(3)]
    range_id, rows = await holding(store, tasks)
    await store.finish(PARTITION, range_id, [ended(rows[0])])
    batch = store.session.batch

    async def end_another(statements: Any) -> Any:
        patch.undo()
        assert statements[0][0] == "drop_runs"
        with history_away(store):
            await store.finish(PARTITION, range_id, [ended(rows[1])])
        return await batch(statements)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.session, "batch", end_another)
        await store.move_attempts(PARTITION, range_id)
    assert [run[0] for run in await unmoved(store)] == [tasks[1].id]
    # Only the store knows of the run now.
    range_id = (await store.take_over(PARTITION)).range_id
    await store.move_attempts(PARTITION, range_id)
    assert [row[0] for row in history_of(store)] == [tasks[0].id, tasks[1].id]
    assert await unmoved(store) == []


async def test_a_move_during_the_end_of_a_run_does_not_delete_the_run(
    store: CassandraScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    range_id, rows = await holding(store, [task(NOW, "a"), task(NOW, "b")])
    await store.finish(PARTITION, range_id, [ended(rows[0])])

    async def move_first(runs: Any) -> bool:
        monkeypatch.undo()
        await store.move_attempts(PARTITION, range_id)
        return False

    monkeypatch.setattr(store._history, "append", move_first)
    await store.finish(PARTITION, range_id, [ended(rows[1])])
    assert rows[1].task.id in [run[0] for run in await unmoved(store)]
    await store.move_attempts(PARTITION, range_id)
    assert len(history_of(store)) == 2
    assert await unmoved(store) == []


async def test_a_run_whose_end_was_cut_off_before_the_history_had_it_is_moved_later(
    opened: Callable[[], CassandraScheduleStore],
) -> None:
    store, later = opened(), opened()
    range_id, rows = await holding(store, [task(NOW, "a"), task(NOW, "b")])
    await store.move_attempts(PARTITION, range_id)
    await store.finish(PARTITION, range_id, [ended(rows[0])])
    is_appending = asyncio.Event()

    async def wait(runs: Any) -> bool:
        is_appending.set()
        return await asyncio.Future()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store._history, "append", wait)
        ending = asyncio.create_task(store.finish(PARTITION, range_id, [ended(rows[1])]))
        await is_appending.wait()
        ending.cancel()
        await asyncio.wait([ending])
    await store.move_attempts(PARTITION, range_id)  # as at the release of the partition
    range_id = (await later.take_over(PARTITION)).range_id
    await later.move_attempts(PARTITION, range_id)
    assert [run[0] for run in history_of(store)] == [row.task.id for row in rows]
    assert await unmoved(store) == []


async def test_a_batch_that_the_database_of_the_history_refuses_is_moved_in_parts(
    store: CassandraScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [task(NOW, f"k{n}") for n in range(9)]
    range_id, rows = await holding(store, tasks)
    with history_away(store):
        await store.finish(PARTITION, range_id, [ended(row) for row in rows])
    run_async = store._history._database.run_async

    async def refuse_many(steps: Any) -> Any:
        (statement,) = some = list(steps)
        if len(msgspec.json.decode(statement.params[0])) > 2:
            raise BatchTooLarge("more than two runs")
        return await run_async(step for step in some)

    monkeypatch.setattr(store._history._database, "run_async", refuse_many)
    await store.move_attempts(PARTITION, range_id)
    assert len(history_of(store)) == 9
    assert await unmoved(store) == []


@pytest.mark.parametrize("row", ["'nonsense'", "'[1]'", "null"])
async def test_a_run_that_cannot_be_read_hides_no_other_from_the_history(
    store: CassandraScheduleStore, row: str
) -> None:
    range_id, rows = await holding(store, [task(NOW, "a"), task(NOW, "b")])
    with history_away(store):
        await store.finish(PARTITION, range_id, [ended(row) for row in rows])

    def damage() -> None:
        with store.session.make_cluster() as cluster:
            cluster.connect(store.session.url.keyspace).execute(
                f"UPDATE fairlead_history USING TIMESTAMP {2**62} SET row = {row}"
                f" WHERE queue = %s AND partition = %s AND hour = {NOW // HOUR}"
                f" AND ended_at = {NOW + 3} AND id = %s AND attempt = 1",
                (*PARTITION, rows[0].task.id),
            )

    await asyncio.to_thread(damage)
    await store.move_attempts(PARTITION, range_id)
    assert [row[0] for row in history_of(store)] == [rows[1].task.id]


async def test_ends_with_the_longest_errors_are_written_and_moved_though_the_socket_is_full(
    store: CassandraScheduleStore,
) -> None:
    range_id = (await store.take_over(PARTITION)).range_id
    tasks = [task(NOW, f"k{n}") for n in range(MOST_AT_ONCE)]
    await store.persist(PARTITION, range_id, tasks, ScheduleRecord())
    text = "\N{GRINNING FACE}" * MOST_ERROR_TEXT
    ends = [
        msgspec.structs.replace(again(row, NOW), error_text=text) for row in await everything(store)
    ]
    with history_away(store):
        await store.finish(PARTITION, range_id, ends)
    await store.move_attempts(PARTITION, range_id)
    assert len(history_of(store)) == MOST_AT_ONCE
    assert await unmoved(store) == []


async def test_the_largest_task_of_the_log_fits_in_and_a_larger_one_is_refused_clearly(
    store: CassandraScheduleStore,
) -> None:
    most = pytest.importorskip("fairlead.backends.kafka.log_topics", reason="needs Kafka").LARGEST
    range_id = (await store.take_over(PARTITION)).range_id
    largest = task(NOW, payload=b"x" * 11_750_000)
    assert most - 70_000 < len(encode(Submit(largest))) < most
    await store.persist(PARTITION, range_id, [largest], low_water_mark_at(0))
    (row,) = await everything(store)
    await store.finish(PARTITION, range_id, [again(row, NOW)])
    too_large = task(NOW + 1, payload=b"x" * 13_000_000)
    with pytest.raises(BatchTooLarge, match="native_transport_max_frame_size"):
        await store.persist(PARTITION, range_id, [too_large], low_water_mark_at(0))
    assert [row.task for row in await everything(store)] == [largest]


# owners -------------------------------------------------------------------------------------------


async def test_late_writes_of_a_former_owner_have_no_effect(
    opened: Callable[[], CassandraScheduleStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    former, later = opened(), opened()
    first = (await former.take_over(PARTITION)).range_id
    old = [task(NOW + n) for n in range(6)]
    await former.persist(PARTITION, first, old, low_water_mark_at(0))
    second = (await later.take_over(PARTITION)).range_id
    new = [task(NOW + n, payload=b"new") for n in range(1, 5)]
    await later.persist(PARTITION, second, new, low_water_mark_at(1))
    rows = await everything(later)
    assert [row.task for row in rows] == [old[0], *new, old[5]]
    await later.finish(PARTITION, second, [again(rows[1], NOW + 50), ended(rows[2])])
    before = await everything(later)

    async def skip_check(_: ScheduleOwner) -> None:
        """Let the former owner write, as if it had checked the range id before the take-over."""

    monkeypatch.setattr(former, "_check_fence", skip_check)
    await former.persist(
        PARTITION,
        first,
        [task(NOW + n, payload=b"late") for n in range(1, 5)],
        low_water_mark_at(NOW + DAY),
    )
    await former.finish(PARTITION, first, [again(rows[1], NOW + 99)])
    await former.keep(
        PARTITION,
        first,
        low_water_mark_at(NOW + 5),
        [(TaskKey(NOW, "", ""), TaskKey(NOW + 5, "", ""))],
    )
    assert former._owners[PARTITION].swept == TaskKey(NOW + 5, "", ""), (
        "the delete of the former owner reached the table"
    )
    # The former owner has deleted its own row and no row of the later owner.
    assert await everything(later) == before[1:]
    third = await opened().take_over(PARTITION)
    assert third.record == low_water_mark_at(1) and third.range_id > second > first


async def test_a_take_over_during_a_write_leaves_the_write_unconfirmed(
    opened: Callable[[], CassandraScheduleStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the write were confirmed, the log would drop a task that the later owner may not have."""
    former, later = opened(), opened()
    first = (await former.take_over(PARTITION)).range_id
    await former.persist(PARTITION, first, [task(1), task(2)], ScheduleRecord())
    rows = await everything(former)
    write = former._write

    async def overtaken(batches: Any) -> None:
        await later.take_over(PARTITION)
        await write(batches)

    monkeypatch.setattr(former, "_write", overtaken)
    with pytest.raises(Fenced):
        await former.persist(PARTITION, first, [task(3)], ScheduleRecord())
    monkeypatch.undo()
    first = (await former.take_over(PARTITION)).range_id
    monkeypatch.setattr(former, "_write", overtaken)
    with pytest.raises(Fenced):
        await former.finish(PARTITION, first, [ended(rows[0])])


def test_range_ids_ascend_with_the_seconds_so_two_datacentres_give_different_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = cassandra_owner._FIRST_SECOND + 1000.5
    monkeypatch.setattr(cassandra_owner.time, "time", lambda: now)
    assert next_range_id(0, 0) == 1000
    assert next_range_id(1000, 7) == 1001, "greater than the known id, within one second too"
    assert next_range_id(7, 1000) == 1001
    now += 3
    assert next_range_id(7, 0) == 1003, (
        "greater than the ids that the other datacentre gave seconds ago"
    )


# range deletes ------------------------------------------------------------------------------------


async def test_a_late_task_below_the_low_water_mark_survives_the_deletes(
    opened: Callable[[], CassandraScheduleStore],
) -> None:
    store = opened()
    range_id, rows = await holding(store, [task(NOW + n) for n in range(10)])
    await store.finish(PARTITION, range_id, [ended(row) for row in rows[:8]])
    await store.keep(PARTITION, range_id, low_water_mark_at(NOW + 8))
    late = [task(NOW - HOUR), task(NOW + 3, "late"), task(NOW + 7)]
    completed = await store.persist(PARTITION, range_id, late, low_water_mark_at(NOW - HOUR - 1))
    assert completed == {rows[7].key}
    expected = [ScheduledTask.of(late[0]), ScheduledTask.of(late[1]), *rows[8:]]
    assert await everything(store) == expected
    # A save that began earlier may arrive later.
    await store.keep(PARTITION, range_id, low_water_mark_at(NOW - HOUR - 1))
    after = opened()
    assert (await after.take_over(PARTITION)).record.low_water_mark < expected[0].key
    assert await everything(after) == expected


async def completing(
    store: CassandraScheduleStore, range_id: int, count: int, stuck: int
) -> list[TaskKey]:
    """Complete `count` tasks of one hour except `stuck` of them, and return the keys that are left.

    Save the record and the completed ranges after every 500 tasks, as a partition does.
    """
    tasks = [task(NOW + n, f"k{n}") for n in range(count)]
    for start in range(0, count, 1000):
        await store.persist(PARTITION, range_id, tasks[start : start + 1000], ScheduleRecord())
    keys = [ScheduledTask.of(t).key for t in tasks]
    held = keys[:: count // stuck][:stuck] if stuck else []
    left = iter([t for t in tasks if ScheduledTask.of(t).key not in set(held)])
    while batch := [t for _, t in zip(range(500), left, strict=False)]:
        await store.finish(PARTITION, range_id, [ended(ScheduledTask.of(t)) for t in batch])
        last = ScheduledTask.of(batch[-1]).key
        low_water_mark = keys[0] if held else last
        within = [*[key for key in held if key < last], last]
        await store.keep(
            PARTITION,
            range_id,
            ScheduleRecord(low_water_mark=TaskKey(low_water_mark.run_at, "", "")),
            list(zip(within, within[1:], strict=False)),
        )
    return held


@pytest.mark.parametrize("stuck", [0, 1, 20])
async def test_reads_scan_few_tombstones_even_if_stuck_tasks_hold_the_low_water_mark_down(
    store: CassandraScheduleStore, stuck: int
) -> None:
    range_id = (await store.take_over(PARTITION)).range_id
    held = await completing(store, range_id, 4000, stuck)
    low_water_mark = (await store.take_over(PARTITION)).record.low_water_mark
    rows, scan = await traced_read(store, low_water_mark, END, 1000)
    assert [row.key for row in rows] == held
    print(f"{stuck} stuck: {scan}")
    assert scan.tombstones <= 2 * (stuck + 2)
    _, scan = await traced_read(store, TaskKey(NOW + 3999, "", ""), END, 1000)
    assert scan.tombstones <= 2


async def test_an_end_cut_off_between_two_batches_is_written_whole_or_not_at_all(
    store: CassandraScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is completed while its row is unfinished would run again at the next load."""
    range_id, rows = await holding(store, [task(NOW + n, f"k{n}") for n in range(40)])
    batch, begun, written, are_written = store.session.batch, 0, 0, asyncio.Event()

    async def cut_off(statements: Any) -> None:
        nonlocal begun, written
        is_end = statements[0][0] == "append_run"
        begun += is_end
        if begun > 2:
            await are_written.wait()
            raise StoreUnavailable("the node died")
        await batch(statements)
        written += is_end
        if written == 2:
            are_written.set()

    monkeypatch.setattr(schedule_writes, "MOST_BYTES", 1000)
    monkeypatch.setattr(store.session, "batch", cut_off)
    with pytest.raises(StoreUnavailable, match="the node died"):
        await store.finish(PARTITION, range_id, [ended(row) for row in rows])
    monkeypatch.undo()
    unfinished = {row.key for row in await everything(store)}
    completed = await store._completed(store._owners[PARTITION], [row.key for row in rows])
    assert 0 < len(completed) < 40
    assert completed == {row.key for row in rows} - unfinished
    ended_ids = {row.task.id for row in rows if row.key in completed}
    assert {run[0] for run in await unmoved(store)} == ended_ids


async def test_a_completion_written_during_a_cleaning_is_kept(
    store: CassandraScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaning has the later timestamp and would delete the completion."""
    range_id, rows = await holding(store, [task(NOW + n) for n in range(3)])
    await store.finish(PARTITION, range_id, [ended(rows[1], finished_at=NOW + 1)])
    append, cleaned = store._history.append, list[int]()

    async def clean_first(runs: Any) -> bool:
        cleaned.append(await store.clean(PARTITION, range_id, NOW + 20 * DAY))
        return await append(runs)

    monkeypatch.setattr(store._history, "append", clean_first)
    await store.finish(PARTITION, range_id, [ended(rows[2], finished_at=NOW + 20 * DAY)])
    monkeypatch.undo()
    assert cleaned == [0]
    assert await store._completed(store._owners[PARTITION], [rows[2].key]) == {rows[2].key}
    assert await store.clean(PARTITION, range_id, NOW + 20 * DAY) == 0
    assert await store.clean(PARTITION, range_id, NOW + 22 * DAY) == 1
    assert await everything(store) == [rows[0]]


# datacentres --------------------------------------------------------------------------------------


class SecondDatacentre:
    """A second datacentre that can be unavailable, and has writes that the first one lacks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_away = False
        self.reads = 0
        rows = CassandraSession.rows

        async def responding(
            session: CassandraSession, name: str, *params: Any, **options: Any
        ) -> AsyncGenerator[Any, None]:
            if options.get("consistency") == ConsistencyLevel.EACH_QUORUM:
                self.reads += 1
                if self.is_away:
                    raise StoreUnavailable("one is unavailable")
            async for row in rows(session, name, *params, **options):
                yield row

        monkeypatch.setattr(CassandraSession, "rows", responding)
        monkeypatch.setattr(CassandraSession, "datacentres", 2)
        monkeypatch.setattr(cassandra_datacentres, "PROBE_SECONDS", 0.0)


async def test_while_a_datacentre_is_away_nothing_is_deleted_and_afterwards_all_is_read_again(
    store: CassandraScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SecondDatacentre(monkeypatch)
    range_id, rows = await holding(store, [task(NOW + n) for n in range(10)])
    await store.finish(PARTITION, range_id, [ended(row) for row in rows[:3]])
    await store.keep(PARTITION, range_id, low_water_mark_at(NOW + 2))
    assert other.reads and store._owners[PARTITION].swept == TaskKey(NOW + 2, "", "")

    other.is_away = True
    assert await everything(store) == rows[3:]
    await store.finish(PARTITION, range_id, [ended(row) for row in rows[3:6]])
    await store.keep(PARTITION, range_id, low_water_mark_at(NOW + 5), [(rows[3].key, rows[5].key)])
    assert (await store.statuses("reminders", 0))[3].record.low_water_mark == TaskKey(
        NOW + 2, "", ""
    )
    assert store._owners[PARTITION].swept == TaskKey(NOW + 2, "", "")
    assert await store.clean(PARTITION, range_id, NOW + 100 * DAY) == 0
    await store.persist(PARTITION, range_id, [task(NOW, "late")], low_water_mark_at(NOW - 1))
    assert (await store.statuses("reminders", 0))[3].record.low_water_mark == TaskKey(NOW, "", "")

    owned = await store.take_over(PARTITION)
    assert owned.record.low_water_mark == TaskKey(NOW - OVERLAP, "", ""), (
        "only the other datacentre may have a lower key"
    )
    assert [row.key.run_at - NOW for row in await everything(store)] == [0, 6, 7, 8, 9]
    await store.keep(PARTITION, owned.range_id, low_water_mark_at(NOW - OVERLAP))
    owned = await store.take_over(PARTITION)
    assert owned.record.low_water_mark == TaskKey(NOW - OVERLAP, "", ""), (
        "a take-over does not lower the low-water mark"
    )

    other.is_away = False
    for call in (
        lambda: store.keep(PARTITION, owned.range_id, low_water_mark_at(NOW + 5)),
        lambda: store.clean(PARTITION, owned.range_id, 0),
    ):
        with pytest.raises(StoreUnavailable, match="responds again"):
            await call()
    owned = await store.take_over(PARTITION)
    assert owned.record.low_water_mark == TaskKey(NOW - OVERLAP, "", "")
    await everything(store)
    await store.keep(PARTITION, owned.range_id, low_water_mark_at(NOW + 5))
    assert (await store.take_over(PARTITION)).record.low_water_mark == TaskKey(NOW + 5, "", "")


async def test_runs_of_a_datacentre_that_is_away_are_not_deleted_before_they_were_read(
    store: CassandraScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SecondDatacentre(monkeypatch)
    range_id, rows = await holding(store, [task(NOW, "a"), task(NOW, "b")])
    with history_away(store):
        await store.finish(PARTITION, range_id, [ended(row) for row in rows])
    range_id = (await store.take_over(PARTITION)).range_id
    other.is_away = True
    await store.move_attempts(PARTITION, range_id)
    assert (len(history_of(store)), len(await unmoved(store))) == (2, 2)
    other.is_away = False
    await store._datacentres.are_back("range_id", *PARTITION)
    await store.move_attempts(PARTITION, range_id)
    assert (len(history_of(store)), len(await unmoved(store))) == (2, 0)


async def test_a_datacentre_that_lacks_a_take_over_raises_store_unavailable_and_not_fenced(
    store: CassandraScheduleStore,
) -> None:
    range_id = (await store.take_over(PARTITION)).range_id
    store._owners[PARTITION].range_id = range_id + 1  # as if another datacentre had raised it
    with pytest.raises(StoreUnavailable, match="until it has caught up"):
        await store.keep(PARTITION, range_id + 1, ScheduleRecord())


# the server ---------------------------------------------------------------------------------------


@pytest.mark.nightly("an outage")
async def test_a_kill_loses_nothing_and_the_same_store_works_after_the_restart(
    store: CassandraScheduleStore, own_cassandra_server: CassandraServer
) -> None:
    range_id, rows = await holding(store, [task(NOW + n) for n in range(100)])
    await store.finish(PARTITION, range_id, [ended(row) for row in rows[:50]])
    own_cassandra_server.crash()  # kill -9; only the commit log is on disk
    try:
        for call in (
            lambda: store.take_over(PARTITION),
            lambda: store.persist(PARTITION, range_id, [task(1)], ScheduleRecord()),
            lambda: store.finish(PARTITION, range_id, [ended(rows[60])]),
            lambda: store.keep(PARTITION, range_id, ScheduleRecord()),
            lambda: store.read(PARTITION, BEFORE_ALL, END, 10),
            lambda: store.find(PARTITION, rows[60].key),
            lambda: store.unfinished("reminders", NOW),
            lambda: store.statuses("reminders", NOW),
            lambda: store.clean(PARTITION, range_id, NOW),
            lambda: store.move_attempts(PARTITION, range_id),
            store.migrate,
        ):
            with pytest.raises(StoreUnavailable) as raised:
                await call()
            assert raised.value.__cause__ is not None
    finally:
        own_cassandra_server.start()
    assert await insist(lambda: everything(store)) == rows[50:]
    await store.finish(PARTITION, range_id, [ended(rows[60])])
    assert len(await everything(store)) == 49
