"""A worker with an identity keeps its partitions over a restart."""

from __future__ import annotations

import pytest

from fairlead import App
from fairlead.engine.membership import identity_of
from fairlead.engine.node import Node
from fairlead.errors import StoreUnavailable
from fairlead.testing import running
from tests.integration.ordered_kit import Kit, open_app
from tests.waiting import until

pytestmark = pytest.mark.virtual_time


async def until_owned(node: Node, count: int) -> None:
    """Wait until the node owns `count` partitions."""
    await until(lambda: len(node.parts.ownership.owned) == count)


async def until_shared(*nodes: Node) -> None:
    """Wait until each of two nodes owns half of the eight partitions."""
    for node in nodes:
        await until_owned(node, 4)


def changes_of(node: Node) -> list[int]:
    """Return a list to which each later change appends the number of partitions of the node."""
    counts: list[int] = []
    assigned = node.parts.on_owned

    def append_count(owned: frozenset[object]) -> None:
        counts.append(len(owned))
        assigned(owned)  # type: ignore[arg-type]

    node.parts.on_owned = append_count  # type: ignore[assignment]
    return counts


def two_workers(url: str) -> tuple[Kit, App]:
    first = open_app(url)
    return first, open_app(url, clock=first.clock).app


async def test_a_quick_restart_moves_no_partition(sqlite_url: str) -> None:
    first, second = two_workers(sqlite_url)
    async with running(first.app, identity="one", restart_seconds=30.0) as staying:
        async with running(second, identity="two", restart_seconds=30.0) as restarting:
            await until_shared(staying, restarting)
            before = restarting.parts.ownership.owned
        changes = changes_of(staying)
        async with running(second, identity="two", restart_seconds=30.0) as restarted:
            await until_owned(restarted, 4)
            assert restarted.parts.ownership.owned == before
            assert restarted.settings.name != restarting.settings.name
            assert identity_of(restarted.settings.name) == "two"
        assert changes == []
        assert {node.node for node in first.app.management.nodes()} == {
            staying.settings.name,
            restarted.settings.name,
        }
    first.app.close()
    second.close()


async def test_a_node_that_does_not_return_in_time_loses_its_partitions(sqlite_url: str) -> None:
    first, second = two_workers(sqlite_url)
    async with running(first.app, identity="one", restart_seconds=30.0) as staying:
        async with running(second, identity="two", restart_seconds=30.0) as restarting:
            await until_shared(staying, restarting)
        first.clock.ahead += 60
        await until_owned(staying, 8)
    first.app.close()
    second.close()


async def test_without_an_identity_other_nodes_take_over_at_once(sqlite_url: str) -> None:
    first, second = two_workers(sqlite_url)
    async with running(first.app) as staying:
        async with running(second) as restarting:
            await until_shared(staying, restarting)
        await until_owned(staying, 8)
        assert [node.node for node in first.app.management.nodes()] == [staying.settings.name]
    first.app.close()
    second.close()


async def test_a_node_says_why_it_is_not_ready(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise StoreUnavailable("the store is down")

    app = open_app(sqlite_url).app
    assert app.node().not_ready == "starting"
    async with running(app) as node:
        await until(lambda: node.not_ready is None)
        with monkeypatch.context() as patch:
            patch.setattr(app.store, "heartbeat", fail)
            await until(lambda: node.not_ready == "the store is unavailable")
        await until(lambda: node.not_ready is None)
        node.stop()
        assert node.not_ready == "draining"
    app.close()
