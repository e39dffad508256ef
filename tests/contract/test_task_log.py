"""Promises of `fairlead.ports.task_log.TaskLog`, for every adapter on its real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
import pytest

from fairlead.backends.sql.drivers import drive, executor
from fairlead.backends.sql.migrate import migrate
from fairlead.clock import SYSTEM_CLOCK
from fairlead.connect import task_store
from fairlead.model import PartitionKey, TaskKey
from fairlead.ports.task_log import Batch, Drop, Entry, Submit, encode
from fairlead.testing.contract.tasks import make
from tests.adapters import log_of
from tests.memory_task_log import MemoryTaskLog

P0, P1, OTHER = (
    PartitionKey("reminders", 0),
    PartitionKey("reminders", 1),
    PartitionKey("letters", 0),
)
AWKWARD = """'); DROP TABLE fairlead_task_log;-- "quoted" \\ %s $1 ?1 ü 🧭\nline\ttab"""

Log = Any
"""A TaskLog."""


async def opened(kind: str, url: str, beside: Log = None) -> Log:
    if kind == "memory":
        return MemoryTaskLog(SYSTEM_CLOCK, beside)
    if kind == "kafka":
        from fairlead.backends.kafka.task_log import KafkaTaskLog

        return KafkaTaskLog(url, {"reminders": 2, "letters": 1}, lambda *_: None, SYSTEM_CLOCK)
    store = task_store(url)
    migrate(store.database)
    return log_of(store, SYSTEM_CLOCK)


async def closed(log: Log) -> None:
    await log.close()
    if not hasattr(log, "_database"):
        return
    await log._database.close_async()
    log._database.close()


@pytest.fixture(params=["memory", "sqlite", "postgres", "kafka"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "kafka":
        pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest) -> str:
    return "" if kind == "memory" else str(request.getfixturevalue(f"{kind}_url"))


@pytest.fixture
async def log(kind: str, url: str) -> AsyncIterator[Log]:
    log = await opened(kind, url)
    yield log
    await closed(log)


@pytest.fixture
async def other(kind: str, url: str, log: Log) -> AsyncIterator[Log]:
    """Return another node's adapter of the same log."""
    other = await opened(kind, url, beside=log)
    yield other
    await closed(other)


def entries(count: int, partition: PartitionKey = P0, payload: bytes = b"{}") -> list[Entry]:
    tasks = make(
        count,
        queue=partition.queue,
        partition=partition.partition,
        name="work",
        payload=payload,
        fairness_key=AWKWARD,
        weight=1.5,
        ordering_key=AWKWARD,
        submitted_at=7,
    )
    return [
        Submit(msgspec.structs.replace(task, unique_key=task.id, run_at=1_000 + n))
        for n, task in enumerate(tasks)
    ]


def insert(log: Log, message: str) -> None:
    """Append a message to partition P0 without the adapter."""
    if hasattr(log, "_database"):
        sql = f"INSERT INTO fairlead_task_log (queue, partition, message) VALUES ('reminders', 0, '{message}')"
        with log._database.transaction() as connection:
            connection.execute(sql)
    else:
        from confluent_kafka import Producer

        producer = Producer(log._endpoint.settings({}))
        producer.produce(log._endpoint.topic("reminders"), message, partition=0)
        assert producer.flush(60) == 0


async def append(log: Log, new: list[Entry]) -> None:
    await asyncio.wrap_future(log.append(new))


async def received(
    log: Log, wanted: Iterable[PartitionKey], count: int
) -> dict[PartitionKey, list[Entry]]:
    """Receive and commit the next `count` entries of the partitions."""
    found: dict[PartitionKey, list[Entry]] = {}
    wanted = list(wanted)
    async with asyncio.timeout(60):
        while sum(map(len, found.values())) < count:
            for batch in await log.receive(wanted, 100):
                found.setdefault(batch.partition, []).extend(batch.entries)
                await log.commit(batch)
    return found


async def next_batch(log: Log, wanted: list[PartitionKey]) -> Batch:
    """Receive a batch without a commit; the log decides how many entries are in it."""
    async with asyncio.timeout(60):
        while not (found := await log.receive(wanted, 100)):
            pass
    (batch,) = found
    return batch


async def waits(log: Log, lag: dict[int, int]) -> None:
    """Wait until the log reports this lag; a commit may take a moment to arrive."""
    async with asyncio.timeout(60):
        while await log.lag("reminders") != lag:
            await asyncio.sleep(0.05)


async def test_entries_come_by_partition_in_the_order_in_which_they_were_appended(
    log: Log, other: Log
) -> None:
    mine, theirs, strange = entries(130), entries(70, P1), entries(5, OTHER)
    for start in range(0, 130, 13):
        await append(
            other,
            [*mine[start : start + 13], *theirs[start : start + 7]]
            if start < 70
            else mine[start : start + 13],
        )
    theirs = [e for start in range(0, 70, 13) for e in theirs[start : start + 7]]
    await append(other, strange)
    assert await received(log, [P0, P1], 130 + len(theirs)) == {P0: mine, P1: theirs}
    assert await received(log, [OTHER], 5) == {OTHER: strange}


async def test_a_batch_ends_before_its_messages_have_too_many_bytes_and_has_one_at_least(
    log: Log, other: Log
) -> None:
    sizes = [60_000, 60_000, 10, 10, 300_000, 10, *[60_000] * 40, *[10] * 500]
    new = [entry for size in sizes for entry in entries(1, payload=b'"%s"' % (b"x" * size))]
    small = entries(30, P1)
    for start in range(0, len(new), 50):
        await append(other, new[start : start + 50])
    await append(other, small)
    most_bytes, found, beside, batches = 200_000, list[Entry](), list[Entry](), 0
    async with asyncio.timeout(60):
        while len(found) < len(new) or len(beside) < len(small):
            for batch in await log.receive([P0, P1], 5000, most_bytes):
                size = sum(len(encode(entry)) for entry in batch.entries)
                assert len(batch.entries) == 1 or size <= most_bytes
                (found if batch.partition == P0 else beside).extend(batch.entries)
                batches += 1
                await log.commit(batch)
    assert (found, beside) == (new, small)
    assert batches < 400


async def test_a_drop_arrives_unchanged(log: Log) -> None:
    drop = Drop(*P0, TaskKey(5, AWKWARD, "u"), AWKWARD, 9)
    await append(log, [*entries(1), drop])
    assert (await received(log, [P0], 2))[P0][1] == drop


async def test_the_next_owner_receives_uncommitted_entries_and_no_committed_ones(
    log: Log, other: Log
) -> None:
    first, second = entries(3), entries(4)
    await append(log, first)
    assert await received(log, [P0], 3) == {P0: first}
    await waits(other, {})
    await append(log, second)
    batch = await next_batch(log, [P0])
    assert batch.entries == second[: len(batch.entries)]
    assert await received(other, [P0], 4) == {P0: second}


async def test_a_partition_has_one_batch_until_a_commit_or_a_rewind(
    log: Log,
) -> None:
    first, second = entries(3), entries(4)
    await append(log, first)
    await next_batch(log, [P0])
    await append(log, [*second, *entries(1, P1)])
    assert (await next_batch(log, [P0, P1])).partition == P1, "only the other partition has a batch"
    await log.rewind(P0)
    assert await received(log, [P0], 7) == {P0: first + second}


async def test_a_batch_is_not_much_larger_than_the_limit(log: Log) -> None:
    await append(log, entries(500))
    assert 1 <= len((await next_batch(log, [P0])).entries) <= 100


async def test_receive_waits_until_it_is_poked(log: Log) -> None:
    waiting = asyncio.create_task(log.receive([P0], 100))
    await asyncio.sleep(0)
    log.poke()
    async with asyncio.timeout(60):
        assert await waiting == ()


async def test_an_append_is_found_without_a_notification(log: Log, other: Log) -> None:
    waiting = asyncio.create_task(received(log, [P0], 1))
    await asyncio.sleep(0)
    new = entries(1)
    await append(other, new)
    assert await waiting == {P0: new}


async def test_is_behind_returns_whether_a_partition_has_more_entries(log: Log, other: Log) -> None:
    await append(log, entries(1, P1))
    assert not await log.is_behind(P0)
    await append(other, entries(30))
    assert await log.is_behind(P0)
    await next_batch(log, [P0])
    assert await log.is_behind(P0)
    await log.rewind(P0)
    await received(log, [P0], 30)
    assert not await log.is_behind(P0)


async def test_large_payloads_arrive_whole(log: Log) -> None:
    new = entries(2, payload=bytes(range(256)) * 4096)
    await append(log, new)
    assert await received(log, [P0], 2) == {P0: new}


async def test_lag_counts_the_waiting_entries(log: Log) -> None:
    await append(log, [*entries(3), *entries(2, P1), *entries(9, OTHER)])
    assert await log.lag("reminders") == {0: 3, 1: 2}
    await received(log, [P0], 3)
    assert await log.lag("reminders") == {1: 2}
    assert await log.has_entries("reminders")
    assert not await log.has_entries("nothing")


async def test_an_unreadable_message_is_skipped_and_counted(log: Log, kind: str) -> None:
    if kind == "memory":
        pytest.skip("this log keeps entries, not messages")
    before, after = entries(1), entries(1)
    await append(log, before)
    insert(log, '{"type": "submit"}')
    await append(log, after)
    found: list[Entry] = []
    unreadable = 0
    while len(found) < 2:
        batch = await next_batch(log, [P0])
        found += batch.entries
        unreadable += batch.unreadable
        await log.commit(batch)
    assert (found, unreadable) == ([*before, *after], 1)
    assert await log.lag("reminders") == {}


async def test_an_append_in_the_callers_transaction_arrives_after_its_commit_even_behind_later_ones(
    log: Log, other: Log
) -> None:
    """On SQLite no later append can overtake, because there is one writer."""
    if not log.joins_transactions:
        pytest.skip("this log joins no transaction")
    late, soon, never = entries(1), entries(1), entries(1)
    database = log._database
    if database.dialect == "postgres":
        with database.transaction() as connection:
            database.join(connection, log.appending(late))
            await append(other, soon)
            assert await received(log, [P0], 1) == {P0: soon}
    else:
        with database.transaction() as connection:
            database.join(connection, log.appending(late))
    with pytest.raises(ZeroDivisionError), database.transaction() as connection:
        database.join(connection, log.appending(never))
        raise ZeroDivisionError
    assert await received(log, [P0], 1) == {P0: late}


async def test_the_wait_for_appends_ends_after_each_open_transaction_that_has_appended(
    kind: str, log: Log, other: Log
) -> None:
    if kind != "postgres":
        await log.ensure_partitions("reminders", 4)
        return  # SQLite has one writer at a time; Kafka waits for a fixed time
    with other._database.transaction() as connection:
        drive(other.appending(entries(1)), executor(connection))
        waiting = asyncio.ensure_future(log.await_appends("reminders"))
        done, _ = await asyncio.wait([waiting], timeout=1.0)
        assert not done
        log.append(entries(1)).result()  # others may append meanwhile
    await waiting
    assert await log.lag("reminders") == {0: 2}
