"""A process that sends alerts to a webhook and kills itself with SIGKILL at a chosen step, again and
again. Steps are the lines of the webhook's code, and the calls of the HTTP client.

Arguments: URL, folder, "fresh" or "waiting", and the distance between two of the steps. Prints the
number of steps at the end.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import ssl
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import httpcore

from fairlead.pipeline import durable
from fairlead.pipeline.alerts import webhook
from fairlead.pipeline.alerts.webhook import Notice, Webhook

ALERTS = [Notice(f"id-{n}", "open", "stall", "q", "*", "2026", "2026", n, "text") for n in range(2)]
LINES = (webhook.__file__, durable.__file__)
CALLS = tuple(
    str(Path(httpcore.__file__).parent / name)
    for name in ("_sync/connection_pool.py", "_sync/connection.py", "_sync/http11.py")
)
CALLS += (str(Path(httpcore.__file__).parent / "_backends/sync.py"),)


def count_steps(kill_at: int) -> None:
    """Count the steps of this process, and kill it at one of them."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if file in LINES or (file in CALLS and event in ("call", "return")):
            step()
        return trace if file in LINES or file in CALLS else None

    sys.settrace(trace)


def send(url: str, file: Path, batch: list[Notice], kill_at: int = 0) -> None:
    """Send alerts as a new process of `pipeline alerts` does."""
    if kill_at:
        count_steps(kill_at)
    Webhook(url, file).send(batch)


def in_child(run: Callable[[], object]) -> bool:
    """Run in a forked process; return whether it was killed."""
    pid = os.fork()
    if not pid:
        run()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFSIGNALED(status)


def main(url: str, folder: Path, kind: str, distance: int) -> None:
    """Kill a sender at each step in turn, until one gets to its end."""
    logging.disable()
    certificates = ssl.create_default_context()  # once instead of in each process
    ssl.create_default_context = lambda *_, **__: certificates
    for kill_at in itertools.count(1, distance):
        target, file = f"{url}/{kind}/{kill_at}", folder / str(kill_at) / "webhook.json"
        batch = ALERTS
        if kind == "waiting":  # the batch is over: only the file has the alerts
            in_child(partial(send, "http://127.0.0.1:1/", file, ALERTS))
            batch = []

        was_killed = in_child(partial(send, target, file, batch, kill_at))
        in_child(
            partial(send, target, file, batch)
        )  # the restart; Spark repeats a batch that was interrupted
        if not was_killed:
            break
    print(kill_at)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
