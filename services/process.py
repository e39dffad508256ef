"""What every server of ours is underneath: one program with a log in its folder, ended by its own
pid."""

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
    """On Linux it also ends when the thread that started it does, a kill -9 included, by the signal
    `at_our_end`."""

    def __init__(self, name: str, at_our_end: signal.Signals) -> None:
        self._name = name
        self._at_our_end = at_our_end
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return (
            self._process.pid
            if self._process is not None and self._process.poll() is None
            else None
        )

    @property
    def was_started(self) -> bool:
        """It was, and has not been ended by us since."""
        return self._process is not None

    def start(
        self,
        command: Sequence[str],
        folder: Path,
        is_ready: Callable[[], bool],
        seconds: float,
        **user: Any,
    ) -> None:
        """Return when it is ready. Raises RuntimeError with the end of its log if it ends, or is
        not after `seconds`."""
        with (folder / "log").open("ab") as log:
            # A session of its own: the terminal's Ctrl-C is for us, and we stop it in our order.
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
                said = (folder / "log").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{self._name} did not start; the end of its log:\n{said}")

    def end(self, how: signal.Signals) -> None:
        """Send the signal and wait; kill -9 if that takes too long."""
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
        """What the child runs before it becomes the server."""

        def prepare() -> None:
            if _libc is not None:
                _libc.prctl(_PR_SET_PDEATHSIG, self._at_our_end, 0, 0, 0)
                if os.getppid() != parent:
                    os._exit(1)

        return prepare


class ForeignProcess:
    """A server's process that another process has started and will end."""

    was_started = True

    def __init__(self, pid: int) -> None:
        self.pid: int | None = pid

    def start(self, *_: Any, **__: Any) -> None:
        """Raises RuntimeError."""
        raise RuntimeError("this server is shared: start one of your own")

    def end(self, how: signal.Signals) -> None:
        """Raises RuntimeError."""
        raise RuntimeError("this server is shared: to stop one, start one of your own")


def free_port() -> int:
    """A port of the loopback nobody listens on, below those the system gives to outgoing
    connections.

    One of those could be taken by a client while the server restarts, even by one that is
    connecting to it.
    """
    for _ in range(1000):
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port between 15000 and 32000 on the loopback")
