"""An ordered queue beside another queue whose triggers go through Kafka: each kind of queue
shares its partitions by its own rule."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import App
from fairlead.engine.node import Node
from fairlead.model import PartitionKey
from fairlead.operate.doctor import examine
from fairlead.testing import running, settled
from tests.integration.ordered_kit import SOON, keys_of_partitions
from tests.waiting import until


@pytest.fixture
def channel(request: pytest.FixtureRequest) -> str:
    pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    return str(request.getfixturevalue("kafka_url"))


def open_app(url: str, channel: str, ran: list[str]) -> tuple[App, Any, Any]:
    app = App(url, channel=channel)
    app.queue("reminders", kind="ordered", partitions=8)

    @app.task(queue="reminders")
    async def remind(name: str) -> None:
        ran.append(name)

    @app.task
    async def mail(name: str) -> None:
        ran.append(name)

    return app, remind, mail


def ordered_of(node: Node) -> set[PartitionKey]:
    return {key for key in node.parts.ownership.owned if key.queue == "reminders"}


async def test_two_kinds_of_queues_on_one_node_share_partitions_each_by_its_own_rule(
    sqlite_url: str, channel: str
) -> None:
    ran: list[str] = []
    (first, remind, mail), (second, *_) = (open_app(sqlite_url, channel, ran) for _ in range(2))
    first.migrate()
    async with running(first, lease_seconds=2.0) as one, running(second, lease_seconds=2.0) as two:
        await until(lambda: one.parts.ownership.owned and two.parts.ownership.owned)
        await until(lambda: len(ordered_of(one) | ordered_of(two)) == 8)
        assert not ordered_of(one) & ordered_of(two)
        expected = []
        for n, key in enumerate(keys_of_partitions(8, 8)):
            remind.options(ordering_key=key).submit(name=f"reminder {n}")
            mail.submit(name=f"mail {n}")
            expected += [f"reminder {n}", f"mail {n}"]
        await until(lambda: len(ran) >= len(expected))
        await settled(first, one, SOON)
        assert sorted(ran) == sorted(expected)
        findings = await examine(first.operate_context)
        assert not [
            found for found in findings if "reminders" in found.what and found.severity != "ok"
        ]
    first.close()
    second.close()
