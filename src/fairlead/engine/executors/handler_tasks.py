"""Asyncio tasks that handlers start: `sys.exit()` in one of them ends that task, not the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from fairlead.declare.current import current_run
from fairlead.errors import FairleadError


class HandlerTaskExited(FairleadError):
    """An asyncio task that a handler started raised SystemExit or KeyboardInterrupt; the text names
    which."""


def contain_exits(loop: asyncio.AbstractEventLoop) -> None:
    """Make an exit of a handler's asyncio task on this loop an error of that task. Safe to call
    twice.

    asyncio ends the whole loop when any asyncio task raises SystemExit or KeyboardInterrupt.
    """
    previous = loop.get_task_factory()
    if not isinstance(previous, _TaskFactory):
        loop.set_task_factory(_TaskFactory(previous))


class _TaskFactory:
    """Task factory that contains the exits of handlers' asyncio tasks; all others stay as they
    are."""

    def __init__(self, previous: Callable[..., Any] | None) -> None:
        self._previous = previous

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any
    ) -> asyncio.Future[Any]:
        if current_run() is not None and asyncio.iscoroutine(coro):
            coro = _Contained(coro)
        if self._previous is None:
            return asyncio.Task(coro, loop=loop, **options)
        task: asyncio.Future[Any] = self._previous(loop, coro, **options)
        return task


class _Contained(Coroutine[Any, Any, Any]):
    """Coroutine whose exits are errors. An object, because an `async def` that is cancelled before
    its start would never await the coroutine inside it."""

    def __init__(self, coro: Coroutine[Any, Any, Any]) -> None:
        self._coro = coro

    def send(self, value: Any) -> Any:
        try:
            return self._coro.send(value)
        except (SystemExit, KeyboardInterrupt) as error:
            raise _exited(error) from error

    def throw(self, *error: Any) -> Any:
        try:
            return self._coro.throw(*error)
        except (SystemExit, KeyboardInterrupt) as raised:
            raise _exited(raised) from raised

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coro.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coro, name)  # names, code and frame, for tools that print stacks


def _exited(error: BaseException) -> HandlerTaskExited:
    return HandlerTaskExited(f"an asyncio task that the handler started raised {error!r}")
