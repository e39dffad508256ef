"""Waits for states that nothing announces: each asks again until its condition is true."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable

PATIENCE = 120.0
"""Seconds until a wait gives up, on the clock of its loop."""


async def until(is_so: Callable[[], object]) -> None:
    """Wait until the condition, which may be a coroutine function, is true. Raise TimeoutError when
    patience ends."""
    async with asyncio.timeout(PATIENCE):
        while not (await found if inspect.isawaitable(found := is_so()) else found):
            await asyncio.sleep(0.01)


def wait_until(is_so: Callable[[], object]) -> None:
    """Wait in a thread until the condition is true. Raise TimeoutError when patience ends."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError("the condition did not become true")
        time.sleep(0.01)
