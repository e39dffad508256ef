"""Asynchronous handlers on the event loop.

A few long-lived runners take the executions from one queue. A handler that never waits needs no
asyncio task of its own: its runner goes straight to the next execution. A runner that starts a
handler while more executions are queued makes another runner ready, so there are as many runners as
handlers that wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fairlead.clock import Clock
from fairlead.declare.current import set_run
from fairlead.engine.execution import Execution

Finished = Callable[[Execution, Any, BaseException | None, int], None]
"""Callback in the event loop: the execution, its result, its exception, and the instant of its end
(microseconds)."""

Invoke = Callable[[Execution], Awaitable[Any]]
"""Run the handler of an execution, with its interceptors and transaction."""

_PATIENCE = 1.0
"""Longest time, in seconds, for a cancelled runner to end."""

_LONGEST_SLICE = 5_000
"""Microseconds after which a runner yields to the event loop."""


class LoopExecutor:
    """The runners: never more than there are executions. An exception in a runner ends `run`.
    `stop` ends all runners but those whose handlers ignore their cancellation."""

    def __init__(self, clock: Clock, invoke: Invoke, finished: Finished) -> None:
        self._clock = clock
        self._invoke = invoke
        self._finished = finished
        self._queue: deque[Execution] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._getting_ready = False
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Raise the exception of a runner that failed."""
        await self._broken

    def start(self, executions: Iterable[Execution]) -> None:
        """Queue executions to run as soon as possible."""
        self._queue.extend(executions)
        self._get_one_ready()

    def take_back(self) -> list[Execution]:
        """Return the executions that have not started, and do not start them."""
        waiting = list(self._queue)
        self._queue.clear()
        return waiting

    async def stop(self) -> int:
        """End the runners; return how many go on because their handlers ignore the cancellation."""
        for runner in self._runners:
            runner.cancel()
        if self._runners:
            await asyncio.wait(self._runners, timeout=_PATIENCE)
        return len(self._runners)

    def _get_one_ready(self) -> None:
        if self._getting_ready or not self._queue:
            return
        self._getting_ready = True
        while self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)
                return
        runner = asyncio.get_running_loop().create_task(self._run(), name="fairlead-runner")
        self._runners.add(runner)
        runner.add_done_callback(self._ended)

    def _ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if (
            not runner.cancelled()
            and (error := runner.exception()) is not None
            and not self._broken.done()
        ):
            self._broken.set_exception(error)

    async def _run(self) -> None:
        queue, clock = self._queue, self._clock
        runner = asyncio.current_task()
        assert runner is not None
        while True:
            self._getting_ready = False
            now = clock.now()
            slice_ends = now + _LONGEST_SLICE
            while queue:
                execution = queue.popleft()
                if queue:
                    self._get_one_ready()
                if execution.cancel_reason is not None:  # before it began
                    self._finished(execution, None, None, now)
                    continue
                result: Any = None
                error: BaseException | None = None
                execution.start(now)
                set_run(execution)
                execution.runner = runner
                try:
                    result = await self._invoke(execution)
                except asyncio.CancelledError as cancelled:
                    if execution.cancel_reason is None:
                        raise
                    error = cancelled
                except (
                    Exception,
                    SystemExit,
                    KeyboardInterrupt,
                ) as raised:  # sys.exit() ends the run, not the worker
                    error = raised
                execution.runner = None
                set_run(None)
                if execution.cancel_reason is not None:
                    self._absorb_cancel(runner)
                now = (
                    clock.now()
                )  # one reading of the clock for the end of this run and the start of the next
                self._finished(execution, result, error, now)
                if now > slice_ends:
                    await asyncio.sleep(0)
                    now = clock.now()
                    slice_ends = now + _LONGEST_SLICE
            future = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future

    @staticmethod
    def _absorb_cancel(runner: asyncio.Task[None]) -> None:
        # The cancellation was meant for the execution, not for its runner. A cancellation not yet
        # delivered must not hit the next execution.
        while runner.cancelling():
            runner.uncancel()
