"""Worker processes: forked where memory can be shared safely, else spawned."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from fairlead.supervisor.link import ENVIRONMENT, SupervisorEnd, WorkerEnd

log = logging.getLogger("fairlead.supervisor")

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_ENDING_SECONDS = 1.0
"""Time in which ending threads are gone."""

_NO_ACTION = (signal.SIGINT, signal.SIGHUP)
"""Signals that a terminal sends to the workers too; only the supervisor acts on them."""


class Process(Protocol):
    """A child process."""

    @property
    def pid(self) -> int:
        """Process id."""

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process lives."""

    def kill(self) -> None:
        """Kill the process at once."""


class Forked:
    """A forked child process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process lives."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def kill(self) -> None:
        """Kill the process at once."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def usable_cores(quota: Path = _QUOTA) -> int:
    """Return the number of processor cores that this process may use: its affinity, limited by the
    quota of its container."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        limit, period = quota.read_text().split()
        cores = min(cores, math.ceil(int(limit) / int(period)))  # "max" means no limit
    return max(1, cores)


def can_fork() -> bool:
    """Return whether a fork of this process is safe: on Linux, without any other thread."""
    if sys.platform != "linux":
        return False  # system libraries of macOS do not survive a fork
    # The kernel lists a thread for a moment after Python has joined it.
    until = time.monotonic() + _ENDING_SECONDS
    while not (is_alone := _is_alone()) and time.monotonic() < until:
        time.sleep(0.001)
    return is_alone


def _is_alone() -> bool:
    return threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1


def fork(
    slot: int, close_inherited: Callable[[], None], work: Callable[[WorkerEnd], int]
) -> tuple[Process, SupervisorEnd]:
    """Fork a process that does `work` and ends with the exit code it returns. `close_inherited`
    closes the sockets of the supervisor in the new process."""
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # Otherwise the collector would write to pages that the processes share.
    pid = os.fork()
    if pid:
        theirs.close()
        return Forked(pid), SupervisorEnd(ours)
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        ignore_signals_of_terminal()
        ours.close()
        close_inherited()
        code = work(WorkerEnd(theirs, slot))
    except BaseException:
        log.exception("worker failed")
    finally:
        with contextlib.suppress(Exception):
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def spawn(slot: int, arguments: Sequence[str]) -> tuple[Process, SupervisorEnd]:
    """Start a new interpreter with the arguments of this command line."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "fairlead", *arguments],
            env={**os.environ, ENVIRONMENT: f"{theirs.fileno()}:{slot}"},
            pass_fds=[theirs.fileno()],
        )
    return process, SupervisorEnd(ours)


def ignore_signals_of_terminal() -> None:
    """Do nothing on Ctrl-C and when the terminal closes. Processes started by this one get the
    default actions, which SIG_IGN would not allow."""
    for number in _NO_ACTION:
        signal.signal(number, lambda *_: None)
