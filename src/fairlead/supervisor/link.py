"""The link between a supervisor and one worker process: a pair of sockets.

The supervisor sends `drain`. The worker sends reports. The end of the stream tells each side that
the other process has ended, for any reason, because the kernel closes its sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from fairlead.supervisor.health import Health
from fairlead.supervisor.metrics import Family

REPORT_SECONDS = 1.0
"""Seconds between two reports."""

ENVIRONMENT = "FAIRLEAD_WORKER_LINK"
"""Environment variable of a spawned worker: the descriptor of its socket, a colon, its slot."""

_DRAIN = b"drain\n"
_PIECE = 65_536


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a worker process, from that process."""

    health: Health | None = None
    metrics: list[Family] | None = None
    error: str | None = None
    """Message of the error that ends the process."""


class SupervisorEnd:
    """The supervisor's end of a link."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end
        self._rest = b""

    def drain(self) -> None:
        """Ask the worker to end its tasks and leave."""
        with contextlib.suppress(OSError):  # the worker has ended
            self.socket.send(_DRAIN)

    def reports(self) -> list[WorkerReport]:
        """Return the reports that have come. Raise EOFError once the worker has closed its end and
        no report is left."""
        data, is_open = b"", True
        while True:
            try:
                piece = self.socket.recv(_PIECE)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            if not piece:
                is_open = False
                break
            data += piece
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not lines and not is_open:
            raise EOFError
        return [msgspec.json.decode(line, type=WorkerReport) for line in lines]

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


class WorkerEnd:
    """The worker's end of a link, served by a thread that no handler can block."""

    def __init__(self, end: socket.socket, slot: int) -> None:
        end.setblocking(True)
        self._socket = end
        self.slot = slot
        self._wake, self._woken = socket.socketpair()
        self._is_closing = False
        self._is_served = False
        self._has_closed = threading.Event()
        self._report: Callable[[], WorkerReport] = WorkerReport

    @classmethod
    def inherited(cls) -> WorkerEnd | None:
        """Return the link of a process that a supervisor has spawned; None in any other."""
        given = os.environ.pop(ENVIRONMENT, None)
        if given is None:
            return None
        descriptor, _, slot = given.partition(":")
        end = socket.socket(fileno=int(descriptor))
        end.set_inheritable(False)
        return cls(end, int(slot))

    def fail(self, message: str) -> None:
        """Report the error that ends this process."""
        self._send(WorkerReport(error=message))

    def serve(
        self, report: Callable[[], WorkerReport], drain: Callable[[], None], limit: float
    ) -> None:
        """Send `report()` each second and at each `poke`, in a thread. Call `drain` in this event
        loop when the supervisor asks for it or has ended. End the process when it outlives its
        supervisor by `limit` seconds."""
        loop = asyncio.get_running_loop()
        self._report = report

        def call_drain() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker ends
                loop.call_soon_threadsafe(drain)

        self._is_served = True
        threading.Thread(
            target=self._serve, args=(call_drain, limit), name="fairlead-link", daemon=True
        ).start()

    def poke(self) -> None:
        """Send a report now."""
        self._wake.send(b"!")

    def close(self) -> None:
        """Send the last report."""
        self._is_closing = True
        self.poke()
        if self._is_served:
            self._has_closed.wait()

    def _serve(self, drain: Callable[[], None], limit: float) -> None:
        is_closing = False
        while not is_closing:
            readable, _, _ = select.select([self._woken, self._socket], [], [], REPORT_SECONDS)
            if self._woken in readable:
                self._woken.recv(_PIECE)
            is_closing = self._is_closing
            if self._socket in readable:
                if not self._is_drain_requested():
                    break
                drain()
            if not self._send(self._report()):
                break
        self._has_closed.set()
        if not is_closing:
            drain()
            time.sleep(limit)
            os._exit(1)  # The drain did not end: leave no orphan.

    def _is_drain_requested(self) -> bool:
        """Return whether the supervisor requested a drain; False when the supervisor has ended."""
        try:
            return bool(self._socket.recv(_PIECE))
        except OSError:
            return False

    def _send(self, report: WorkerReport) -> bool:
        """Send a report; return False when the supervisor has ended."""
        try:
            self._socket.sendall(msgspec.json.encode(report) + b"\n")
        except OSError:
            return False
        return True
