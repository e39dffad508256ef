"""An event loop for many simulated processes: time jumps to the next timer as soon as nothing else
can proceed, and a process can be stopped and continued.

There are no threads and no I/O, so a run depends on nothing but its seed.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from itertools import count
from typing import Any

from tests.virtual_loop import VirtualTime


class Process:
    """A simulated process: the callbacks and tasks that its first task has begun."""

    def __init__(self) -> None:
        self.is_stopped = False
        self._held: list[asyncio.Handle] = []
        """Callbacks that became due while the process was stopped."""
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)

    def stop(self) -> None:
        """Run none of its callbacks until `proceed`, as SIGSTOP does."""
        self.is_stopped = True
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FleetLoop)
        loop.stopped += 1

    def proceed(self) -> None:
        """Run the callbacks that have become due meanwhile, then go on, as SIGCONT does."""
        self.is_stopped = False
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FleetLoop)
        loop.stopped -= 1
        held, self._held = self._held, []
        loop.continue_with(held)

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep a callback that became due while the process is stopped."""
        self._held.append(handle)


MOST_ROUNDS = 100_000
"""Rounds of the loop without any progress of time, after which a run counts as endless."""

_process: ContextVar[Process | None] = ContextVar("process", default=None)


def current_process() -> Process | None:
    """Return the process of the running code; None outside of all processes."""
    return _process.get()


class FleetLoop(asyncio.BaseEventLoop):
    """The loop that this module describes."""

    _ready: deque[asyncio.Handle]

    def __init__(self, clock: VirtualTime) -> None:
        super().__init__()
        self.clock = clock
        self._rounds = 0
        """Rounds since time has moved."""
        self.stopped = 0
        """Number of stopped processes."""
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()

    def time(self) -> float:
        return self.clock.monotonic()

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        # As in the base class, without its checks of the thread and the callback.
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def continue_with(self, handles: list[asyncio.Handle]) -> None:
        """Run these callbacks next."""
        self._ready.extend(handles)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is dropped when it is due."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread wakes this loop."""

    def _process_events(self, event_list: list[object]) -> None:
        """Do nothing: there is no I/O."""

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise RuntimeError("nothing is left that could proceed")
            self.clock.advance(max(0.0, timers[0][0] - self.clock.monotonic()))
            self._rounds = 0
        self._rounds += 1
        if self._rounds > MOST_ROUNDS:
            self._rounds = 0
            raise RuntimeError("time stands still")
        now = self.clock.monotonic()
        while timers and timers[0][0] <= now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            if self.stopped:
                process = handle._context.get(_process)
                if process is not None and process.is_stopped:
                    process.hold(handle)
                    continue
            handle._run()
