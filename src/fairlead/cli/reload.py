"""`fairlead worker --reload`: the same worker, started again whenever Python code changes below the
current folder or another one of sys.path that has no installed packages."""

from __future__ import annotations

import logging
import os
import signal
import site
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead.engine.executors.child import end_with_parent
from fairlead.errors import ConfigurationError

log = logging.getLogger("fairlead.worker")

_STOPS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


def run_again(arguments: Sequence[str], drain: float) -> int:
    """Run `fairlead` with these arguments until a signal; return its exit code. A second signal
    ends it at once. After a change it ends as after SIGTERM, or by a kill after `drain` seconds and
    five more, and starts again. A worker that has ended by itself, as after a syntax error, starts
    again after the next change. Raise ConfigurationError without watchfiles."""
    try:
        from watchfiles import PythonFilter, watch
    except ImportError as error:
        raise ConfigurationError(
            "--reload needs watchfiles: pip install 'fairlead[reload]'"
        ) from error
    stopped = threading.Event()
    worker: subprocess.Popen[bytes] | None = None

    def stop(number: int, frame: Any) -> None:
        if stopped.is_set() and worker is not None:
            worker.send_signal(signal.SIGTERM)  # its second one: it ends at once
        stopped.set()

    with _signals(stop):
        worker = _start(arguments)
        try:
            folders = {os.path.realpath(each) for each in (".", *_own_folders())}
            for changes in watch(*folders, watch_filter=PythonFilter(), stop_event=stopped):
                files = sorted({path for _, path in changes})
                log.info("code has changed: starting again", extra={"files": files[:5]})
                _end(worker, drain)
                if stopped.is_set():
                    break
                worker = _start(arguments)
        finally:
            code = _end(worker, drain)
    return code


def _own_folders() -> list[str]:
    """Return the folders of sys.path that have no installed packages: that of manage.py, and what
    it or PYTHONPATH added."""
    installed = [*site.getsitepackages(), site.getusersitepackages()]
    installed += [sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "scripts")]
    return [
        each
        for each in sys.path
        if os.path.isdir(each) and not any(map(Path(each).is_relative_to, installed))
    ]


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    # In a session of its own, so that Ctrl-C reaches it through us: one that came while the worker
    # drains after a change would end its running tasks at once.
    return subprocess.Popen(
        [sys.executable, "-m", "fairlead", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(_own_folders())},
        start_new_session=True,
        preexec_fn=end_with_parent,
    )


def _end(worker: subprocess.Popen[bytes], drain: float) -> int:
    if worker.poll() is None:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(drain + 5)
        except subprocess.TimeoutExpired:
            worker.kill()
    return worker.wait()


@contextmanager
def _signals(stop: Callable[[int, Any], None]) -> Iterator[None]:
    before = {number: signal.signal(number, stop) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
