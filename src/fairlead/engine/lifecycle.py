"""Parts of a node: start in order, stop in reverse; an exception in one part ends the node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from fairlead.errors import FairleadError


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


class PartCancelled(FairleadError):
    """Code that is not the node's cancelled the asyncio task of one part; the text names it. A node
    without this part would seem to serve, so it ends."""


async def serve(parts: Sequence[Part], stopping: asyncio.Event) -> None:
    """Run the parts until `stopping` is set, then stop them from the last to the first.

    Raise the exception of a part that failed, after cancelling all others. Raise PartCancelled for
    a part that was cancelled alone.
    """
    ending: set[Part] = set()
    node = asyncio.current_task()
    assert node is not None

    async def run(part: Part) -> None:
        try:
            await part.run()
        except asyncio.CancelledError:
            if part in ending or node.cancelling():
                raise
            name = type(part).__name__
            raise PartCancelled(f"{name} was cancelled by code that is not the node's") from None

    async with asyncio.TaskGroup() as group:
        try:
            tasks = [group.create_task(run(part)) for part in parts]
            await stopping.wait()
            for part, task in reversed(list(zip(parts, tasks, strict=True))):
                await part.stop()
                ending.add(part)
                task.cancel()
                await asyncio.wait([task])
        finally:
            ending.update(parts)
