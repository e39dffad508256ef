"""The watchdog: a small process that kills a worker (SIGKILL) at the worker's deadline.

A worker may hang or be stopped by a signal while its runs still count for a cluster-wide limit.
Other nodes get its permits when they expire, so none of its runs may continue after that. The
watchdog reads each new deadline from its standard input. It needs only the standard library, so it
starts quickly."""

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
    """The worker's handle on its watchdog."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._last_line: bytes = b""

    @classmethod
    async def start(cls) -> Watchdog:
        """Start a watchdog for this process."""
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
        """Process id of the watchdog."""
        return self._process.pid

    def set_deadline(self, until: float | None, children: Collection[int]) -> None:
        """Set the deadline of this process and its children, in monotonic seconds; None means
        never. Another thread may call this while the event loop is blocked."""
        words = ["-" if until is None else repr(until), *map(str, sorted(children))]
        line = f"{' '.join(words)}\n".encode()
        if line != self._last_line and self._process.stdin is not None:
            self._last_line = line
            self._process.stdin.write(line)

    async def ended(self) -> None:
        """Wait for the end of the watchdog."""
        await self._process.wait()

    async def stop(self) -> None:
        """End the watchdog."""
        if self._process.stdin is not None:
            self._process.stdin.write(b"-\n")
            self._process.stdin.close()
        await self._process.wait()


def watch(worker: int, deadlines_fd: int) -> None:
    """Read lines `deadline pid pid ...` from the file descriptor `deadlines_fd` until it ends; at
    the deadline kill the worker and these processes. When the input ends before that, because the
    worker has ended, kill its children."""
    until: float | None = None
    children: list[int] = []
    rest = b""
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        readable, _, _ = select.select([deadlines_fd], [], [], left)
        if not readable:
            _end([worker, *children])
            return
        data = os.read(deadlines_fd, 65536)
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
