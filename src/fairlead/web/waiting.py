"""Wait in a thread for reads that are coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fairlead.app import App

T = TypeVar("T")


def wait_for(app: App, reading: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, and close the connections that this loop opened."""

    async def read() -> T:
        try:
            return await reading
        finally:
            await app.connections.close_async()

    return asyncio.run(read())
