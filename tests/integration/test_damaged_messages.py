"""Damaged messages on real servers: a worker skips them and runs the next task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead import App
from fairlead.ports import notification, task_log
from fairlead.ports.notification import Lane, Notification
from fairlead.testing import running
from tests import builders, tiers
from tests.damage import damaged, fuzz_count
from tests.ids import id_of

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
from confluent_kafka import Producer  # noqa: E402

from fairlead.backends.kafka.endpoint import KafkaEndpoint  # noqa: E402
from fairlead.backends.kafka.messages import encode_hint  # noqa: E402

FEW = 300
SOON = 120.0


def open_app(url: str, **servers: str) -> tuple[App, Any, asyncio.Queue[int]]:
    app = App(url, **servers)
    app.queue("reminders", kind="ordered", partitions=1)
    app.queue("mail", partitions=1)
    ran: asyncio.Queue[int] = asyncio.Queue()

    async def run(number: int) -> None:
        ran.put_nowait(number)

    tasks = {
        "mail": app.task(queue="mail", name="send")(run),
        "reminders": app.task(queue="reminders", name="remind")(run),
    }
    app.migrate()
    return app, tasks, ran


async def until_ran(ran: asyncio.Queue[int], number: int) -> None:
    async with asyncio.timeout(SOON):
        while await ran.get() != number:
            pass


@pytest.mark.fuzz
async def test_damaged_messages_in_topics_of_kafka_end_no_worker(
    sqlite_url: str, kafka_url: str
) -> None:
    app, tasks, ran = open_app(sqlite_url, channel=kafka_url, log=kafka_url)
    endpoint, count = KafkaEndpoint.of(kafka_url), fuzz_count(FEW)
    task = builders.task(
        id_of(1),
        queue="reminders",
        name="remind",
        payload=b'{"number":1}',
        ordering_key="a",
        unique_key="u",
    )
    topics = {
        endpoint.topic("mail"): [encode_hint(Lane("mail", 0, 5, 1))],
        endpoint.log.topic("reminders"): [task_log.encode(task_log.Submit(task))],
    }
    async with running(app) as node:
        await tasks["mail"].submit_async(number=1)
        await until_ran(ran, 1)
        handle = await tasks["reminders"].options(ordering_key="a").submit_async(number=2)
        await asyncio.to_thread(handle.result, SOON)
        producer = Producer(endpoint.settings({}))
        for topic, good in topics.items():
            for n, record in enumerate(damaged(good, count, tiers.seed())):
                producer.produce(topic, record, partition=0)
                if n % 1000 == 0:
                    await asyncio.to_thread(producer.flush)
        await asyncio.to_thread(producer.flush)
        await tasks["mail"].submit_async(number=3)
        await until_ran(ran, 3)
        handle = await tasks["reminders"].options(ordering_key="b").submit_async(number=4)
        await asyncio.to_thread(handle.result, SOON)
        await until_ran(ran, 4)
        assert node.not_ready is None
    app.close()


@pytest.mark.fuzz
async def test_damaged_notifications_of_postgresql_end_no_worker(
    migrated_postgres_url: str,
) -> None:
    psycopg = pytest.importorskip("psycopg", reason="needs the extra postgres")
    app, tasks, ran = open_app(migrated_postgres_url)
    good = [
        notification.encode(each)
        for each in (Notification([Lane("mail", 0, 5, 1)]), Notification(due=5), Notification())
    ]
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: failures.append(about))
    async with running(app) as node:
        await tasks["mail"].submit_async(number=1)
        await until_ran(ran, 1)
        with psycopg.connect(migrated_postgres_url, autocommit=True) as connection:
            notifier: Any = app.connections.notifier
            channel = notifier._channel
            for record in damaged(good, fuzz_count(FEW), tiers.seed()):
                text = record.decode(errors="replace").replace("\x00", "")[:1800]
                connection.execute("SELECT pg_notify(%s, %s)", (channel, text))
                await asyncio.sleep(0)
        await tasks["mail"].submit_async(number=2)
        await until_ran(ran, 2)
        assert node.not_ready is None
    assert not failures
    app.close()
