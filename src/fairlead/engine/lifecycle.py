"""The life of a node: its parts start in order and stop in reverse, inside the lifespan of its
application; an exception in one part ends the node."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol

from fairlead.errors import FairleadError, LifespanFailed

log = logging.getLogger("fairlead.node")

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
"""Make the context manager of one worker process."""


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


# the lifespan ----------------------------------------------------------------------------------


@asynccontextmanager
async def opened(lifespan: Lifespan | None) -> AsyncIterator[None]:
    """Open the lifespan around the block. Raise LifespanFailed if it raises by itself; an error of
    the block passes, even if the lifespan hides it."""
    if lifespan is None:
        yield
        return
    with _one_line("start"):
        manager = lifespan()
        await manager.__aenter__()
    try:
        yield
    except BaseException as error:
        await manager.__aexit__(type(error), error, error.__traceback__)
        raise
    with _one_line("end"):
        await manager.__aexit__(None, None, None)


@contextmanager
def _one_line(step: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log.debug("the lifespan failed", exc_info=error)
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        raise LifespanFailed(
            f"the lifespan failed at the {step} of the worker: {type(error).__name__}:"
            f" {error}{where}"
        ) from error


@contextmanager
def in_child(lifespan: Lifespan) -> Iterator[contextvars.Context]:
    """Open the lifespan of a child process on an event loop in a thread of its own, so that
    handlers keep the main thread; yield the context that it leaves. Raise LifespanFailed."""
    found: Future[tuple[contextvars.Context, Callable[[], None]]] = Future()

    async def hold() -> None:
        async with opened(lifespan):
            loop, leaving = asyncio.get_running_loop(), asyncio.Event()
            found.set_result((contextvars.copy_context(), lambda: _poke(loop, leaving)))
            await leaving.wait()

    def run() -> None:
        try:
            asyncio.run(hold())
        except BaseException as error:
            if found.done():
                log.error("the lifespan of a child process failed", exc_info=error)
            else:
                found.set_exception(error)

    thread = threading.Thread(target=run, name="fairlead-lifespan", daemon=True)
    thread.start()
    context, leave = found.result()
    try:
        yield context
    finally:
        leave()
        thread.join()


def _poke(loop: asyncio.AbstractEventLoop, leaving: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended by itself
        loop.call_soon_threadsafe(leaving.set)
