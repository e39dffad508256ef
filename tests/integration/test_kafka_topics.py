"""The topics of the task log on a real Kafka: created so that no entry is lost, and checked at the
start and by the doctor."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead import App
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.operate.doctor import examine
from fairlead.testing import running
from tests.integration.ordered_kit import SOON

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # noqa: E402
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from fairlead.backends.kafka.endpoint import KafkaEndpoint  # noqa: E402

WEEK = str(7 * 86_400_000)


def open_app(url: str, log: str) -> tuple[App, Any]:
    app = App(url, log=log)
    app.queue("reminders", kind="ordered", partitions=2)

    @app.task(queue="reminders")
    async def remind(number: int) -> None: ...

    app.migrate()
    return app, remind


def create(log: str, **settings: str) -> str:
    """Create the topic of the queue with these settings, as a person might; return its name."""
    endpoint = KafkaEndpoint.of(log).log
    topic = endpoint.topic("reminders")
    config = {name.replace("_", "."): value for name, value in settings.items()}
    with endpoint.asking() as admin:
        new = NewTopic(topic, 2, 1, config={"retention.ms": "-1", **config})
        admin.create_topics([new])[topic].result()
    return topic


def settings_of(log: str, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    with KafkaEndpoint.of(log).asking() as admin:
        found = admin.describe_configs([resource])[resource].result()
    return {name: entry.value for name, entry in found.items()}


def alter(log: str, topic: str, **settings: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    with KafkaEndpoint.of(log).asking() as admin:
        admin.incremental_alter_configs([resource])[resource].result()


async def findings(app: App) -> dict[str, str]:
    """Return what the doctor finds about topics, by severity."""
    found = await examine(app.operate_context)
    await app.connections.close_async()
    return {each.severity: each.what for each in found if "its topic" in each.what}


@pytest.mark.parametrize(
    ("settings", "cure"),
    [
        pytest.param({"retention_ms": WEEK}, "retention.ms=-1", id="expiry by age"),
        pytest.param({"retention_bytes": "1000000"}, "retention.bytes=-1", id="expiry by size"),
        pytest.param({"cleanup_policy": "compact"}, "cleanup.policy=delete", id="compaction"),
        pytest.param(
            {"cleanup_policy": "compact,delete", "retention_ms": WEEK},
            "retention.ms=-1,cleanup.policy=delete",
            id="both",
        ),
    ],
)
async def test_an_existing_topic_that_would_lose_entries_is_refused_until_it_is_corrected(
    sqlite_url: str, kafka_url: str, settings: dict[str, str], cure: str
) -> None:
    topic = create(kafka_url, **settings)
    app, remind = open_app(sqlite_url, kafka_url)
    with pytest.raises(ConfigurationError, match=f"--add-config {cure}") as caught:
        async with asyncio.timeout(SOON):
            await app.node().run()
    assert topic in str(caught.value)
    refused = await remind.options(ordering_key="a").submit_async(number=1)
    with pytest.raises(ConfigurationError, match=f"--add-config {cure}"):
        await asyncio.to_thread(refused.result, SOON)
    assert cure in (await findings(app))["problem"]
    alter(
        kafka_url,
        topic,
        **{each.split("=")[0].replace(".", "_"): each.split("=")[1] for each in cure.split(",")},
    )
    async with running(app):
        handle = await remind.options(ordering_key="a").submit_async(number=1)
        await asyncio.to_thread(handle.result, SOON)
    assert "problem" not in await findings(app)
    app.close()


async def test_a_topic_with_fewer_copies_than_the_url_asks_for_is_refused(
    sqlite_url: str, kafka_url: str
) -> None:
    first, remind = open_app(sqlite_url, kafka_url)
    handle = await remind.options(ordering_key="a").submit_async(number=1)
    await asyncio.to_thread(handle.result, SOON)
    first.close()
    app, _ = open_app(sqlite_url, f"{kafka_url}&replication=3")
    with pytest.raises(ConfigurationError, match=r"has one copy, and the URL asks.*replication=3"):
        async with asyncio.timeout(SOON):
            await app.node().run()
    app.close()


async def test_a_new_topic_keeps_all_entries_whatever_the_defaults_of_the_brokers_are(
    sqlite_url: str, kafka_url: str
) -> None:
    app, remind = open_app(sqlite_url, f"{kafka_url}&replication=1")
    handle = await remind.options(ordering_key="a").submit_async(number=1)
    await asyncio.to_thread(handle.result, SOON)
    topic = KafkaEndpoint.of(kafka_url).log.topic("reminders")
    found = settings_of(kafka_url, topic)
    wanted = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "unclean.leader.election.enable": "false",
        "min.insync.replicas": "1",
    }
    assert found.items() >= wanted.items()
    assert "has one copy" in (await findings(app))["note"]
    app.close()


async def test_more_copies_than_brokers_are_an_error_with_the_cure_that_ends_no_worker(
    sqlite_url: str, kafka_url: str
) -> None:
    app, remind = open_app(sqlite_url, f"{kafka_url}&replication=3&message.timeout.ms=1000")
    async with running(app) as node:
        handle = await remind.options(ordering_key="a").submit_async(number=1)
        with pytest.raises(StoreUnavailable, match="start more brokers, or lower replication="):
            await asyncio.to_thread(handle.result, SOON)
        assert node.not_ready is None
    app.close()
