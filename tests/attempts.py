"""States of tasks, awaited, and the outcomes of their attempts."""

from __future__ import annotations

import asyncio

from fairlead import App, State, TaskHandle

SOON = 20.0


def outcomes(app: App, handle: TaskHandle) -> list[str]:
    """Return the outcomes of the attempts, first to last."""
    return [attempt.outcome for attempt in app.management.attempts(handle.id)]


async def reaches(app: App, handle: TaskHandle, state: State) -> None:
    """Wait until the task is in this state."""
    async with asyncio.timeout(SOON):
        while handle.state() != state:
            await asyncio.sleep(0.01)
