"""Wait in threads for reads that are coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from fairlead.app import App

T = TypeVar("T")

IDLE_SECONDS = 60.0
"""Seconds after the last read until the loop ends and its connections close."""


class ReadLoop:
    """One event loop for the coroutines of all threads, so that its connections stay open between
    reads. Its thread starts with a read and ends after some idle time. Thread-safe."""

    def __init__(self, app: App, idle_seconds: float = IDLE_SECONDS) -> None:
        self._app = app
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reads = 0
        """Reads that run."""

    @property
    def is_open(self) -> bool:
        """Whether the loop runs."""
        return self._loop is not None

    def wait_for(self, reading: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result."""
        with self._lock:
            self._reads += 1
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="fairlead-console", daemon=True
                )
                self._thread.start()
            loop = self._loop
        try:
            return asyncio.run_coroutine_threadsafe(reading, loop).result()
        finally:
            with self._lock:
                self._reads -= 1
                if self._loop is loop:
                    loop.call_soon_threadsafe(self._rest, loop)

    def close(self) -> None:
        """End the loop and close its connections. Call it while nothing reads; a later read starts
        a new loop."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = self._timer = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _rest(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(self._idle_seconds, self._end, loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self._reads or self._loop is not loop:
                return  # the end of the read sets the timer again
            self._loop = self._thread = self._timer = None
        loop.stop()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(self._app.connections.close_async())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
