"""Names on a shared server belong to one task store: another application there is refused, with an
error that names both and the cure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import App
from fairlead.errors import ConfigurationError
from fairlead.operate.doctor import examine
from fairlead.testing import running
from tests.integration.ordered_kit import SOON

Open = Callable[..., tuple[App, Any]]


@pytest.fixture
def open_app(tmp_path: Path) -> Iterator[Open]:
    """Yield a function that opens an application on the task store of this name."""
    opened: list[App] = []

    def open_on(store: str, *, kind: str | None = "ordered", **servers: str) -> tuple[App, Any]:
        app = App(f"sqlite:///{tmp_path / store}.db", **servers)
        opened.append(app)
        app.queue("reminders", **({"kind": kind, "partitions": 4} if kind else {"partitions": 2}))

        @app.task(queue="reminders")
        async def remind(number: int) -> None: ...

        app.migrate()
        return app, remind

    yield open_on
    for app in opened:
        app.close()


def is_refused(error: BaseException, *names: str) -> bool:
    """Return whether one ConfigurationError is all there is, and it has all these names."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_refused(inner, *names) for inner in error.exceptions)
    return isinstance(error, ConfigurationError) and all(name in str(error) for name in names)


async def problems(app: App) -> str:
    found = await examine(app.operate_context)
    await app.connections.close_async()
    return "\n".join(each.what for each in found if each.severity == "problem")


async def test_two_applications_on_one_kafka_prefix_of_a_log_are_an_error_that_names_both(
    open_app: Open, kafka_url: str
) -> None:
    pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    (first, remind), (second, other) = (open_app(name, log=kafka_url) for name in ("shop", "blog"))
    async with running(first) as node:
        names = ("shop.db", "blog.db", "prefix", "delete the topic", "task.owner")
        with pytest.raises(BaseException) as caught:
            await second.node().run()
        assert is_refused(caught.value, *names), caught.value
        refused = await other.options(ordering_key="a").submit_async(number=1)
        assert is_refused(refused._appended.exception(SOON), *names)
        for number in range(30):
            await remind.options(ordering_key=f"k{number}").submit_async(number=number)
        async with asyncio.timeout(SOON):
            # The history of a run is written before its end.
            while node.in_flight or len(first.sql_store.database.read_now(_attempts(first))) < 30:
                await asyncio.sleep(0.02)
    assert not second.sql_store.database.read_now(_attempts(second))
    assert "belongs to the application" in await problems(second)
    assert not await problems(first)


@pytest.mark.parametrize(
    ("part", "server", "cure"),
    [
        ("channel", "kafka_url", "task.owner"),
        ("coordinator", "zookeeper_url", "delete the znode"),
        ("backlog", "migrated_cassandra_url", "fairlead_keyspace"),
    ],
    ids=["a Kafka prefix of triggers", "a ZooKeeper folder", "a keyspace of backlogs"],
)
async def test_two_applications_on_one_server_of_fair_queues_are_an_error_that_names_both(
    open_app: Open, part: str, server: str, cure: str, request: pytest.FixtureRequest
) -> None:
    servers = {part: request.getfixturevalue(server)}
    (first, remind), (second, _) = (
        open_app(name, kind=None, **servers) for name in ("shop", "blog")
    )
    async with running(first):
        remind.submit(number=1)
        await ran(first, 1)
        with pytest.raises(BaseException) as caught:
            await asyncio.wait_for(second.node().run(), SOON)
        assert is_refused(caught.value, "shop.db", "blog.db", cure), caught.value
    assert "belongs to the application" in await problems(second)
    assert "belongs to the application" not in await problems(first)


async def test_two_applications_that_start_at_once_on_one_new_prefix_have_one_owner(
    open_app: Open, kafka_url: str
) -> None:
    pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    apps = [open_app(f"store{n}", log=kafka_url) for n in range(4)]
    for app, _ in apps:
        _ = app.store
    handles = [remind.options(ordering_key="a").submit(number=1) for _, remind in apps]
    errors = [await asyncio.to_thread(each._appended.exception, SOON) for each in handles]
    assert [error is None for error in errors].count(True) == 1
    assert all(is_refused(error, "belongs to") for error in errors if error is not None)


async def test_an_unreadable_owner_record_is_skipped(open_app: Open, kafka_url: str) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    from fairlead.backends.kafka.endpoint import KafkaEndpoint
    from fairlead.backends.kafka.prefix_owner import TOPIC

    endpoint = KafkaEndpoint.of(kafka_url)
    endpoint.create_topic(endpoint.owner, 1, TOPIC)
    producer = confluent_kafka.Producer(endpoint.settings({}))
    for value in (None, b"", b"\xff", b"{}", b'{"store_id": 7, "location": "x"}'):
        producer.produce(endpoint.owner, value, partition=0)
    assert producer.flush(SOON) == 0
    (first, remind), (_, other) = (open_app(name, log=kafka_url) for name in ("shop", "blog"))
    remind.options(ordering_key="a").submit(number=1).result(SOON)
    refused = other.options(ordering_key="a").submit(number=1)
    with pytest.raises(ConfigurationError, match=r"shop\.db"):
        refused.result(SOON)


async def test_two_applications_on_one_keyspace_of_a_schedule_are_an_error_that_names_both(
    open_app: Open, migrated_cassandra_url: str
) -> None:
    pytest.importorskip("cassandra", reason="needs the extra cassandra")
    (first, remind), (second, other) = (
        open_app(name, schedule=migrated_cassandra_url) for name in ("shop", "blog")
    )
    async with running(first):
        for number in range(8):
            await remind.options(ordering_key=f"k{number}").submit_async(number=number)
            await other.options(ordering_key=f"k{number}").submit_async(number=number)
        await ran(first, 8)
        with pytest.raises(BaseException) as caught:
            await asyncio.wait_for(second.node().run(), SOON)
        names = ("shop.db", "blog.db", "keyspace", "fairlead_keyspace")
        assert is_refused(caught.value, *names), caught.value
        assert "belongs to the application" in await problems(second)
    assert await ran(first, 8) == 8
    assert not second.sql_store.database.read_now(_attempts(second))
    assert "belongs to the application" not in await problems(first)


async def ran(app: App, count: int) -> int:
    """Wait until this many runs are in the history; return their number."""
    async with asyncio.timeout(SOON):
        while (found := len(app.sql_store.database.read_now(_attempts(app)))) < count:
            await asyncio.sleep(0.02)
    return found


def _attempts(app: App) -> Any:
    from fairlead.ports.statements import Statement

    return (yield Statement("SELECT task_id FROM fairlead_attempts"))
