"""Failures of a real Kafka, state by state: workers wait out what passes, and end with one clear error
after what Kafka refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead import App
from fairlead.cli.output import expected
from fairlead.engine.node import Node
from fairlead.errors import ConfigurationError, StoreUnavailable
from fairlead.operate.doctor import examine
from fairlead.testing import running
from services.kafka import GuardedKafkaServer, JoiningKafkaServer, KafkaServer

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
from confluent_kafka import KafkaError  # noqa: E402
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # noqa: E402
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from fairlead.backends.kafka import failures  # noqa: E402
from fairlead.backends.kafka.endpoint import KafkaEndpoint  # noqa: E402
from tests.conftest import own_server  # noqa: E402

SOON = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[GuardedKafkaServer]:
    """Server of this module alone, with access control lists."""
    yield from own_server(GuardedKafkaServer)


@pytest.fixture
def url(server: GuardedKafkaServer) -> str:
    return server.create_prefix()


@contextmanager
def denied(url: str, kind: str, name: str, operation: str) -> Iterator[None]:
    """Deny everybody an operation on a topic or a group, and allow it again at the end."""
    rule = (
        ResourceType[kind],
        name,
        ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation[operation],
        AclPermissionType.DENY,
    )
    with KafkaEndpoint.of(url).asking() as admin:
        binding = AclBinding(*rule)
        admin.create_acls([binding])[binding].result()
        try:
            yield
        finally:
            chosen = AclBindingFilter(*rule)
            admin.delete_acls([chosen])[chosen].result()


class Shop:
    """An application with an ordered queue, another queue, and a record of its runs."""

    def __init__(self, folder: Path, **servers: str) -> None:
        self.app = App(f"sqlite:///{folder / 'tasks.db'}", **servers)
        self.app.queue("reminders", kind="ordered", partitions=2)
        self.ran: list[int] = []
        self.has_run = asyncio.Event()

        async def run(number: int) -> None:
            self.ran.append(number)
            self.has_run.set()

        self.remind: Any = self.app.task(queue="reminders", name="remind")(run)
        self.mail: Any = self.app.task(queue="mail", name="mail")(run)
        self.app.migrate()

    async def submit(self, number: int) -> None:
        """Submit a reminder, and wait until the log has it."""
        handle = await self.remind.options(ordering_key="a").submit_async(number=number)
        await asyncio.to_thread(handle.result, SOON)

    async def until_ran(self, number: int) -> None:
        async with asyncio.timeout(SOON):
            while number not in self.ran:
                self.has_run.clear()
                await self.has_run.wait()


@asynccontextmanager
async def serving(shop: Shop) -> AsyncIterator[Node]:
    """Serve during the block. The worker must still serve at its end."""
    async with running(shop.app, lease_seconds=4.0) as node:
        yield node
        assert node.not_ready is None


@pytest.fixture
def open_shop(tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    opened: list[Shop] = []

    def open_it(**servers: str) -> Shop:
        opened.append(Shop(tmp_path, **servers))
        return opened[-1]

    yield open_it
    for shop in opened:
        shop.app.close()


def set_in_sync(url: str, copies: int) -> None:
    """Set how many copies must have an entry of the log."""
    entry = ConfigEntry(
        "min.insync.replicas", str(copies), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, log_topic(url), incremental_configs=[entry])
    with KafkaEndpoint.of(url).asking() as admin:
        admin.incremental_alter_configs([resource])[resource].result()


def await_in_sync(admin: AdminClient, topic: str, copies: int) -> None:
    """Return when every partition of the topic has this number of copies in sync."""
    while True:
        about = admin.list_topics(topic, timeout=5.0).topics[topic]
        if about.partitions and all(len(p.isrs) == copies for p in about.partitions.values()):
            return


async def found_by_the_doctor(shop: Shop, text: str) -> list[str]:
    """Return the problems with this text that the doctor finds."""
    found = await examine(shop.app.operate_context)
    logging.getLogger(__name__).info("findings: %s", found)
    return [each.what for each in found if each.severity == "problem" and text in each.what]


def log_topic(url: str) -> str:
    return KafkaEndpoint.of(url).log.topic("reminders")


# failures that pass -------------------------------------------------------------------------------


async def test_a_deleted_topic_of_the_log_is_created_again_and_ends_no_worker(
    open_shop: Callable[..., Shop], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = open_shop(log=url)
    async with serving(shop):
        for number in range(3):
            await shop.submit(number)
            await shop.until_ran(number)
        with KafkaEndpoint.of(url).asking() as admin:
            admin.delete_topics([log_topic(url)])[log_topic(url)].result()
        handle = None
        async with asyncio.timeout(SOON):
            while handle is None:
                try:
                    await shop.submit(3)
                    handle = True
                except StoreUnavailable as error:
                    assert "Kafka may not have the task" in str(error)
        await shop.until_ran(3)


async def test_a_deleted_topic_of_triggers_is_created_again_and_ends_no_worker(
    open_shop: Callable[..., Shop], url: str
) -> None:
    shop, topic = open_shop(channel=url), KafkaEndpoint.of(url).topic("mail")
    async with serving(shop):
        await shop.mail.submit_async(number=1)
        await shop.until_ran(1)
        with KafkaEndpoint.of(url).asking() as admin:
            admin.delete_topics([topic])[topic].result()
        for number in range(2, 5):
            await shop.mail.submit_async(number=number)
            await shop.until_ran(number)


@pytest.mark.nightly("an outage")
async def test_a_log_whose_second_copy_is_down_says_so_and_goes_on_when_it_is_back(
    open_shop: Callable[..., Shop],
    own_kafka_server: KafkaServer,
    kafka_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    second = JoiningKafkaServer(own_kafka_server)
    url = f"{kafka_url}&replication=2&message.timeout.ms=3000"
    with second:
        shop = open_shop(log=url)
        async with serving(shop):
            await shop.submit(0)
            set_in_sync(kafka_url, 2)
            second.crash()
            error = await refusal_of(shop, 1)
            while "min.insync.replicas=2" not in str(error):  # the leader may still move
                error = await refusal_of(shop, 1)
            assert "start the brokers that are down" in str(error)
            caplog.clear()
            await refusal_of(shop, 2)
            await refusal_of(shop, 3)
            lines = [each for each in caplog.records if each.name == "fairlead.kafka"]
            assert len(lines) <= 1, lines
            assert await found_by_the_doctor(shop, "min.insync.replicas=2")
            second.start()
            with KafkaEndpoint.of(url).asking() as admin:
                await_in_sync(admin, log_topic(kafka_url), 2)
            await shop.submit(4)
            await shop.until_ran(4)


async def refusal_of(shop: Shop, number: int) -> StoreUnavailable:
    """Submit a reminder that the log cannot take now, and return the error."""
    with pytest.raises(StoreUnavailable) as caught:
        await shop.submit(number)
    return caught.value


# refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["log", "channel"])
@pytest.mark.parametrize("kind", ["TOPIC", "GROUP"])
async def test_a_worker_that_may_not_read_ends_with_the_cause(
    open_shop: Callable[..., Shop], url: str, kind: str, part: str
) -> None:
    shop, endpoint = open_shop(**{part: url}), KafkaEndpoint.of(url)
    if part == "log":
        await shop.submit(1)
        names = {"TOPIC": log_topic(url), "GROUP": endpoint.log.group}
    else:
        endpoint.ensure({"mail": 1, "reminders": 2})
        names = {"TOPIC": endpoint.topic("mail"), "GROUP": endpoint.group}
    with denied(url, kind, names[kind], "READ"):
        error = await end_of(shop)
        assert await found_by_the_doctor(shop, "has the rights that each role needs")
    assert "has the rights that each role needs" in str(error)
    if part == "log":
        async with serving(shop):
            await shop.until_ran(1)


async def test_a_right_that_is_taken_from_a_running_worker_ends_it_with_the_cause(
    open_shop: Callable[..., Shop], url: str
) -> None:
    shop = open_shop(log=url)
    ending = asyncio.create_task(end_of(shop))
    await shop.submit(1)
    await shop.until_ran(1)
    with denied(url, "TOPIC", log_topic(url), "READ"):
        error = await ending
    assert "has the rights that each role needs" in str(error)


async def test_a_submit_that_may_not_write_the_log_is_refused_with_the_cause(
    open_shop: Callable[..., Shop], url: str
) -> None:
    shop = open_shop(log=url)
    await shop.submit(1)
    with (
        denied(url, "TOPIC", log_topic(url), "WRITE"),
        pytest.raises(ConfigurationError, match="has the rights that each role needs"),
    ):
        await shop.submit(2)
    async with asyncio.timeout(SOON):
        while True:
            try:
                await shop.submit(3)
                break
            except ConfigurationError as error:
                # The broker may refuse once more; the client must not, by what it remembers.
                assert "Unable to produce" not in str(error)
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("part", ["log", pytest.param("channel", marks=pytest.mark.nightly)])
async def test_a_wrong_password_ends_a_worker_with_the_cause_and_is_not_shown(
    open_shop: Callable[..., Shop], server: GuardedKafkaServer, part: str
) -> None:
    right, wrong = open_shop(**{part: server.login_url("secret")}), server.login_url("wrong-one")
    async with serving(right):
        await right.mail.submit_async(number=1)
        await right.until_ran(1)
    refused = open_shop(**{part: wrong})
    error = await end_of(refused)
    assert await found_by_the_doctor(refused, "check user and password in the URL")
    assert "check user and password in the URL" in str(error)
    assert "wrong-one" not in str(error)


async def end_of(shop: Shop) -> ConfigurationError:
    """Run a worker until it ends, and return the only error behind its end, which the command shows
    as one line with exit code 2."""
    with pytest.raises(BaseException) as caught:
        async with asyncio.timeout(SOON):
            await shop.app.node(lease_seconds=4.0).run()
    causes = [caught.value]
    while isinstance(causes[0], BaseExceptionGroup):
        causes = [*causes[0].exceptions, *causes[1:]]
    assert all(isinstance(cause, ConfigurationError) for cause in causes), causes
    found = expected(caught.value)
    assert found is not None and len(found[0]) == 1 and found[1] == 2, found
    logging.getLogger(__name__).info("ended: %s", causes[0])
    return causes[0]  # type: ignore[return-value]


# codes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "NOT_LEADER_FOR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "NOT_CONTROLLER",
        "THROTTLING_QUOTA_EXCEEDED",
        "KAFKA_STORAGE_ERROR",
        "REPLICA_NOT_AVAILABLE",
        "REQUEST_TIMED_OUT",
        "NETWORK_EXCEPTION",
        "REBALANCE_IN_PROGRESS",
        "UNKNOWN_TOPIC_OR_PART",
        "INVALID_REPLICATION_FACTOR",
        "UNKNOWN",
        "_TRANSPORT",
        "_ALL_BROKERS_DOWN",
        "_MSG_TIMED_OUT",
        "_TIMED_OUT",
        "_RESOLVE",
        "_FENCED",
    ],
)
def test_a_code_of_a_failure_that_passes_is_an_unavailable_store(name: str) -> None:
    error = failures.translate(KafkaError(getattr(KafkaError, name)), "Kafka at k1")
    assert isinstance(error, StoreUnavailable) and str(error).startswith("Kafka at k1: ")
