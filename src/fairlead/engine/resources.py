"""The resources of a worker process and of its runs: made when first needed, closed in reverse
order."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any

from fairlead.declare.resource import (
    Factory,
    Resource,
    Scope,
    as_manager,
    is_async_manager,
    name_of,
    needs_of,
)
from fairlead.errors import ResourceFailed, Retry, Snooze

log = logging.getLogger("fairlead.node")

Enter = Callable[[AsyncExitStack], Awaitable[Any]]
"""Make an object and let the stack close it."""


class Resources:
    """Resources of one worker process, `async with`. Handlers on the event loop and in threads
    share those of the scope "process"."""

    def __init__(self, overrides: Mapping[Factory, Factory]) -> None:
        self._overrides = overrides
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        """Context variables of the worker, not of a run."""
        self._lock = threading.Lock()
        self._holders: dict[Factory, _Holder] = {}
        """Holders of the resources of the process, made or being made."""
        self._made: list[_Holder] = []
        """Holders of the resources of the process, in the order in which they were made."""
        self._is_closed = False

    async def __aenter__(self) -> Resources:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the resources of the process, the last one made first."""
        with self._lock:
            self._is_closed = True
            holders = [*self._holders.values()]
        for holder in holders:
            holder.stop_entering()
        while self._made:
            holder = self._made.pop()
            try:
                await holder.leave(None)
            except Exception as raised:
                log.error(
                    "a resource could not be closed",
                    extra={"resource": name_of(holder.make), "error": str(raised)},
                    exc_info=raised,
                )

    # runs -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def of_run(self, wanted: Mapping[str, Resource]) -> AsyncIterator[dict[str, Any]]:
        """Give the resources of a run on the event loop, by parameter. Raise ResourceFailed."""
        made: dict[Factory, Any] = {}
        async with AsyncExitStack() as stack:
            yield {name: await self._of_run(each, stack, made) for name, each in wanted.items()}

    @contextmanager
    def of_run_in_thread(self, wanted: Mapping[str, Resource]) -> Iterator[dict[str, Any]]:
        """Give the resources of a run in this thread, by parameter. Raise ResourceFailed."""
        made: dict[Factory, Any] = {}
        with ExitStack() as stack:
            yield {name: self._in_thread(each, stack, made) for name, each in wanted.items()}

    async def _of_run(
        self, resource: Resource, stack: AsyncExitStack, made: dict[Factory, Any]
    ) -> Any:
        make = self._overrides.get(resource.make, resource.make)
        if resource.scope is Scope.PROCESS:
            return await self._of_process(make, False).get_async()
        if make not in made:
            needs = {
                name: await self._of_run(need, stack, made) for name, need in needs_of(make).items()
            }
            made[make] = await _entered(make, needs, stack)
        return made[make]

    def _in_thread(self, resource: Resource, stack: ExitStack, made: dict[Factory, Any]) -> Any:
        make = self._overrides.get(resource.make, resource.make)
        if resource.scope is Scope.PROCESS:
            return self._of_process(make, True).get()
        if make not in made:
            needs = {
                name: self._in_thread(need, stack, made) for name, need in needs_of(make).items()
            }
            with _naming(make, "made"):
                returned = make(**needs)
            manager = as_manager(returned)
            if manager is not None and not is_async_manager(manager):
                made[make] = stack.enter_context(_closing(make, manager))
            elif manager is not None or inspect.isawaitable(returned):
                made[make] = stack.enter_context(self._on_loop(make, returned))
            else:
                made[make] = returned
        return made[make]

    @contextmanager
    def _on_loop(self, make: Factory, returned: Any) -> Iterator[Any]:
        """Hold an asynchronous resource of a run in a thread open, on the event loop."""
        holder = _Holder(make, lambda stack: _opened(make, returned, stack))
        self._start(holder)
        value = holder.get()

        def leave(error: BaseException | None) -> None:
            asyncio.run_coroutine_threadsafe(holder.leave(error), self._loop).result()

        try:
            yield value
        except BaseException as error:
            leave(error)
            raise
        leave(None)

    # the process ----------------------------------------------------------------------------------

    def _of_process(self, make: Factory, in_thread: bool) -> _Holder:
        """Return the holder of a resource of the process; the first call begins to make it. Raise
        ResourceFailed if the worker stops."""
        if (holder := self._holders.get(make)) is not None:
            return holder
        with self._lock:
            if (holder := self._holders.get(make)) is not None:
                return holder
            if self._is_closed:
                raise ResourceFailed(f"resource {name_of(make)!r}: the worker is stopping")
            holder = _Holder(make, lambda stack: self._enter(make, in_thread, stack))
            self._holders[make] = holder
        holder.entered.add_done_callback(lambda entered: self._on_entered(holder, entered))
        self._start(holder)
        return holder

    def _start(self, holder: _Holder) -> None:
        self._loop.call_soon_threadsafe(holder.start, context=self._context.copy())

    def _on_entered(self, holder: _Holder, entered: Future[Any]) -> None:
        if entered.exception() is None:
            self._made.append(holder)
        else:  # the next run that needs it makes it anew
            with self._lock:
                del self._holders[holder.make]

    async def _enter(self, make: Factory, in_thread: bool, stack: AsyncExitStack) -> Any:
        needs = {}
        for name, need in needs_of(make).items():
            needed = self._overrides.get(need.make, need.make)
            needs[name] = await self._of_process(needed, in_thread).get_async()
        return await _entered(make, needs, stack, in_thread)


class _Holder:
    """Holds one resource open in an asyncio task of its own, which enters and leaves its context
    manager. So the end of the run that first needed it does not disturb it."""

    def __init__(self, make: Factory, enter: Enter) -> None:
        self.make = make
        self.entered: Future[Any] = Future()
        """The resource, or the error of its making."""
        self.entered.set_running_or_notify_cancel()
        self._enter = enter
        self._leaving = asyncio.Event()
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to enter. Called in the event loop."""
        if not self.entered.done():
            self._task = asyncio.get_running_loop().create_task(
                self._hold(), name="fairlead-resource"
            )

    def stop_entering(self) -> None:
        """Give up a resource that is not made yet. Called in the event loop."""
        if self.entered.done():
            return
        if self._task is not None:
            self._task.cancel()
        else:
            self.entered.set_exception(asyncio.CancelledError())

    def get(self) -> Any:
        """Return the resource; wait for it in a thread. Raise ResourceFailed."""
        error = self.entered.exception()
        if error is None:
            return self.entered.result()
        raise _of_waiter(self.make, error) from error

    async def get_async(self) -> Any:
        """Return the resource; wait for it on the event loop. Raise ResourceFailed."""
        if not self.entered.done():
            loop, done = asyncio.get_running_loop(), asyncio.Event()
            self.entered.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
            await done.wait()
        return self.get()

    async def leave(self, error: BaseException | None) -> None:
        """Leave the context manager, with the error of the run if there is one. Raise the error of
        the context manager."""
        assert self._task is not None
        self._error = error
        self._leaving.set()
        try:
            await self._task
        except BaseException as raised:
            if raised is not error:
                raise

    async def _hold(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                self.entered.set_result(await self._enter(stack))
                await self._leaving.wait()
                if self._error is not None:
                    raise self._error
        except BaseException as error:
            if self.entered.done():
                raise
            self.entered.set_exception(error)


async def _entered(
    make: Factory, needs: Mapping[str, Any], stack: AsyncExitStack, in_thread: bool = False
) -> Any:
    """Make a resource and enter its context manager. Raise ResourceFailed."""
    with _naming(make, "made"):
        returned = await asyncio.to_thread(make, **needs) if in_thread else make(**needs)
    return await _opened(make, returned, stack, in_thread)


async def _opened(
    make: Factory, returned: Any, stack: AsyncExitStack, in_thread: bool = False
) -> Any:
    """Return the resource of what a factory has returned. Raise ResourceFailed."""
    manager = as_manager(returned)
    if manager is None and inspect.isawaitable(returned):
        with _naming(make, "made"):
            returned = await returned
        manager, in_thread = as_manager(returned), False
    if manager is None:
        return returned
    if is_async_manager(manager):
        return await stack.enter_async_context(_closing_async(make, manager))
    if not in_thread:
        return stack.enter_context(_closing(make, manager))
    with _naming(make, "made"):
        value = await asyncio.to_thread(manager.__enter__)
    stack.push_async_exit(lambda *error: asyncio.to_thread(manager.__exit__, *error))
    return value


@contextmanager
def _closing(make: Factory, manager: Any) -> Iterator[Any]:
    """Enter and leave a context manager; an error that it raises by itself names the resource."""
    with _naming(make, "made"):
        value = manager.__enter__()
    try:
        yield value
    except BaseException as error:
        manager.__exit__(type(error), error, error.__traceback__)
        raise
    with _naming(make, "closed"):
        manager.__exit__(None, None, None)


@asynccontextmanager
async def _closing_async(make: Factory, manager: Any) -> AsyncIterator[Any]:
    """Do what `_closing` does, for an asynchronous context manager."""
    with _naming(make, "made"):
        value = await manager.__aenter__()
    try:
        yield value
    except BaseException as error:
        await manager.__aexit__(type(error), error, error.__traceback__)
        raise
    with _naming(make, "closed"):
        await manager.__aexit__(None, None, None)


@contextmanager
def _naming(make: Factory, step: str) -> Iterator[None]:
    """Raise ResourceFailed in place of an error. Retry, Snooze and cancellations pass."""
    try:
        yield
    except (ResourceFailed, Retry, Snooze):
        raise
    except Exception as error:
        raise _failed(make, step, error) from error


def _of_waiter(make: Factory, error: BaseException) -> BaseException:
    """Return the error of one run that waited for a resource: each has an error of its own."""
    if isinstance(error, Retry):
        return Retry(error.after, reset_tries=error.reset_tries)
    if isinstance(error, Snooze):
        return Snooze(error.until)
    if isinstance(error, ResourceFailed):
        return ResourceFailed(str(error))
    if isinstance(error, asyncio.CancelledError):
        return ResourceFailed(f"resource {name_of(make)!r}: the worker is stopping")
    return _failed(make, "made", error)


def _failed(make: Factory, step: str, error: BaseException) -> ResourceFailed:
    return ResourceFailed(
        f"resource {name_of(make)!r} cannot be {step}: {type(error).__name__}: {error}"
    )
