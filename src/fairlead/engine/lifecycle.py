"""Parts of a node: started in order, stopped in reverse, and no part fails unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol


class Part(Protocol):
    """One part of a node."""

    async def run(self) -> None:
        """Serve until cancelled, or return when there is nothing to serve. What is raised here
        breaks the node."""

    async def stop(self) -> None:
        """End what the part began, while `run` still serves; `run` is cancelled afterwards."""


class Running:
    """A part without an end of its own: its `run` is simply cancelled."""

    async def stop(self) -> None:
        """Leave everything as it is."""


async def serve(parts: Sequence[Part], stopping: asyncio.Event) -> None:
    """Run the parts until `stopping` is set, then stop them from the last to the first. Raises what
    broke a part, after all others were cancelled."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part.run()) for part in parts]
        await stopping.wait()
        for part, task in reversed(list(zip(parts, tasks, strict=True))):
            await part.stop()
            task.cancel()
            await asyncio.wait([task])
