"""Synchronous handlers, each in a thread of a small pool."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

from fairlead.clock import Clock
from fairlead.declare.current import set_run
from fairlead.engine.execution import Execution
from fairlead.engine.executors.loop import Finished

Call = Callable[[Execution], Any]
"""Run the handler of an execution in this thread, with its transaction."""


class ThreadExecutor:
    """A pool of threads, at most `size` of them, started when needed and kept.

    A thread cannot be interrupted. A handler that was asked to stop (`current_task().cancelled`)
    keeps its thread until it returns, and its return value is dropped.
    """

    def __init__(self, clock: Clock, size: int, call: Call, finished: Finished) -> None:
        self._clock = clock
        self._size = size
        self._call = call
        self._finished = finished
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Execution | None] = SimpleQueue()
        self._ended: deque[tuple[Execution, Any, BaseException | None]] = deque()
        self._lock = threading.Lock()
        self._collect_scheduled = False
        self._threads = 0
        self._busy = 0

    def start(self, executions: Iterable[Execution]) -> None:
        """Queue executions to run as soon as a thread is idle."""
        for execution in executions:
            self._busy += 1
            if self._busy > self._threads and self._threads < self._size:
                self._threads += 1
                # Daemon threads, so that a handler that never returns does not keep the process
                # alive.
                threading.Thread(
                    target=self._run, name=f"fairlead-handler-{self._threads}", daemon=True
                ).start()
            self._queue.put(execution)

    def take_back(self) -> list[Execution]:
        """Return the executions that have not started, and do not start them."""
        waiting = []
        while not self._queue.empty():
            execution = self._queue.get_nowait()
            if execution is not None:
                self._busy -= 1
                waiting.append(execution)
        return waiting

    def stop(self) -> None:
        """End the idle threads."""
        for _ in range(self._threads):
            self._queue.put(None)

    def _run(self) -> None:
        while (execution := self._queue.get()) is not None:
            result: Any = None
            error: BaseException | None = None
            if execution.cancel_reason is None:  # else the run was stopped before it began
                set_run(execution)
                try:
                    execution.start(self._clock.now())
                    result = self._call(execution)
                except BaseException as raised:  # also SystemExit, which would end the thread
                    error = raised
                set_run(None)
            with self._lock:
                self._ended.append((execution, result, error))
                must_schedule = not self._collect_scheduled
                self._collect_scheduled = True
            if must_schedule:
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:
                    return  # the node ended without this handler: its loop is closed

    def _collect(self) -> None:
        with self._lock:
            ended = list(self._ended)
            self._ended.clear()
            self._collect_scheduled = False
        for execution, result, error in ended:
            self._busy -= 1
            self._finished(execution, result, error, self._clock.now())
