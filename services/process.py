"""The process of a server: a program with a log in its folder."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_STOP_SECONDS = 60

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


class ServerProcess:
    """A process that we start and end.

    On Linux the kernel also sends `parent_end_signal` to the process when the thread that started
    the process ends, even by kill -9.
    """

    def __init__(self, name: str, parent_end_signal: signal.Signals) -> None:
        self._name = name
        self._parent_end_signal = parent_end_signal
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id, or None while the process does not run."""
        return (
            self._process.pid
            if self._process is not None and self._process.poll() is None
            else None
        )

    @property
    def was_started(self) -> bool:
        """True from `start` to `end`, even if the process has crashed."""
        return self._process is not None

    def start(
        self,
        command: Sequence[str],
        folder: Path,
        is_ready: Callable[[], bool],
        seconds: float,
        **user: Any,
    ) -> None:
        """Start the command and return when `is_ready` returns True.

        Raise RuntimeError with the end of the log if the process ends, or if `seconds` have passed.
        """
        with (folder / "log").open("ab") as log:
            # A new session, so that Ctrl-C in the terminal reaches us only; we stop the servers.
            process = self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
                preexec_fn=self._ends_with(os.getpid()),
                **user,
            )
        deadline = time.monotonic() + seconds
        while not is_ready():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
            if process.returncode is not None or time.monotonic() > deadline:
                output = (folder / "log").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{self._name} did not start; the end of its log:\n{output}")

    def end(self, how: signal.Signals) -> None:
        """Send the signal `how` and wait for the end; after 60 seconds, kill."""
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _ends_with(self, parent: int) -> Callable[[], None]:
        """Return the function that the child runs before it becomes the server."""

        def prepare() -> None:
            if _libc is not None:
                _libc.prctl(_PR_SET_PDEATHSIG, self._parent_end_signal, 0, 0, 0)
                if os.getppid() != parent:
                    os._exit(1)

        return prepare


class ForeignProcess:
    """The process of a server that another process has started and will end."""

    was_started = True

    def __init__(self, pid: int) -> None:
        self.pid: int | None = pid

    def start(self, *_: Any, **__: Any) -> None:
        """Raise RuntimeError."""
        raise RuntimeError("this server is shared: start one of your own")

    def end(self, how: signal.Signals) -> None:
        """Raise RuntimeError."""
        raise RuntimeError("this server is shared: to stop one, start one of your own")


def free_port() -> int:
    """Return a free port of the loopback address, below the ports of outgoing connections.

    Any client, even a client of this server, could take a port of outgoing connections while the
    server restarts.
    """
    for _ in range(1000):
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port between 15000 and 32000 on the loopback")
