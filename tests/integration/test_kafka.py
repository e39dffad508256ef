"""Triggers through a real Kafka: failures that users of other systems published, and the promises
of this channel."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from fairlead import App, Limit
from fairlead.operate.doctor import examine
from fairlead.operate.overview import queue_view
from fairlead.testing import running, settled
from services.kafka import KafkaServer
from tests.integration.channel_kit import (
    NEVER,
    NO_POLLERS,
    SOON,
    claims,
    counting,
    counts,
    owning,
)

confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
from fairlead.backends.kafka import channel as kafka  # noqa: E402
from fairlead.backends.kafka import receiver as kafka_receiver  # noqa: E402
from fairlead.backends.kafka.endpoint import KafkaEndpoint  # noqa: E402
from fairlead.backends.kafka.sender import KafkaSender, Outgoing  # noqa: E402
from tests import tiers  # noqa: E402
from tests.builders import idle
from tests.waiting import until  # noqa: E402


@pytest.fixture
def app(sqlite_url: str, kafka_url: str) -> Iterator[App]:
    """Yield an application with triggers through Kafka and counted outages."""
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


async def test_a_worker_of_a_new_group_gets_exactly_the_messages_younger_than_the_reset_age(
    sqlite_url: str, kafka_url: str
) -> None:
    app = counting(sqlite_url, f"{kafka_url}&reset=4d")
    app.queue("mail", partitions=1)
    send = idle(app, "send", queue="mail")
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
    note = idle(app, "note")
    for n in range(30):
        note.options(ordering_key=f"order-{n % 3}").submit(n)
    note.submit(99)
    app.channel.close_sender()
    by_key: dict[bytes | None, set[int]] = {}
    for message in in_topic(app, "default", 4):
        by_key.setdefault(message.key(), set()).add(message.partition())
    assert by_key.keys() == {b"order-0", b"order-1", b"order-2", None}
    assert all(len(where) == 1 for key, where in by_key.items() if key is not None)


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


async def test_triggers_beyond_the_look_ahead_wait_for_no_sweep(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "MOST_ARRIVED", 50)
    monkeypatch.setattr(kafka, "HOLD_SECONDS", 0.5)
    monkeypatch.setattr("fairlead.engine.lanes.AGAIN", 50)
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
        assert len(node.parts.context.table) <= 2 * 125
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

    high = idle(app, "high", queue="mail")
    async with owning(app, 1) as node:
        for n in range(3):
            await low.options(priority=9).submit_async(n)
        for n in range(0, 2000, 40):
            await high.options(priority=0).submit_many_async([{"n": n + i} for i in range(40)])
        await all_committed(app, "mail")  # although two of the first three tasks still wait
        assert len(node.parts.context.table) == 2 and not app.channel._progress._held
        gate.set()
        await settled(app, node)


async def test_every_task_is_claimed_once_though_messages_are_dropped_and_doubled(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node gets no notification either, so only sweeps find the tasks."""
    seed, sweep = tiers.seed(), 1.0
    chance, send = random.Random(seed), KafkaSender.send
    dropped = doubled = 0

    def lossy(self: KafkaSender, messages: Sequence[Outgoing]) -> Future[None]:
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
        return send(self, kept)

    monkeypatch.setattr(KafkaSender, "send", lossy)
    monkeypatch.setattr(app.channel, "_heal_every", sweep)
    monkeypatch.setattr(type(app.channel), "_on_any_notification", lambda self, notification: None)
    note = idle(app, "note")
    async with owning(app, intervals=NO_POLLERS) as node:
        app.channel._heal_at = app.clock.monotonic() + sweep
        for n in range(0, 1000, 5):
            await note.submit_many_async([{"n": n + i} for i in range(5)])
        await settled(app, node, SOON)
    assert dropped > 50 and doubled > 50, seed
    assert len(claims(app)) == 1000 and set(claims(app).values()) == {1}, seed


async def test_a_node_that_falls_behind_pauses_its_partitions_until_it_has_caught_up(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, most = 20, 50
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
    monkeypatch.setattr("fairlead.backends.kafka.channel.SEND_SECONDS", 1.0)
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
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug of the test")

    note = idle(app, "note")
    monkeypatch.setattr("fairlead.backends.kafka.receiver.Receiver._deliver", broken)
    node = app.node()
    running_node = asyncio.create_task(node.run())
    await until(lambda: len(node.parts.ownership.owned) == 1)
    await note.submit_async(1)
    with pytest.raises(ExceptionGroup) as group:
        await asyncio.wait_for(running_node, SOON)
    assert group.group_contains(RuntimeError, match="a bug of the test")


async def test_the_doctor_shows_brokers_topics_and_lag(app: App) -> None:
    note = idle(app, "note")
    note.submit(1)
    async with owning(app) as node:
        await settled(app, node)
        await all_committed(app)
        findings = [finding.what for finding in await examine(app.operate_context)]
        assert any("Kafka at 127.0.0.1" in what and "1 broker" in what for what in findings), (
            findings
        )
        assert any("topic of default: 1 partition, lag 0" in what for what in findings), findings
        assert not any("nobody reads" in what for what in findings), findings
        view = await queue_view(app.operate_context, "default")
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
    app: App, sqlite_url: str
) -> None:
    import subprocess
    import sys

    program = (
        "import sys\nfrom fairlead import App\napp = App(sys.argv[1], channel=sys.argv[2])\n"
        "@app.task\ndef note(n: int) -> None: ...\nnote.submit(1)\n"
    )
    url = app.connector.settings.channel
    subprocess.run([sys.executable, "-c", program, sqlite_url, str(url)], check=True, timeout=60)
    assert len(in_topic(app, "default", 1)) == 1
