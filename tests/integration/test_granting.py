"""Work that one node cannot run is run by the others: the owner of a partition grants it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from fairlead import App
from fairlead.engine.node import Node
from fairlead.testing import running, settled

pytestmark = pytest.mark.virtual_time


SETTLE_SECONDS = 20.0
"""Virtual seconds after which the nodes have shared the partitions."""


class Fleet:
    """Applications of one store, and what their handlers ran."""

    def __init__(self, url: str, **queue: Any) -> None:
        self.url = url
        self.queue = {"partitions": 1, **queue}
        self.ran: list[tuple[int, Any]] = []
        """(number of the application, value) in the order of the starts."""
        self.running: Counter[int] = Counter()
        self.most_at_once: Counter[int] = Counter()

    def app(self, number: int, **task: Any) -> App:
        """Return a new application of the store, with the task `work`."""
        app = App(self.url)
        app.queue("work", **self.queue)

        async def work(value: int, seconds: float = 0.0) -> None:
            self.ran.append((number, value))
            self.running[number] += 1
            self.most_at_once[number] = max(self.most_at_once[number], self.running[number])
            await asyncio.sleep(seconds)
            self.running[number] -= 1

        self.work = app.task(work, name="work", queue="work", **task)
        return app

    @asynccontextmanager
    async def nodes(self, *settings: dict[str, Any]) -> AsyncIterator[Sequence[Node]]:
        """Run one node for each of the settings."""
        apps = [self.app(number) for number in range(len(settings))]
        apps[0].migrate()
        async with AsyncExitStack() as stack:
            nodes = [
                await stack.enter_async_context(running(app, **each))
                for app, each in zip(apps, settings, strict=True)
            ]
            await asyncio.sleep(SETTLE_SECONDS)
            yield nodes
        for app in apps:
            app.close()

    async def submit(self, seconds: Sequence[float], **options: Any) -> App:
        """Submit a task for each of these run times."""
        app = self.app(-1)
        task = self.work.options(**options)
        await app.submit_many_async(
            [task.draft(value=number, seconds=each) for number, each in enumerate(seconds)]
        )
        return app


async def test_nodes_of_one_slot_share_jobs_of_mixed_length(sqlite_url: str) -> None:
    fleet = Fleet(sqlite_url)
    loop = asyncio.get_running_loop()
    async with fleet.nodes(*[{"concurrency": 1}] * 4) as nodes:
        began = loop.time()
        app = await fleet.submit([2.0 if n % 4 == 0 else 0.0 for n in range(16)])
        await settled(app, nodes[0])
        took = loop.time() - began
        app.close()
    assert sorted(value for _, value in fleet.ran) == [*range(16)]
    assert took <= 2.2
