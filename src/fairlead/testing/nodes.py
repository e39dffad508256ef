"""A real node in the event loop of a test, for a block or until it has nothing left to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fairlead.app import App
from fairlead.engine.node import Node

CHECK_EVERY = 0.02
"""Seconds between two counts of unfinished tasks."""


@asynccontextmanager
async def running(app: App, **settings: Any) -> AsyncIterator[Node]:
    """Run a node during the block and drain it at the end. Raise the exception that ends the
    node."""
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
    """Run a node until no task of the application is left to run or retry. Raise TimeoutError after
    `timeout` seconds."""
    async with running(app, **settings) as node:
        await settled(app, node, timeout)


async def settled(app: App, node: Node, timeout: float = 30.0) -> None:
    """Wait until no task is left to run or retry. Raise TimeoutError after `timeout` seconds."""
    async with asyncio.timeout(timeout):
        while node.in_flight or await _left(app, node):  # noqa: ASYNC110
            # Another process may end the last task, and no event here reports that.
            await asyncio.sleep(CHECK_EVERY)


async def _left(app: App, node: Node) -> int:
    left = await node.parts.ordered.unfinished()
    if (store := app.connections.tasks) is not None:
        unfinished, _ = await store.database.read(store.unfinished(sorted(app.queues)))
        left += unfinished
    return left
