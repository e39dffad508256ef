"""A worker with an identity keeps its share of the partitions over a restart."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import App
from fairlead.engine.membership import identity_of
from fairlead.engine.node import Node
from fairlead.errors import StoreUnavailable
from fairlead.testing import running
from tests.integration.ordered_kit import SOON, Kit, open_app

pytestmark = pytest.mark.virtual_time


async def until_owned(node: Node, count: int) -> None:
    async with asyncio.timeout(SOON):
        while len(node.parts.ownership.owned) != count:
            await asyncio.sleep(0.02)


async def until_shared(*nodes: Node) -> None:
    """Each has its half."""
    for node in nodes:
        await until_owned(node, 4)


def changes_of(node: Node) -> list[int]:
    """How many partitions it has, each time that changes from here on."""
    told: list[int] = []
    assigned = node.parts.on_owned

    def noting(owned: frozenset[object]) -> None:
        told.append(len(owned))
        assigned(owned)  # type: ignore[arg-type]

    node.parts.on_owned = noting  # type: ignore[assignment]
    return told


def two_workers(url: str) -> tuple[Kit, App]:
    first = open_app(url)
    return first, open_app(url, clock=first.clock).app


async def test_a_quick_restart_moves_no_partition(sqlite_url: str) -> None:
    first, second = two_workers(sqlite_url)
    async with running(first.app, identity="one", restart_seconds=30.0) as stays:
        async with running(second, identity="two", restart_seconds=30.0) as goes:
            await until_shared(stays, goes)
            before = goes.parts.ownership.owned
        changes = changes_of(stays)
        async with running(second, identity="two", restart_seconds=30.0) as again:
            await until_owned(again, 4)
            assert again.parts.ownership.owned == before
            assert again.settings.name != goes.settings.name
            assert identity_of(again.settings.name) == "two"
        assert changes == []
        assert {node.node for node in first.app.management.nodes()} == {
            stays.settings.name,
            again.settings.name,
        }
    first.app.close()
    second.close()


async def test_a_node_that_does_not_return_in_time_loses_its_partitions(sqlite_url: str) -> None:
    first, second = two_workers(sqlite_url)
    async with running(first.app, identity="one", restart_seconds=30.0) as stays:
        async with running(second, identity="two", restart_seconds=30.0) as goes:
            await until_shared(stays, goes)
        first.clock.ahead += 60
        await until_owned(stays, 8)
    first.app.close()
    second.close()


async def test_without_an_identity_other_nodes_take_over_at_once(sqlite_url: str) -> None:
    first, second = two_workers(sqlite_url)
    async with running(first.app) as stays:
        async with running(second) as goes:
            await until_shared(stays, goes)
        await until_owned(stays, 8)
        assert [node.node for node in first.app.management.nodes()] == [stays.settings.name]
    first.app.close()
    second.close()


async def test_a_node_says_why_it_is_not_ready(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def until(node: Node, reason: str | None) -> None:
        async with asyncio.timeout(SOON):
            while node.not_ready != reason:
                await asyncio.sleep(0.1)

    async def away(*_: object) -> None:
        raise StoreUnavailable("away")

    app = open_app(sqlite_url).app
    assert app.node().not_ready == "starting"
    async with running(app) as node:
        await until(node, None)
        with monkeypatch.context() as patch:
            patch.setattr(app.store, "heartbeat", away)
            await until(node, "the store is unavailable")
        await until(node, None)
        node.stop()
        assert node.not_ready == "draining"
    app.close()
