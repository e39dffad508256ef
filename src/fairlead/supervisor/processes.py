"""Worker processes, each in an interpreter of its own."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fairlead.supervisor.link import ENVIRONMENT, SupervisorEnd

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_NO_ACTION = (signal.SIGINT, signal.SIGHUP)
"""Signals that a terminal sends to the workers too; only the supervisor acts on them."""


def usable_cores(quota: Path = _QUOTA) -> int:
    """Return the number of processor cores that this process may use: its affinity, limited by the
    quota of its container."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        limit, period = quota.read_text().split()
        cores = min(cores, math.ceil(int(limit) / int(period)))  # "max" means no limit
    return max(1, cores)


def spawn(slot: int, arguments: Sequence[str]) -> tuple[subprocess.Popen[bytes], SupervisorEnd]:
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
