"""Triggers through a real Kafka: failures that users of other systems published, and the promises
of this channel."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from fairlead import App, Limit, State
from fairlead.operate.doctor import examine
from fairlead.operate.overview import overview
from fairlead.testing import running, settled
from services.kafka import KafkaServer
from tests.integration.channel_kit import (
    NEVER,
    NO_POLLERS,
    SOON,
    claims,
    counting,
    counts,
    noting,
    owning,
    until,
)

confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
from fairlead.backends.kafka import channel as kafka  # noqa: E402
from fairlead.backends.kafka import receiver as kafka_receiver  # noqa: E402
from fairlead.backends.kafka.endpoint import KafkaEndpoint  # noqa: E402
from fairlead.backends.kafka.receiver import since  # noqa: E402
from fairlead.backends.kafka.sender import KafkaSender, Outgoing  # noqa: E402
from tests import tiers  # noqa: E402
from tests.tiers import matrix  # noqa: E402


@pytest.fixture(params=matrix("sqlite", "postgres"))
def app(request: pytest.FixtureRequest, kafka_url: str) -> Iterator[App]:
    """Yield an application on each store in turn, with triggers through Kafka and counted
    outages."""
    application = counting(request.getfixturevalue(f"{request.param}_url"), kafka_url)
    yield application
    application.close()


@pytest.fixture
def sqlite_app(sqlite_url: str, kafka_url: str) -> Iterator[App]:
    application = counting(sqlite_url, kafka_url)
    yield application
    application.close()


def endpoint_of(app: App) -> KafkaEndpoint:
    return app.channel._endpoint


def produce(app: App, messages: Sequence[tuple[str, int, bytes]]) -> None:
    producer = confluent_kafka.Producer(endpoint_of(app).settings({}))
    for queue, partition, value in messages:
        producer.produce(endpoint_of(app).topic(queue), value, partition=partition)
    assert producer.flush(SOON) == 0


def in_topic(app: App, queue: str, partitions: int) -> list[Any]:
    """Return all messages of a topic."""
    consumer = confluent_kafka.Consumer(
        endpoint_of(app).settings({"group.id": "looking", "enable.partition.eof": True})
    )
    topic = endpoint_of(app).topic(queue)
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(partitions)])
    found, ends = [], 0
    while ends < partitions:
        message = consumer.poll(SOON)
        assert message is not None
        if message.error() is None:
            found.append(message)
        else:
            ends += 1
    consumer.close()
    return found


def lags(app: App, queue: str = "default") -> dict[int, int]:
    """Return the number of uncommitted messages, by partition."""
    return {status.partition: status.lag for status in endpoint_of(app).status([queue]).partitions}


async def all_committed(app: App, queue: str = "default") -> None:
    async with asyncio.timeout(SOON):
        while any((await asyncio.to_thread(lags, app, queue)).values()):
            await asyncio.sleep(0.1)


async def test_triggers_through_kafka_run_their_tasks_and_their_offsets_are_committed(
    app: App,
) -> None:
    note, ran = noting(app)

    async with owning(app) as node:
        for n in range(20):
            await note.submit_async(n)
        await settled(app, node)
        await all_committed(app)
    assert sorted(ran) == list(range(20))
    assert len(in_topic(app, "default", 1)) == 20
    assert not counts(app).keys() & {"unsent_triggers", "corrupt_triggers"}


async def test_tasks_submitted_before_any_worker_run_and_their_messages_are_dropped(
    app: App,
) -> None:
    note, ran = noting(app)

    for n in range(30):
        note.submit(n)
    async with owning(app) as node:
        await settled(app, node)
        await all_committed(app)
    assert sorted(ran) == list(range(30))


async def test_unreadable_messages_from_before_or_after_the_start_of_a_worker_do_not_stop_it(
    app: App,
) -> None:
    ran = []
    app.queue("mail", partitions=1)

    @app.task(queue="mail")
    async def send(n: int) -> None:
        ran.append(n)

    def bad_and_good() -> None:
        for n in range(10):
            produce(app, [("mail", 0, b"\x00 no message of ours")])
            send.submit(n)

    endpoint_of(app).ensure({"mail": 1})
    bad_and_good()
    async with owning(app, 1) as node:
        await settled(app, node)
        assert sorted(ran) == list(range(10))
        await asyncio.to_thread(bad_and_good)
        await settled(app, node)
        await until(lambda: counts(app)["corrupt_triggers"] == 20)
        await all_committed(app, "mail")
    assert sorted(ran) == sorted([*range(10)] * 2)


async def test_a_new_group_with_a_reset_age_reads_exactly_the_messages_younger_than_that(
    sqlite_app: App,
) -> None:
    app, days = sqlite_app, 86_400
    back = KafkaEndpoint.of(
        f"kafka://{endpoint_of(app).brokers}/?prefix={endpoint_of(app).prefix}&reset=-4d"
    )
    back.ensure({"old": 2})
    topic, now = back.topic("old"), time.time()
    producer = confluent_kafka.Producer(back.settings({}))
    for partition in range(2):
        for age in (6, 5, 4.1, 3.9, 2, 1):
            producer.produce(
                topic,
                str(age).encode(),
                partition=partition,
                timestamp=round((now - age * days) * 1000),
            )
    producer.flush(SOON)
    consumer = confluent_kafka.Consumer(back.settings({"group.id": back.group}))
    partitions = [confluent_kafka.TopicPartition(topic, n) for n in range(2)]
    found = since(consumer, partitions, now - back.reset)
    assert sorted((p.partition, p.offset) for p in found) == [(0, 3), (1, 3)]
    # A committed offset takes precedence.
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 5)], asynchronous=False)
    found = since(consumer, partitions, now - back.reset)
    assert sorted((p.partition, p.offset) for p in found) == [(0, 5), (1, 3)]
    consumer.close()


async def test_a_worker_of_a_new_group_gets_exactly_the_messages_younger_than_the_reset_age(
    sqlite_url: str, kafka_url: str
) -> None:
    app = counting(sqlite_url, f"{kafka_url}&reset=4d")
    app.queue("mail", partitions=1)

    @app.task(queue="mail")
    async def send(n: int) -> None: ...

    endpoint_of(app).ensure({"mail": 1})
    producer = confluent_kafka.Producer(endpoint_of(app).settings({}))
    for age in (5, 4.5, 3, 1):
        at = round((time.time() - age * 86_400) * 1000)
        producer.produce(endpoint_of(app).topic("mail"), b"bad", partition=0, timestamp=at)
    producer.flush(SOON)
    async with owning(app, 1) as node:
        await send.submit_async(1)
        await settled(app, node)
        await all_committed(app, "mail")
    assert counts(app)["corrupt_triggers"] == 2
    app.close()


async def test_an_ordering_key_is_the_key_of_the_message_and_stays_in_one_partition(
    app: App,
) -> None:
    app.queue("default", partitions=4)

    @app.task
    async def note(n: int) -> None: ...

    for n in range(30):
        note.options(ordering_key=f"order-{n % 3}").submit(n)
    note.submit(99)
    app.channel.close_sender()
    by_key: dict[bytes | None, set[int]] = {}
    for message in in_topic(app, "default", 4):
        by_key.setdefault(message.key(), set()).add(message.partition())
    assert by_key.keys() == {b"order-0", b"order-1", b"order-2", None}
    assert all(len(where) == 1 for key, where in by_key.items() if key is not None)


async def test_partitions_that_move_deliver_each_of_ten_messages_once(app: App) -> None:
    gate, ran = asyncio.Event(), []
    app.queue("mail", partitions=4, concurrency=Limit(1))

    async def handler(n: int) -> None:
        ran.append(n)
        await gate.wait()

    send = app.task(queue="mail", name="send")(handler)
    other = App(app.url, channel=app.connector.settings.channel)
    other.queue("mail", partitions=4, concurrency=Limit(1))
    other.task(queue="mail", name="send")(handler)
    async with owning(app) as first:
        for n in range(10):
            await send.submit_async(n)
        await until(lambda: len(first.parts.context.table) == 9)
        async with owning(other, 2) as second:
            await until(lambda: len(first.parts.ownership.owned) == 2)
            gate.set()
            await settled(app, second)
    assert sorted(ran) == list(range(10))
    assert set(claims(app).values()) == {1}
    other.close()


async def test_a_claim_that_fails_half_of_the_time_loses_nothing(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairlead.errors import StoreUnavailable

    seed = tiers.seed()
    chance, claim, ran = random.Random(seed), app.store.claim, []

    async def failing(*about: Any) -> Any:
        if chance.random() < 0.5:
            raise StoreUnavailable("a fault of the test")
        return await claim(*about)

    monkeypatch.setattr(app.store, "claim", failing)

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    async with owning(app) as node:
        for n in range(60):
            await note.submit_async(n)
        await settled(app, node)
    assert sorted(ran) == list(range(60)), seed


async def test_a_blocked_topic_does_not_stop_another(app: App) -> None:
    gate, ran = asyncio.Event(), Counter()
    app.queue("blocked", partitions=2, concurrency=Limit(1))
    app.queue("free", partitions=2)

    @app.task(queue="blocked")
    async def stuck(n: int) -> None:
        await gate.wait()
        ran["blocked"] += 1

    @app.task(queue="free")
    async def flows(n: int) -> None:
        ran["free"] += 1

    async with owning(app) as node:
        for n in range(0, 1000, 40):
            await stuck.submit_many_async([{"n": n + i} for i in range(40)])
            await flows.submit_many_async([{"n": n + i} for i in range(40)])
        await until(lambda: ran["free"] == 1000)
        assert ran["blocked"] == 0
        gate.set()
        await settled(app, node)
    assert ran == {"free": 1000, "blocked": 1000}


async def test_a_corrupted_message_is_counted_and_the_next_one_is_processed(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    app.queue("default", partitions=4)

    @app.task
    async def note(n: int) -> None: ...

    async with owning(app) as node:
        await asyncio.to_thread(produce, app, [("default", 2, b"[1,2")])
        handle = await note.submit_async(1)
        await settled(app, node)
        await until(lambda: counts(app)["corrupt_triggers"] == 1)
        await all_committed(app)
    assert handle.state() == State.DONE
    (record,) = [record for record in caplog.records if "unreadable message" in record.message]
    assert (record.partition, record.offset) == (2, 0)


async def test_triggers_beyond_the_look_ahead_wait_for_no_sweep(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "MOST_ARRIVED", 50)
    monkeypatch.setattr(kafka, "HOLD_SECONDS", 0.5)
    monkeypatch.setattr("fairlead.engine.intake.AGAIN", 50)
    monkeypatch.setattr(app.channel, "_heal_every", NEVER)
    ran: list[int] = []
    gate = asyncio.Event()
    app.queue("mail", order="fifo", partitions=2)

    @app.task(queue="mail")
    async def send(n: int) -> None:
        await gate.wait()
        ran.append(n)

    async with owning(app, 2, look_ahead=100, concurrency=20, intervals=NO_POLLERS) as node:
        app.channel._heal_at = app.clock.monotonic() + NEVER
        for n in range(0, 3000, 30):
            await send.submit_many_async([{"n": n + i} for i in range(30)])
        await until(lambda: node.in_flight == 20 and not any(lags(app, "mail").values()))
        assert len(node.parts.context.table) <= 100 + 50
        assert app.channel._arrived_count <= 50
        gate.set()
        await settled(app, node, 60)
    assert sorted(ran) == list(range(3000))
    assert set(claims(app).values()) == {1}


async def test_a_waiting_trigger_of_low_priority_holds_back_no_offset(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "HOLD_SECONDS", 0.5)
    gate = asyncio.Event()
    app.queue("mail", partitions=1)

    @app.task(queue="mail", concurrency=Limit(1))
    async def low(n: int) -> None:
        await gate.wait()

    @app.task(queue="mail")
    async def high(n: int) -> None: ...

    async with owning(app, 1) as node:
        for n in range(3):
            await low.options(priority=9).submit_async(n)
        for n in range(0, 2000, 40):
            await high.options(priority=0).submit_many_async([{"n": n + i} for i in range(40)])
        await all_committed(app, "mail")  # although two of the first three tasks still wait
        assert len(node.parts.context.table) == 2 and not app.channel._progress._held
        gate.set()
        await settled(app, node)


@pytest.mark.parametrize("healed_by", ["notifier", "sweeps"])
async def test_every_task_is_claimed_once_though_messages_are_dropped_and_doubled(
    app: App, healed_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the case `sweeps` the node gets no notification either, so only sweeps find the tasks."""
    seed, sweep = tiers.seed(), 1.0
    chance, send = random.Random(seed), KafkaSender.send
    dropped = doubled = 0

    def lossy(self: KafkaSender, messages: Sequence[Outgoing]) -> None:
        nonlocal dropped, doubled
        kept = []
        for message in messages:
            if (fate := chance.random()) < 0.1:
                dropped += 1
                continue
            if fate > 0.9:
                doubled += 1
                kept.append(message)
            kept.append(message)
        send(self, kept)

    monkeypatch.setattr(KafkaSender, "send", lossy)
    monkeypatch.setattr(app.channel, "_heal_every", sweep)
    if healed_by == "sweeps":
        monkeypatch.setattr(
            type(app.channel), "_on_any_notification", lambda self, notification: None
        )

    @app.task
    async def note(n: int) -> None: ...

    async with owning(app, intervals=NO_POLLERS) as node:
        app.channel._heal_at = app.clock.monotonic() + sweep
        for n in range(0, 1000, 5):
            await note.submit_many_async([{"n": n + i} for i in range(5)])
        await settled(app, node, SOON)
    assert dropped > 50 and doubled > 50, seed
    assert len(claims(app)) == 1000 and set(claims(app).values()) == {1}, seed
    with app.store.database.transaction() as connection:
        longest = connection.execute(
            "SELECT max(claimed_at - ready_at) FROM fairlead_attempts"
        ).fetchall()[0][0]
    print(
        f"seed {seed}: {dropped} dropped, {doubled} doubled; the last one was claimed after {longest / 1e6:.2f} s"
    )


async def test_5000_tasks_run_with_the_pollers_off_and_without_reads_of_rows(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: Counter[str] = Counter()

    class Counted(dict[str, str]):
        def __getitem__(self, name: str) -> str:
            statements[name] += 1
            return super().__getitem__(name)

    @app.task
    async def note(n: int) -> None: ...

    monkeypatch.setattr(app.channel, "_heal_every", NEVER)
    async with owning(app, intervals=NO_POLLERS) as node:
        app.channel._heal_at = app.clock.monotonic() + NEVER
        await note.submit_async(-1)  # the first send connects, which takes longer
        await settled(app, node)
        monkeypatch.setattr(app.store, "sql", Counted(app.store.sql))
        monkeypatch.setattr(app.connections.backlog, "_sql", Counted(app.connections.backlog._sql))
        for n in range(0, 5000, 10):
            await note.submit_many_async([{"n": n + i} for i in range(10)])
        await settled(app, node, 120)
    submits = sum(
        count for name, count in statements.items() if name.startswith(("insert", "next_seqs"))
    )
    own = statements["unfinished"]  # statements of this test
    others = sum(statements.values()) - submits - own
    assert len(claims(app)) == 5001
    print(f"statements a task without submits: {others / 5000:.3f}", dict(statements.most_common()))
    assert statements["ready"] < 500, statements  # read at intervals, not for each task or submit
    assert others < 5000


async def test_a_node_that_falls_behind_pauses_its_partitions_until_it_has_caught_up(
    sqlite_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, page, most = sqlite_app, 20, 50
    monkeypatch.setattr(kafka_receiver, "PAGE", page)
    monkeypatch.setattr(kafka_receiver, "MOST_UNPROCESSED", most)
    # Let only messages of Kafka arrive.
    monkeypatch.setattr(kafka.KafkaChannel, "_on_any_notification", lambda self, notification: None)
    monkeypatch.setattr(app.channel, "_heal_every", NEVER)
    ran, lying, is_stalled, received = [], [], True, kafka.KafkaChannel.on_messages

    def stalling(self: Any, messages: Sequence[Any]) -> None:
        if is_stalled:
            lying.extend(messages)
        else:
            received(self, messages)

    monkeypatch.setattr(kafka.KafkaChannel, "on_messages", stalling)

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    async with owning(app, intervals=NO_POLLERS) as node:
        app.channel._heal_at = app.clock.monotonic() + NEVER
        await note.submit_many_async([{"n": n} for n in range(500)])
        consumer = app.channel._receiver
        await until(lambda: consumer._is_paused)
        assert most < len(lying) <= most + page and not ran
        is_stalled = False
        received(app.channel, lying)
        await settled(app, node)
        await all_committed(app)
    assert sorted(ran) == list(range(500))


@pytest.mark.nightly("an outage")
async def test_submits_work_while_kafka_is_away_and_unsent_triggers_are_counted(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.backends.kafka.sender.SEND_SECONDS", 1.0)
    ran = []
    with KafkaServer() as server:
        app = counting(sqlite_url, server.url)

        @app.task
        async def note(n: int) -> None:
            ran.append(n)

        async with owning(app, lease_seconds=3.0) as node:
            await note.submit_async(0)
            await settled(app, node)
            server.crash()
            for n in range(1, 50):
                await note.submit_async(n)
            await settled(app, node)  # the node finds the tasks by their rows
            # The first send had to connect, and may have failed too.
            await until(lambda: counts(app)["unsent_triggers"] in (49, 50))
            problems = [
                finding
                for finding in await examine(app.operate_context)
                if finding.severity == "problem"
            ]
            assert "Kafka" in problems[0].what and "start" in (problems[0].cure or "")
            server.start()
            # A new sender tries to connect at once, as in a new process.
            app.channel.close_sender()
            async with asyncio.timeout(SOON):
                while not ran.count(100):
                    await note.submit_async(100)
                    await settled(app, node)
            await all_committed(app)
        app.close()
    assert set(ran) == {*range(50), 100}


async def test_an_error_in_the_consumer_ends_the_node(
    sqlite_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug of the test")

    @sqlite_app.task
    async def note(n: int) -> None: ...

    monkeypatch.setattr("fairlead.backends.kafka.receiver.Receiver._deliver", broken)
    node = sqlite_app.node()
    running_node = asyncio.create_task(node.run())
    await until(lambda: len(node.parts.ownership.owned) == 1)
    await note.submit_async(1)
    with pytest.raises(ExceptionGroup) as group:
        await asyncio.wait_for(running_node, SOON)
    assert group.group_contains(RuntimeError, match="a bug of the test")


async def test_the_doctor_shows_brokers_topics_and_lag(sqlite_app: App) -> None:
    app = sqlite_app

    @app.task
    async def note(n: int) -> None: ...

    note.submit(1)
    async with owning(app) as node:
        await settled(app, node)
        await all_committed(app)
        findings = [finding.what for finding in await examine(app.operate_context)]
        assert any("Kafka at 127.0.0.1" in what and "1 broker" in what for what in findings), (
            findings
        )
        assert any("topic of default: 1 partitions, lag 0" in what for what in findings), findings
        assert not any("nobody reads" in what for what in findings), findings
        view = await overview(app.operate_context, "default")
        assert {partition.owner for partition in view.partitions} == {node.settings.name}


async def test_a_queue_that_grows_gets_more_partitions_while_it_runs(
    sqlite_url: str, kafka_url: str
) -> None:
    old, new, ran = App(sqlite_url, channel=kafka_url), App(sqlite_url, channel=kafka_url), []

    async def handler(n: int) -> None:
        ran.append(n)

    for application, partitions in ((old, 2), (new, 5)):
        application.queue("mail", partitions=partitions)
        send = application.task(queue="mail", name="send")(handler)
    async with owning(old, 2) as first:
        async with running(new) as second:
            await until(
                lambda: len(first.parts.ownership.owned | second.parts.ownership.owned) == 5
            )
            for n in range(20):
                await send.submit_async(n)
            await settled(new, second)
    assert sorted(ran) == list(range(20))
    old.close()
    new.close()


def test_a_script_that_ends_after_its_submit_has_sent_its_trigger(
    sqlite_app: App, sqlite_url: str
) -> None:
    import subprocess
    import sys

    program = (
        "import sys\nfrom fairlead import App\napp = App(sys.argv[1], channel=sys.argv[2])\n"
        "@app.task\ndef note(n: int) -> None: ...\nnote.submit(1)\n"
    )
    url = sqlite_app.connector.settings.channel
    subprocess.run([sys.executable, "-c", program, sqlite_url, str(url)], check=True, timeout=60)
    assert len(in_topic(sqlite_app, "default", 1)) == 1
