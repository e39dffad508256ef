"""Synchronous handlers, each in a thread of a small pool."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

from fairlead.clock import Clock
from fairlead.declare.current import set_run
from fairlead.engine.executors.loop import Finished
from fairlead.engine.run import Run

log = logging.getLogger("fairlead.node")

Call = Callable[[Run], Any]
"""Call the handler of a run in this thread, with its transaction."""


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
        self._context = contextvars.copy_context()
        """Context of each run: the node's, with the variables that the lifespan has set."""
        self._queue: SimpleQueue[Run | None] = SimpleQueue()
        self._ended: deque[tuple[Run, Any, BaseException | None]] = deque()
        self._lock = threading.Lock()
        self._collect_scheduled = False
        self._threads = 0
        self._busy = 0

    def start(self, runs: Iterable[Run]) -> None:
        """Queue runs to begin as soon as a thread is idle."""
        for run in runs:
            self._busy += 1
            error = None
            if self._busy > self._threads and self._threads < self._size:
                error = self._start_thread()
            if error is not None and not self._threads:
                run.started_at = self._clock.now()
                self._end(run, None, error)
            else:
                self._queue.put(run)

    def _start_thread(self) -> RuntimeError | None:
        """Start one more thread; return the error if the machine has none left."""
        # Daemon threads, so that a handler that never returns does not keep the process alive.
        name = f"fairlead-handler-{self._threads + 1}"
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError as error:
            log.warning("no thread can be started for a handler", extra={"error": str(error)})
            return error
        self._threads += 1
        return None

    def take_back(self) -> list[Run]:
        """Return the runs that have not started, and do not start them."""
        waiting = []
        while not self._queue.empty():
            run = self._queue.get_nowait()
            if run is not None:
                self._busy -= 1
                waiting.append(run)
        return waiting

    def stop(self) -> None:
        """End the idle threads."""
        for _ in range(self._threads):
            self._queue.put(None)

    def _run(self) -> None:
        while (run := self._queue.get()) is not None:
            result: Any = None
            error: BaseException | None = None
            try:
                # A copy, so that no other handler sees the context variables of this one.
                result = self._context.copy().run(self._run_one, run)
            except BaseException as raised:  # also SystemExit, which would end the thread
                error = raised
            try:
                self._end(run, result, error)
            except RuntimeError:
                return  # the node ended without this handler: its loop is closed

    def _run_one(self, run: Run) -> Any:
        set_run(run)
        run.start(self._clock.now())
        return self._call(run)

    def _end(self, run: Run, result: Any, error: BaseException | None) -> None:
        """Pass the end of a run to the event loop. Raise RuntimeError if the loop is closed."""
        with self._lock:
            self._ended.append((run, result, error))
            must_schedule = not self._collect_scheduled
            self._collect_scheduled = True
        if must_schedule:
            self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        with self._lock:
            ended = list(self._ended)
            self._ended.clear()
            self._collect_scheduled = False
        for run, result, error in ended:
            self._busy -= 1
            self._finished(run, result, error, self._clock.now())
