"""Fair queues with far more keys than memory has triggers, whose tasks stay in the task table: new
weights show at once, and new keys run at once."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import App
from fairlead.testing import running

pytestmark = [pytest.mark.ordered, pytest.mark.virtual_time]

SOON = 60.0
KEYS = 3000
EACH = 3
WEIGHT = 1000.0
HEAVY = 1500
"""Tasks of the key or tenant that gets the weight."""


class Flood:
    """A queue of KEYS keys with EACH tasks, and one with HEAVY tasks, all of equal weight."""

    def __init__(self, url: str, keys: list[str], heavy: list[str]) -> None:
        self.app = App(url)
        self.app.migrate()
        self.app.queue("q", partitions=1)
        self.ran: list[str] = []

        @self.app.task(queue="q")
        async def note(key: str) -> None:
            self.ran.append(key)
            await asyncio.sleep(0.01)

        self._note = note
        self.push([key for _ in range(EACH) for key in keys])
        self.push([heavy[n % len(heavy)] for n in range(HEAVY)])

    def push(self, keys: list[str]) -> None:
        self.app.submit_many([self._note.options(fairness_key=key).draft(key=key) for key in keys])

    async def started(self, count: int) -> None:
        async with asyncio.timeout(SOON):
            while len(self.ran) < count:
                await asyncio.sleep(0.01)

    async def weigh(self, node, key: str) -> None:
        self.app.management.set_weight("q", key, WEIGHT)
        async with asyncio.timeout(SOON):
            while not node.parts.intake.lanes.sharing.weights["q"]:
                await asyncio.sleep(0.01)


KINDS = {
    "key": ("heavy", [f"k{n}" for n in range(KEYS)], ["heavy"]),
    "tenant": ("heavy", [f"t{n}/user" for n in range(KEYS)], [f"heavy/{n}" for n in range(7)]),
    "in tenant": ("acme/heavy", [f"acme/{n}" for n in range(KEYS)], ["acme/heavy"]),
}


@pytest.mark.parametrize(
    ("kind", "begun"), [("key", 600), ("tenant", 600), ("in tenant", 600), ("key", 4000)]
)
async def test_a_new_weight_shows_in_the_next_starts_however_many_keys_wait(
    sqlite_url: str, kind: str, begun: int
) -> None:
    weighed, keys, heavy = KINDS[kind]
    new = "acme/new" if kind == "in tenant" else "new"
    flood = Flood(sqlite_url, keys, heavy)
    async with running(flood.app, concurrency=10, look_ahead=100) as node:
        await flood.started(begun)
        await flood.weigh(node, weighed)
        began = len(flood.ran)
        await flood.started(began + 600)
        await asyncio.to_thread(flood.push, [new])
        newcomer = len(flood.ran)
        await flood.started(began + 1200)
        for first in (began, began + 400, began + 800):
            starts = flood.ran[first : first + 400]
            share = sum("heavy" in key for key in starts) / len(starts)
            assert share == pytest.approx(WEIGHT / (WEIGHT + KEYS), abs=0.1)
        assert new in flood.ran[newcomer : newcomer + 100]
    flood.app.close()
