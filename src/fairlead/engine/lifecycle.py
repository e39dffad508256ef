"""Parts of a node: start in order, stop in reverse; an exception in one part ends the node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol


class Part(Protocol):
    """One part of a node."""

    async def run(self) -> None:
        """Serve until cancelled, or return when there is nothing to serve. An exception ends the
        node."""

    async def stop(self) -> None:
        """Finish open work while `run` still serves; the lifecycle cancels `run` afterwards."""


class SimplePart:
    """A part that has nothing to finish when the node stops."""

    async def stop(self) -> None:
        """Do nothing: the lifecycle cancels `run`."""


async def serve(parts: Sequence[Part], stopping: asyncio.Event) -> None:
    """Run the parts until `stopping` is set, then stop them from the last to the first.

    Raise the exception of a part that failed, after cancelling all others.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part.run()) for part in parts]
        await stopping.wait()
        for part, task in reversed(list(zip(parts, tasks, strict=True))):
            await part.stop()
            task.cancel()
            await asyncio.wait([task])
