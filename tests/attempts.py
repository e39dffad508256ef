"""Handlers of each kind; states of tasks, awaited, and the outcomes of their attempts."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

from fairlead import App, State, TaskHandle

SOON = 20.0


def of_kind(kind: str, handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return the handler, as an `async def` unless the kind is "thread"; the `async def` awaits a
    coroutine that the handler returns."""
    if kind == "thread":
        return handler

    @functools.wraps(handler)
    async def awaiting(*args: Any, **kwargs: Any) -> Any:
        found = handler(*args, **kwargs)
        return await found if inspect.isawaitable(found) else found

    return awaiting


def outcomes(app: App, handle: TaskHandle) -> list[str]:
    """Return the outcomes of the attempts, first to last."""
    return [attempt.outcome for attempt in app.management.attempts(handle.id)]


async def reaches(app: App, handle: TaskHandle, state: State) -> None:
    """Wait until the task is in this state."""
    async with asyncio.timeout(SOON):
        while handle.state() != state:
            await asyncio.sleep(0.01)
