"""Runs asynchronous handlers on the event loop.

A few long-lived runners take the executions from one queue. A handler that never waits costs no
event-loop task of its own: its runner goes straight to the next. Whenever a runner starts a handler
while more are queued, it gets one other runner ready, so that as many run at once as have something
to wait for.
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
"""Called in the event loop with the execution, what it returned or raised, and when
(microseconds)."""

Invoke = Callable[[Execution], Awaitable[Any]]
"""Runs the handler of an execution, interceptors and transaction included."""

_PATIENCE = 1.0
"""Seconds a cancelled runner may take to end."""

_LONGEST_TURN = 5_000
"""Microseconds a runner goes on without letting the event loop do anything else."""


class LoopExecutor:
    """At most as many runners as executions are waiting. It is their parent: a runner that breaks
    breaks `run`, and `stop` ends them all, but for one whose handler will not be interrupted."""

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
        """Raise what breaks a runner, whenever that is."""
        await self._broken

    def start(self, executions: Iterable[Execution]) -> None:
        """Run these as soon as possible."""
        self._queue.extend(executions)
        self._get_one_ready()

    def take_back(self) -> list[Execution]:
        """Those that have not started; they will not."""
        waiting = list(self._queue)
        self._queue.clear()
        return waiting

    async def stop(self) -> int:
        """End the runners; answers how many did not, because their handlers ignore that they were
        cancelled."""
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
            turn_ends = now + _LONGEST_TURN
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
                ) as raised:  # sys.exit() ends a run, not the worker
                    error = raised
                execution.runner = None
                set_run(None)
                if execution.cancel_reason is not None:
                    self._absorb_cancel(runner)
                now = (
                    clock.now()
                )  # the end of this run is the start of the next: one look at the clock for both
                self._finished(execution, result, error, now)
                if now > turn_ends:
                    await asyncio.sleep(0)
                    now = clock.now()
                    turn_ends = now + _LONGEST_TURN
            future = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future

    @staticmethod
    def _absorb_cancel(runner: asyncio.Task[None]) -> None:
        # The cancel was meant for the execution, not for its runner; one that has not been
        # delivered yet must not hit the next execution either.
        while runner.cancelling():
            runner.uncancel()
