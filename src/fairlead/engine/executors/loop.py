"""Asynchronous handlers on the event loop.

A few long-lived runners take the runs from one queue. A handler that never waits needs no
asyncio task of its own: its runner continues with the next run. A runner that starts a
handler while more runs are queued makes another runner ready, so there are as many runners as
handlers that wait.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, cast

from fairlead.clock import Clock
from fairlead.declare.current import current_run, set_run
from fairlead.engine.run import Run

Finished = Callable[[Run, Any, BaseException | None, int], None]
"""Callback in the event loop: the run, its result, its exception, and the instant of its end
(microseconds)."""

Invoke = Callable[[Run], Awaitable[Any]]
"""Call the handler of a run, with its interceptors and transaction."""


class Executor(Protocol):
    """Executes the runs of one kind."""

    def start(self, runs: Iterable[Run]) -> None:
        """Queue runs to begin as soon as possible."""

    def take_back(self) -> list[Run]:
        """Return the runs that have not started, and do not start them."""


_PATIENCE = 1.0
"""Longest time, in seconds, for a cancelled runner to end."""

_LONGEST_SLICE = 5_000
"""Microseconds after which a runner yields to the event loop."""


class _Runner(asyncio.Task[None]):
    """Asyncio task of one runner.

    A handler may keep a reference to its asyncio task, and cancel that task from a timer, an open
    timeout or a child task when the runner serves another run. Such a cancellation has no
    effect.
    """

    run: Run | None = None
    """Run under way."""
    was_cancelled = False
    """Whether anybody asked for a cancellation since the last call of `absorb_cancel`."""

    def cancel(self, msg: Any | None = None) -> bool:
        caller = current_run()
        if caller is not None and caller is not self.run:
            return False
        return self.interrupt(msg)

    def interrupt(self, msg: Any | None = None) -> bool:
        """Cancel the runner, also on a request from another run."""
        self.was_cancelled = True
        return super().cancel(msg)

    async def absorb_cancel(self) -> None:
        """Discard cancellations meant for the run that has ended, delivered or not. Raise
        CancelledError for a cancellation that comes meanwhile."""
        self.was_cancelled = False
        try:
            # An undelivered cancellation hits the next await; Python 3.11 and 3.12 keep it even
            # after `uncancel`.
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self.was_cancelled:
                raise
        while self.cancelling():
            self.uncancel()


class LoopExecutor:
    """The runners: never more than there are runs. An exception in a runner ends `run`.
    `stop` ends all runners but those whose handlers ignore their cancellation."""

    def __init__(self, clock: Clock, invoke: Invoke, finished: Finished) -> None:
        self._clock = clock
        self._invoke = invoke
        self._finished = finished
        self._context = contextvars.copy_context()
        """Context variables with which each run begins."""
        self._context.run(set_run, None)
        self._variables = [*self._context.items()]
        self._queue: deque[Run] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._runners: set[_Runner] = set()
        self._getting_ready = False
        self._is_stopping = False
        self._run_task: asyncio.Task[Any] | None = None
        """Asyncio task of `run`."""
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Raise the exception of a runner that failed."""
        self._run_task = asyncio.current_task()
        await self._broken

    def start(self, runs: Iterable[Run]) -> None:
        """Queue runs to begin as soon as possible."""
        self._queue.extend(runs)
        self._get_one_ready()

    def take_back(self) -> list[Run]:
        """Return the runs that have not started, and do not start them."""
        waiting = list(self._queue)
        self._queue.clear()
        return waiting

    async def stop(self) -> int:
        """End the runners; return how many continue because their handlers ignore the
        cancellation."""
        self._is_stopping = True
        for runner in self._runners:
            runner.interrupt()
        if self._runners:
            await asyncio.wait(self._runners, timeout=_PATIENCE)
        return len(self._runners)

    @property
    def _is_ending(self) -> bool:
        """Whether the runners must end: `stop` was called, or `run` is cancelled."""
        return self._is_stopping or (self._run_task is not None and self._run_task.cancelling() > 0)

    def _get_one_ready(self) -> None:
        if self._getting_ready or not self._queue:
            return
        self._getting_ready = True
        while self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)
                return
        loop = asyncio.get_running_loop()
        runner = _Runner(
            self._run(), loop=loop, name="fairlead-runner", context=self._context.copy()
        )
        self._runners.add(runner)
        runner.add_done_callback(self._ended)

    def _ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(cast(_Runner, runner))
        if runner.cancelled():
            if not self._is_ending:  # it may have been the one that was getting ready
                self._getting_ready = False
                self._get_one_ready()
        elif (error := runner.exception()) is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def _run(self) -> None:
        queue, clock = self._queue, self._clock
        runner = asyncio.current_task()
        assert isinstance(runner, _Runner)
        interrupt = runner.interrupt
        while not self._is_ending:
            self._getting_ready = False
            now = clock.now()
            slice_ends = now + _LONGEST_SLICE
            while queue:
                run = queue.popleft()
                if queue:
                    self._get_one_ready()
                result: Any = None
                error: BaseException | None = None
                runner.run = run
                run.interrupt = interrupt
                set_run(run)
                try:
                    run.start(now)
                    result = await self._invoke(run)
                except BaseException as raised:  # whatever the handler raised ends the run only
                    if self._ends_runner(runner, run, raised):
                        raise
                    error = raised
                set_run(None)
                run.interrupt = None
                runner.run = None
                now = (
                    clock.now()
                )  # one reading of the clock for the end of this run and the start of the next
                self._finished(run, result, error, now)
                if runner.was_cancelled:
                    await runner.absorb_cancel()
                if self._is_context_changed():
                    self._get_one_ready()
                    return
                if now > slice_ends:
                    await asyncio.sleep(0)
                    now = clock.now()
                    slice_ends = now + _LONGEST_SLICE
            future = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future

    def _is_context_changed(self) -> bool:
        """Return whether a handler has left context variables behind, which no other handler may
        see."""
        current = contextvars.copy_context()
        if len(current) != len(self._variables):
            return True
        for variable, value in self._variables:  # noqa: SIM110  a generator costs more than this
            if current.get(variable) is not value:
                return True
        return False

    def _ends_runner(self, runner: _Runner, run: Run, raised: BaseException) -> bool:
        """Return whether an exception was not raised by the handler, but thrown into it to end its
        runner: at the end of the node, or because the loop has closed the runner."""
        # Not isinstance, which runs code of the exception: it looks at `__class__`.
        if issubclass(type(raised), asyncio.CancelledError):
            return runner.was_cancelled and run.cancel_reason is None and self._is_ending
        return issubclass(type(raised), GeneratorExit) and not _is_current(runner)


def _is_current(runner: asyncio.Task[None]) -> bool:
    try:
        return asyncio.current_task() is runner
    except RuntimeError:  # no loop runs
        return False
