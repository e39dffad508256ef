"""Bounds between the asyncio tasks of a node and the code of handlers, which share an event loop.

Code of a handler can neither cancel an asyncio task of the node nor end the loop by an exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import sys
from collections.abc import Callable, Coroutine, Generator
from types import FrameType
from typing import Any, TypeVar

from fairlead.declare.current import current_run
from fairlead.errors import FairleadError

T = TypeVar("T")

_is_node = contextvars.ContextVar("fairlead_node", default=False)
"""Whether the code in this context is the node's, unless a run is set in it."""

_GUARDED = ("stop", "add_signal_handler", "remove_signal_handler")
"""Methods of a worker's event loop that no handler may call."""


class HandlerTaskExited(FairleadError):
    """An asyncio task that a handler started raised SystemExit or KeyboardInterrupt; the text names
    which."""


class LoopMisused(FairleadError, RuntimeError):
    """A handler called a method that would end its worker; the text names the method."""


async def apart_from_handlers(coro: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the node in an asyncio task of its own. No handler can cancel this task,
    nor any that it starts. A cancellation of the caller by other code ends it."""
    loop, caller = asyncio.get_running_loop(), asyncio.current_task()
    if not isinstance(loop.get_task_factory(), _TaskFactory):
        loop.set_task_factory(_TaskFactory(loop.get_task_factory()))
    context = contextvars.copy_context()
    context.run(_is_node.set, True)
    task: asyncio.Task[T] = _NodeTask(coro, loop=loop, name="fairlead-node", context=context)
    try:
        return await task
    except asyncio.CancelledError:
        if caller is None or task.cancelled() or not task.done():
            raise
        # A handler cancelled the caller: `task` refused that, so asyncio kept it until now.
        while caller.cancelling():
            caller.uncancel()
        return task.result()


def guard_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Let methods that would end the worker raise LoopMisused if a handler calls them. For a loop
    that only serves a node."""
    for name in _GUARDED:
        with contextlib.suppress(AttributeError):  # loops in C have no attributes of their own
            setattr(loop, name, _guarded(getattr(loop, name)))


def _guarded(method: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(method)
    def call(*arguments: Any) -> T:
        if current_run() is not None:
            raise LoopMisused(f"a handler must not call {method.__name__}() of its worker's loop")
        return method(*arguments)

    return call


class _NodeTask(asyncio.Task[T]):
    """Asyncio task of the node, which ignores cancellations by handlers."""

    def cancel(self, msg: Any | None = None) -> bool:
        if current_run() is not None and not _is_interrupt():
            return False
        return super().cancel(msg)


def _is_interrupt() -> bool:
    """Return whether asyncio handles Ctrl-C now, which it does in the context of the code that was
    interrupted."""
    on_interrupt = asyncio.Runner._on_sigint.__code__  # type: ignore[attr-defined]
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is on_interrupt:
            return True
        frame = frame.f_back
    return False


class _TaskFactory:
    """Task factory that contains the exits of handlers' asyncio tasks, which would end the whole
    loop, and protects the node's; all others stay as they are."""

    def __init__(self, previous: Callable[..., Any] | None) -> None:
        self._previous = previous

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any
    ) -> asyncio.Future[Any]:
        is_handler = current_run() is not None
        if is_handler and asyncio.iscoroutine(coro):
            coro = _Contained(coro)
        if self._previous is not None:
            task: asyncio.Future[Any] = self._previous(loop, coro, **options)
            return task
        kind = _NodeTask if _is_node.get() and not is_handler else asyncio.Task
        return kind(coro, loop=loop, **options)


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
