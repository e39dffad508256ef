"""`fairlead worker --reload`: the same worker, started again whenever Python code changes below the
current folder."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fairlead.errors import ConfigurationError

log = logging.getLogger("fairlead.worker")

_STOPS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


def run_again(arguments: Sequence[str], drain: float) -> int:
    """Run `fairlead` with these arguments until a signal; return its exit code. After a change it
    ends as after SIGTERM, or by a kill after `drain` seconds and five more, and starts again. A
    worker that has ended by itself, as after a syntax error, starts again after the next change.
    Raise ConfigurationError without watchfiles."""
    try:
        from watchfiles import PythonFilter, watch
    except ImportError as error:
        raise ConfigurationError(
            "--reload needs watchfiles: pip install 'fairlead[reload]'"
        ) from error
    stopped = threading.Event()
    with _signals(stopped):
        worker = _start(arguments)
        try:
            for changes in watch(".", watch_filter=PythonFilter(), stop_event=stopped):
                files = sorted({path for _, path in changes})
                log.info("code has changed: starting again", extra={"files": files[:5]})
                _end(worker, drain)
                worker = _start(arguments)
        finally:
            code = _end(worker, drain)
    return code


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    # In a session of its own, so that Ctrl-C reaches it once, through us: a second one would end
    # its running tasks at once.
    return subprocess.Popen([sys.executable, "-m", "fairlead", *arguments], start_new_session=True)


def _end(worker: subprocess.Popen[bytes], drain: float) -> int:
    if worker.poll() is None:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(drain + 5)
        except subprocess.TimeoutExpired:
            worker.kill()
    return worker.wait()


@contextmanager
def _signals(stopped: threading.Event) -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        stopped.set()

    before = {number: signal.signal(number, stop) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
