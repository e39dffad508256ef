"""A kit for tests of your tasks: run what was submitted, on a real node, in the test's own event
loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fairlead.app import App
from fairlead.engine.node import Node

LOOK_EVERY = 0.02
"""Seconds between two looks at what is left."""


@asynccontextmanager
async def running(app: App, **settings: Any) -> AsyncIterator[Node]:
    """A node that runs during the block and is drained at its end. Whatever breaks it is raised."""
    node = app.node(**{"drain": 5.0, **settings})
    task = asyncio.create_task(node.run())
    ready = asyncio.create_task(node.ready.wait())
    await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
    try:
        if task.done():
            await task
        yield node
    finally:
        ready.cancel()
        node.stop()
        await task


async def drain(app: App, timeout: float = 30.0, **settings: Any) -> None:
    """Run a node until nothing of the application is left to run or to retry. Raises TimeoutError
    after `timeout` s."""
    async with running(app, **settings) as node:
        await settled(app, node, timeout)


async def settled(app: App, node: Node, timeout: float = 30.0) -> None:
    """Wait until nothing is left to run or to retry. Raises TimeoutError after `timeout`
    seconds."""
    async with asyncio.timeout(timeout):
        while node.in_flight or await _left(app, node):  # noqa: ASYNC110
            await asyncio.sleep(
                LOOK_EVERY
            )  # another process may be what ends the last one: no event of ours tells


async def _left(app: App, node: Node) -> int:
    store = app.store
    unfinished, _ = await store.database.read(store.unfinished(sorted(app.queues)))
    return unfinished + await node.parts.ordered.unfinished()


__all__ = ["drain", "running", "settled"]
