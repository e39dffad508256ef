"""The task log on a real Kafka: behaviour that the contract of every log does not cover."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlead import App
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import (
    ConfigurationError,
    InvalidTask,
    NotSupported,
    StoreUnavailable,
    UnknownQueue,
)
from fairlead.model import PartitionKey
from fairlead.ports.task_log import Entry, encode
from services.kafka import KafkaServer

confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
from fairlead.backends.kafka import log_reader as kafka_log_reader  # noqa: E402
from fairlead.backends.kafka import offset_commits  # noqa: E402
from fairlead.backends.kafka import sender as kafka_sender  # noqa: E402
from fairlead.backends.kafka.endpoint import KafkaEndpoint  # noqa: E402
from fairlead.backends.kafka.offset_commits import OffsetCommits  # noqa: E402
from fairlead.backends.kafka.task_log import KafkaTaskLog  # noqa: E402
from tests.contract.test_task_log import P0, P1, append, entries, waits  # noqa: E402
from tests.waiting import until  # noqa: E402

SOON = 60.0


def connect(url: str, partitions: int = 2, counts: Counter[str] | None = None) -> KafkaTaskLog:
    counts = Counter() if counts is None else counts
    return KafkaTaskLog(
        url,
        {"reminders": partitions},
        lambda what, count: counts.update({what: count}),
        SYSTEM_CLOCK,
    )


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[KafkaTaskLog]:
    log = connect(url)
    try:
        yield log
    finally:
        await log.close()


@pytest.fixture
async def log(kafka_url: str) -> AsyncIterator[KafkaTaskLog]:
    async with opened(kafka_url) as log:
        yield log


@pytest.fixture
def server() -> Iterator[KafkaServer]:
    """Start a server for this test alone, which the test may stop."""
    with KafkaServer() as server:
        yield server


async def received(
    log: KafkaTaskLog, count: int, wanted: Iterable[PartitionKey] = (P0,)
) -> list[Entry]:
    """Receive and commit the next `count` entries, and return them."""
    found: list[Entry] = []
    wanted = list(wanted)
    async with asyncio.timeout(SOON):
        while len(found) < count:
            for batch in await log.receive(wanted, 1000):
                found += batch.entries
                await log.commit(batch)
    return found


def produce(log: KafkaTaskLog, values: Sequence[bytes | None], **settings: Any) -> None:
    """Write values to P0 with another client."""
    producer = confluent_kafka.Producer(log._endpoint.settings(settings))
    if settings:
        producer.init_transactions(SOON)
    for value in values:
        if settings:  # each value in a transaction, whose end marker takes an offset too
            producer.begin_transaction()
        producer.produce(log._endpoint.topic("reminders"), value, partition=0)
        if settings:
            producer.commit_transaction(SOON)
    assert producer.flush(SOON) == 0


# offsets ------------------------------------------------------------------------------------------


async def test_an_unsent_commit_counts_when_the_partition_is_rewound(
    log: KafkaTaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_commits, "COMMIT_EVERY", 1e9)
    first, second = entries(3), entries(3)
    await append(log, first)
    assert await received(log, 3) == first
    await append(log, second)
    await log.rewind(P0)
    assert await received(log, 3) == second
    assert not await log.is_behind(P0)


async def test_entries_committed_by_an_earlier_owner_after_a_rewind_are_received_by_the_new_one(
    kafka_url: str,
) -> None:
    """The earlier owner, fenced meanwhile, committed these entries, but the new owner does not have
    them in memory."""
    async with opened(kafka_url) as earlier, opened(kafka_url) as later:
        new = entries(5)
        await append(earlier, new)
        await later.rewind(P0)
        assert await received(earlier, 5) == new
        await waits(later, {})
        assert await received(later, 5) == new


async def test_the_offset_of_a_quiet_partition_is_committed_again_and_older_messages_are_deleted(
    log: KafkaTaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_commits, "KEEP_EVERY", 0.5)
    monkeypatch.setattr(offset_commits, "COMMIT_EVERY", 0.1)
    sent: list[int] = []
    partition, confirmed = log._at(P0), OffsetCommits.on_commit

    def noting(self: Any, error: Any, offsets: Any) -> None:
        sent.extend(at.offset for at in offsets)
        confirmed(self, error, offsets)

    monkeypatch.setattr(OffsetCommits, "on_commit", noting)
    await append(log, entries(7))
    assert len(await received(log, 7)) == 7
    consumer = log._running()._thread.client
    await until(
        lambda: consumer.get_watermark_offsets(confluent_kafka.TopicPartition(*partition)) == (7, 7)
    )
    await until(lambda: sent.count(7) >= 3)
    await append(log, new := entries(1))
    await log.rewind(P0)
    assert await received(log, 1) == new


# messages -----------------------------------------------------------------------------------------


async def test_offsets_without_messages_do_not_count_as_lag(log: KafkaTaskLog) -> None:
    new = entries(3)
    await append(log, entries(1, P1))
    await asyncio.to_thread(
        produce, log, [encode(entry) for entry in new], **{"transactional.id": "other"}
    )
    assert await received(log, 3) == new
    await waits(log, {1: 1})
    assert not await log.is_behind(P0)


async def test_a_long_partition_is_not_read_into_memory_at_once(
    log: KafkaTaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log_reader, "MOST_MESSAGES", 3000)
    count = 20_000
    new = entries(count)
    futures = [log.append(new[n : n + 500]) for n in range(0, count, 500)]
    for future in futures:
        await asyncio.wrap_future(future)
    await log.rewind(P0)
    reader = log._running()
    reading = reader._readings[log._at(P0)]
    await until(lambda: reader._paused)
    most = len(reading.waiting)
    found = 0
    async with asyncio.timeout(SOON):
        while found < count:
            for batch in await log.receive([P0], 1000):
                assert batch.entries == new[found : found + len(batch.entries)]
                found += len(batch.entries)
                most = max(most, len(reading.waiting))
                await log.commit(batch)
    assert most <= 3000 + kafka_log_reader.PAGE


async def test_an_unwanted_partition_is_dropped_and_can_be_read_again(
    log: KafkaTaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log_reader, "UNWANTED_SECONDS", 0.2)
    monkeypatch.setattr(offset_commits, "COMMIT_EVERY", 0.1)
    new, others = entries(10), entries(3, P1)
    await append(log, [*new[:5], *others])
    assert await received(log, 5) == new[:5]
    reader = log._running()
    await until(lambda: not reader._assigned)
    await append(log, new[5:])
    assert await received(log, 5) == new[5:]
    assert await received(log, 3, [P1]) == others


# appends ------------------------------------------------------------------------------------------


async def test_appends_of_one_thread_keep_their_order_from_the_first_one_on(
    log: KafkaTaskLog,
) -> None:
    """The order holds while the topic is created, and while the producer has no room."""
    new = entries(3000)
    futures = [log.append([entry]) for entry in new]
    assert await received(log, 3000) == new
    for future in futures:
        assert future.done() or future.result(SOON) is None


async def test_a_full_producer_holds_submitters_back_and_loses_none(
    kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_sender, "MOST_WAITING", 100)
    most_waiting = 0

    def run(log: KafkaTaskLog, new: Sequence[Entry]) -> Future[None]:
        nonlocal most_waiting
        for n in range(0, len(new), 10):
            if (room := log.room()) is not None:
                room.result(SOON)
            last = log.append(new[n : n + 10])
            most_waiting = max(most_waiting, len(log._sender._waiting))
        return last

    async with opened(f"{kafka_url}&queue.buffering.max.messages=50") as log:
        new = entries(2000)
        await asyncio.wrap_future(await asyncio.to_thread(run, log, new))
        assert await received(log, 2000) == new
    assert 90 <= most_waiting < 100 + 10


async def test_a_task_that_is_too_large_is_refused_and_the_next_one_is_not(
    log: KafkaTaskLog,
) -> None:
    too_large, new = entries(1, payload=b"x" * (13 << 20)), entries(1)
    await append(log, entries(1))
    with pytest.raises(InvalidTask, match="too large"):
        await append(log, too_large)
    await append(log, new)
    assert (await received(log, 2))[1:] == new


async def test_tasks_of_the_largest_size_are_taken_many_at_once(log: KafkaTaskLog) -> None:
    largest = entries(12, payload=b"x" * (11 << 20))
    together = [log.append([entry]) for entry in largest]
    small = entries(3000)
    together.append(log.append(small))
    for future in together:
        await asyncio.wrap_future(future)
    assert await received(log, 3012) == [*largest, *small]


async def test_small_tasks_fit_into_a_topic_that_takes_no_batch_of_a_megabyte(
    log: KafkaTaskLog, kafka_url: str
) -> None:
    endpoint = KafkaEndpoint.of(kafka_url).log
    config = {"retention.ms": "-1", "max.message.bytes": "100000"}
    endpoint.create_topic(endpoint.topic("reminders"), 2, config)
    new = entries(2000)
    await append(log, new)
    assert await received(log, 2000) == new


async def test_a_topic_with_too_few_partitions_is_refused(kafka_url: str) -> None:
    async with opened(kafka_url) as log:
        await append(log, entries(1))
    other = connect(kafka_url, 3)
    with pytest.raises(
        ConfigurationError, match="has 2 partitions and the queue is declared with 3"
    ):
        await append(other, entries(1))
    with pytest.raises(ConfigurationError, match="fairlead ordered repartition"):
        await other.receive([P0], 10)
    with pytest.raises(UnknownQueue, match="letters"):
        await append(other, entries(1, PartitionKey("letters", 0)))
    await other.close()


def test_the_log_joins_no_transaction_and_shares_no_topic_with_the_triggers(kafka_url: str) -> None:
    log, endpoint = connect(kafka_url), KafkaEndpoint.of(kafka_url)
    with pytest.raises(NotSupported, match="joins no transaction"):
        log.appending(entries(1))
    assert endpoint.queue(endpoint.log.topic("2e")) != endpoint.queue(endpoint.topic("2e"))
    assert (
        endpoint.log.topic("2e") != endpoint.topic("task.log.")
        and endpoint.log.group != endpoint.group
    )


# outages ------------------------------------------------------------------------------------------


async def test_the_future_of_an_append_fails_while_kafka_is_away(log: KafkaTaskLog) -> None:
    counts: Counter[str] = Counter()
    away = connect("kafka://127.0.0.1:1/?message.timeout.ms=1500", counts=counts)
    refused, *others = await asyncio.gather(
        append(away, entries(1)),
        away.rewind(P0),
        away.lag("reminders"),
        away.is_behind(P0),
        return_exceptions=True,
    )
    assert isinstance(refused, StoreUnavailable) and "127.0.0.1:1" in str(refused)
    assert isinstance(refused.__cause__, confluent_kafka.KafkaException)
    assert [type(other) for other in others] == [StoreUnavailable] * 3
    await away.close()
    assert counts == {"failed_appends": 1}


@pytest.mark.nightly("an outage")
async def test_appends_wait_or_fail_while_a_broker_is_away_and_work_afterwards(
    server: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.create_prefix()
    async with opened(url) as log, opened(f"{url}&message.timeout.ms=2000") as quick:
        await append(log, first := entries(5))
        await append(quick, entries(1, P1))
        found = await received(log, 5)
        server.crash()
        second = entries(50)
        patient = [log.append([entry]) for entry in second]
        with pytest.raises(StoreUnavailable, match="may not have"):
            await append(quick, entries(1, P1))
        reading = asyncio.create_task(received(log, 50))
        with pytest.raises(StoreUnavailable):
            await log.rewind(P1)
        assert not reading.done() and not any(future.done() for future in patient)
        server.start()
        for future in patient:
            await asyncio.wait_for(asyncio.wrap_future(future), SOON)
        found += await reading
        assert found == first + second
        await log.rewind(P1)
        await append(log, third := entries(2, P1))
        assert (await received(log, 3, [P1]))[-2:] == third
        await waits(log, {})
    records = [record for record in caplog.records if "reports errors" in record.message]
    assert 1 <= len(records) <= 3


@pytest.mark.nightly("an outage")
async def test_a_submit_from_a_coroutine_lets_other_coroutines_run_while_the_log_has_no_room(
    own_kafka_server: KafkaServer, kafka_url: str, sqlite_url: str
) -> None:
    app = App(sqlite_url, log=f"{kafka_url}&queue.buffering.max.messages=1000")
    app.queue("reminders", kind="ordered", partitions=2)

    @app.task(queue="reminders")
    async def remind(number: int) -> None: ...

    app.migrate()
    submit = remind.options(ordering_key="a")
    (await submit.submit_async(number=0)).result(SOON)
    own_kafka_server.crash()
    handles = await submit.submit_many_async([{"number": n} for n in range(11_000)])
    log = app.connections.log
    assert log is not None
    submitting = [asyncio.create_task(submit.submit_async(number=n)) for n in range(20)]
    submitting.append(asyncio.create_task(asyncio.to_thread(submit.submit, number=20)))
    for _ in range(50):
        await asyncio.sleep(0.01)
    assert not any(task.done() for task in submitting)
    own_kafka_server.start()
    handles += await asyncio.gather(*submitting)
    for handle in handles:
        handle.result(SOON)
    assert sum((await log.lag("reminders")).values()) == 1 + len(handles)
    await app.connections.close_async()
    app.close()


# processes ----------------------------------------------------------------------------------------

PROGRAM = """
import os, sys
from fairlead.backends.kafka.task_log import KafkaTaskLog
from fairlead.clock import SYSTEM_CLOCK
from tests.integration.test_kafka_task_log import P0, entries
log = KafkaTaskLog(sys.argv[1], {"reminders": 2}, lambda *_: None, SYSTEM_CLOCK)
"""


async def lag_after(program: str, url: str) -> dict[int, int]:
    """Run a program that uses a log, check that it ends well, and return the lag of the log."""
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PROGRAM + program, url],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    async with opened(url) as log:
        return await log.lag("reminders")


async def test_a_script_that_ends_after_its_submits_has_appended_them(kafka_url: str) -> None:
    assert await lag_after("[log.append(entries(1)) for _ in range(500)]", kafka_url) == {0: 500}


async def test_a_script_that_ends_while_it_reads_commits_what_it_committed(kafka_url: str) -> None:
    program = """
import asyncio
async def read():
    await asyncio.wrap_future(log.append(entries(5)))
    count = 0
    while count < 5:
        for batch in await log.receive([P0], 10):
            count += len(batch.entries)
            await log.commit(batch)
asyncio.run(read())
"""
    assert await lag_after(program, kafka_url) == {}


async def test_a_forked_child_appends_and_reads_by_itself(kafka_url: str) -> None:
    program = """
import asyncio
async def use(count):
    await asyncio.wrap_future(log.append(entries(1)))
    found = 0
    while found < count:
        for batch in await log.receive([P0], 10):
            found += len(batch.entries)
asyncio.run(use(1))
child = os.fork()
if child == 0:
    asyncio.run(use(1))
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
"""
    assert await lag_after(program, kafka_url) == {0: 2}
