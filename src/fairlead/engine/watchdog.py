"""The watchdog: a small process beside a worker that ends it, by kill -9, when the time is over
that the worker was given.

A worker may be stopped as a whole, or hang, while what it was running still counts for a
cluster-wide limit. Its permits are given to others when their time is over; by then nothing of it
may run. The watchdog is told each new deadline on its standard input, and is a program of the
standard library alone, so that it is small and quick to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Collection


class Watchdog:
    """The worker's side."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._told: bytes = b""

    @classmethod
    async def start(cls) -> Watchdog:
        """Start one for this process."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            __file__,
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """Of the watchdog."""
        return self._process.pid

    def tell(self, until: float | None, children: Collection[int]) -> None:
        """Until when (monotonic seconds; None: for ever) this process and its children may live."""
        words = ["-" if until is None else repr(until), *map(str, sorted(children))]
        line = f"{' '.join(words)}\n".encode()
        if line != self._told and self._process.stdin is not None:
            self._told = line
            self._process.stdin.write(line)

    async def ended(self) -> None:
        """Return when it has ended, which it does by itself only after it has ended this
        process."""
        await self._process.wait()

    async def stop(self) -> None:
        """It is not needed any more."""
        if self._process.stdin is not None:
            self._process.stdin.write(b"-\n")
            self._process.stdin.close()
        await self._process.wait()


def watch(worker: int, told: int) -> None:
    """Until `told` (a file descriptor) ends: read lines `deadline pid pid ...`, and when the
    deadline comes, end the worker and those. A worker that is gone takes its children with it."""
    until: float | None = None
    children: list[int] = []
    rest = b""
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        readable, _, _ = select.select([told], [], [], left)
        if not readable:
            _end([worker, *children])
            return
        data = os.read(told, 65536)
        if not data:
            _end(children if until is not None else [])
            return
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            first, *others = lines[-1].split()
            until = None if first == b"-" else float(first)
            children = [int(pid) for pid in others]


def _end(processes: Collection[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    watch(int(sys.argv[1]), sys.stdin.fileno())
