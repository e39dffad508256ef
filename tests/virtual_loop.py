"""An event loop on which time jumps to the next timer as soon as nothing else can proceed.

`loop.time()`, `asyncio.sleep`, `asyncio.timeout` and `call_later` follow its `VirtualTime`, and so
does everything that uses it as its clock. Time stands still while a thread works for the loop (a call
in an executor, a write of SQLite, a handler in a thread) and while there is I/O to read. Time does
not wait for other processes and servers, so their tests use the system clock.
"""

from __future__ import annotations

import asyncio
import asyncio.futures
import concurrent.futures
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fairlead.clock import MICROS, SystemClock
from fairlead.engine.executors.thread import ThreadExecutor

_FIRST = 1000.0
"""Seconds of the monotonic clock at which virtual time begins."""

_LOOK_EVERY = 5.0
"""Seconds of system time after which a wait for threads checks again, in case a wake-up was lost."""


class VirtualTime:
    """A `fairlead.clock.Clock` that moves only by `advance`. Any thread may read it. `began`: its first
    instant in microseconds since the epoch, the present by default."""

    def __init__(self, began: int | None = None) -> None:
        self._began = time.time_ns() // 1000 if began is None else began
        self._monotonic = _FIRST

    def now(self) -> int:
        return self._began + round((self._monotonic - _FIRST) * MICROS)

    def monotonic(self) -> float:
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def advance(self, seconds: float) -> None:
        """Move the time forward by `seconds`."""
        self._monotonic += seconds


class _Selector(selectors.DefaultSelector):
    """A selector that lets virtual time pass instead of waiting when no I/O is ready."""

    def __init__(self, passing: VirtualTime, is_held: Callable[[], bool]) -> None:
        super().__init__()
        self._passing = passing
        self._is_held = is_held

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if timeout is None or self._is_held():
            # A thread that ends wakes the loop up, through its own socket.
            return super().select(_LOOK_EVERY)
        self._passing.advance(timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop that this module describes, on the time `clock`."""

    def __init__(self, clock: VirtualTime | None = None) -> None:
        self.clock = clock or VirtualTime()
        self._working: set[concurrent.futures.Future[Any]] = set()
        """Work of threads for this loop. A set, because other threads may add to it."""
        self._executors: list[ThreadExecutor] = []
        super().__init__(_Selector(self.clock, self.is_held))

    def time(self) -> float:
        return self.clock.monotonic()

    def is_held(self) -> bool:
        """Whether a thread works for this loop."""
        return bool(self._working) or any(executor._busy for executor in self._executors)

    def run_forever(self) -> None:
        with self._watching():
            super().run_forever()

    def hold(self, work: concurrent.futures.Future[Any]) -> None:
        """Let no time pass until `work` has ended and the loop has its result."""
        self._working.add(work)
        work.add_done_callback(self._on_done)

    def _on_done(self, work: concurrent.futures.Future[Any]) -> None:
        if not self.is_closed():
            self.call_soon_threadsafe(self._working.discard, work)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Hold the time during all work that threads begin for this loop."""
        wrap, begin = asyncio.futures.wrap_future, ThreadExecutor.__init__

        def wrap_future(future: Any, *, loop: asyncio.AbstractEventLoop | None = None) -> Any:
            wrapped = wrap(future, loop=loop)
            if isinstance(future, concurrent.futures.Future):
                self.hold(future)  # registered after the callback with the result, which runs first
            return wrapped

        def begun(executor: ThreadExecutor, *about: Any, **more: Any) -> None:
            begin(executor, *about, **more)
            self._executors.append(executor)

        asyncio.futures.wrap_future = asyncio.wrap_future = wrap_future
        ThreadExecutor.__init__ = begun  # type: ignore[method-assign]
        try:
            yield
        finally:
            asyncio.futures.wrap_future = asyncio.wrap_future = wrap
            ThreadExecutor.__init__ = begin  # type: ignore[method-assign]


@contextmanager
def virtual_system_clock(clock: VirtualTime) -> Iterator[None]:
    """Let the system clock, which is the default clock of every application, show this time."""
    real = SystemClock.now, SystemClock.monotonic
    SystemClock.now = lambda self: clock.now()  # type: ignore[method-assign]
    SystemClock.monotonic = lambda self: clock.monotonic()  # type: ignore[method-assign]
    try:
        yield
    finally:
        SystemClock.now, SystemClock.monotonic = real  # type: ignore[method-assign]
