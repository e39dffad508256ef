"""Writes and waits of a submit, which is one coroutine for synchronous and asynchronous code."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from fairlead.ports.statements import Database, Steps

T = TypeVar("T")


class Writer(Protocol):
    """Carries out what a submit has to wait for."""

    async def write(self, database: Database, steps: Steps[T], connection: Any = None) -> T:
        """Run the steps in one transaction: the caller's if there is a connection."""

    async def wait(self, future: Future[T]) -> T:
        """Wait for the end of a future; return its result."""


class BlockingWriter:
    """Blocks this thread, so that its coroutines never suspend (`run_now`)."""

    async def write(self, database: Database, steps: Steps[T], connection: Any = None) -> T:
        return database.run(steps) if connection is None else database.join(connection, steps)

    async def wait(self, future: Future[T]) -> T:
        return future.result()


class LoopWriter:
    """Waits in the event loop without blocking it."""

    async def write(self, database: Database, steps: Steps[T], connection: Any = None) -> T:
        if connection is None:
            return await database.run_async(steps)
        return await database.join_async(connection, steps)

    async def wait(self, future: Future[T]) -> T:
        return await asyncio.wrap_future(future)


BLOCKING, ON_LOOP = BlockingWriter(), LoopWriter()


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, because it waits for a BlockingWriter only."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the coroutine of a synchronous submit was suspended")
