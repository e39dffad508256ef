"""A node whose lock is free is declared dead, but only when its death is certain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.engine.liveness import PATIENCE, START_PAUSE
from fairlead.engine.liveness.deaths import Deaths
from fairlead.errors import StoreUnavailable


class Locks:
    """Locks that the test releases."""

    check_seconds = 1.0

    def __init__(self, confirm_seconds: float) -> None:
        self.confirm_seconds = confirm_seconds
        self.free: set[str] = set()
        self.is_away = False

    async def hold(self, node: str, on_changed: Callable[[], None]) -> None: ...

    async def released(self, nodes: Collection[str]) -> set[str]:
        if self.is_away:
            raise StoreUnavailable("away")
        return self.free & set(nodes)

    async def close(self) -> None: ...


class World:
    """A node `m` that watches the locks of `n`, `o` and `p`. The three watch each other too, and the
    watcher nearest before a dead node, in the order of names, acts first."""

    def __init__(self, confirm_seconds: float = 0.5) -> None:
        self.locks = Locks(confirm_seconds)
        self.now = 100.0
        self.dead: list[Sequence[str]] = []
        self.clock = clock = SimpleNamespace(monotonic=lambda: self.now)
        context: Any = SimpleNamespace(
            name="m", clock=clock, ports=SimpleNamespace(presence=self.locks)
        )
        self.deaths = Deaths(context, self._on_dead)
        self.deaths.on_nodes("mnop")

    async def _on_dead(self, nodes: Sequence[str]) -> None:
        self.dead.append([*nodes])

    async def look(self, seconds: float = 0.0) -> None:
        """Let `seconds` pass, and check the locks."""
        self.now += seconds
        await self.deaths.check()


async def test_a_node_whose_lock_stays_free_is_dead() -> None:
    world = World()
    await world.look()
    world.locks.free = {"n"}
    await world.look()
    await world.look(0.4)
    assert world.dead == []
    await world.look(0.2)
    await world.look(5)
    assert world.dead == [["n"]]


async def test_the_nearest_watcher_acts_first() -> None:
    world = World(confirm_seconds=0)
    world.locks.free = {"o"}
    await world.look()
    await world.look(0.9 * PATIENCE)
    assert world.dead == []  # `n` is nearer and may act
    world.deaths.on_nodes("mop")  # `n` has left
    await world.look()
    assert world.dead == [["o"]]


async def test_a_node_that_starts_after_a_death_does_not_delay_its_discovery() -> None:
    world = World()
    world.locks.free = {"n"}
    await world.look()
    world.deaths.on_nodes(["m", "mm", "n", "o"])
    await world.look(0.6)
    assert world.dead == [["n"]]


async def test_a_node_that_acquires_its_lock_again_in_time_is_alive() -> None:
    world = World()
    for _ in range(10):
        world.locks.free = {"n"}
        await world.look(0.3)
        world.locks.free = set()
        await world.look(0.3)
    assert world.dead == []


async def test_after_an_outage_a_free_lock_must_be_confirmed_again() -> None:
    world = World()
    world.locks.free = {"n"}
    await world.look()
    world.locks.is_away = True
    with pytest.raises(StoreUnavailable):
        await world.look(3)
    world.deaths.on_outage()
    world.locks.is_away = False
    await world.look(3)
    assert world.dead == []
    await world.look(0.6)
    assert world.dead == [["n"]]


@pytest.mark.parametrize("confirm_seconds", [0.0, 0.5])
async def test_a_node_starts_with_a_pause_only_if_an_outage_can_free_locks(
    confirm_seconds: float,
) -> None:
    """The processes of the others hold the locks of SQLite, and the store those of PostgreSQL."""
    world = World(confirm_seconds)
    world.locks.free = {"n"}
    began = world.now

    async def sleep(seconds: float) -> None:
        world.now += seconds
        if world.dead:
            raise asyncio.CancelledError

    world.clock.sleep = sleep
    with pytest.raises(asyncio.CancelledError):
        await world.deaths.run()
    assert world.dead == [["n"]]
    assert (world.now - began >= START_PAUSE) == (confirm_seconds > 0)
