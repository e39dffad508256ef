"""A worker process of this interpreter that ends with this process, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from fairlead.app import App
from fairlead.engine.executors.child import end_with_parent
from fairlead.errors import FairleadError

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0


class WorkerEnded(FairleadError):
    """A worker process ended by itself; the text has the end of its log."""


class WorkerProcess:
    """A `fairlead worker` process of one application, started and stopped by `with`. On Linux it
    ends with this process, even by kill -9."""

    def __init__(
        self, application: str, folder: Path, environment: Mapping[str, str], *options: str
    ) -> None:
        """`folder`: of the log. `options`: of the command."""
        self._command = [sys.executable, "-m", "fairlead", "worker", application, *options]
        self._log = folder / "worker.log"
        self._environment = {**os.environ, **environment}
        self._pause = threading.Event()

    def __enter__(self) -> WorkerProcess:
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C reaches only this process, which stops the worker.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Send SIGTERM, and SIGKILL to a worker that has not ended in time, or after an error."""
        if kind is not None:
            self._process.kill()
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait_until_up(self, app: App, nodes: int = 1) -> None:
        """Wait until so many nodes serve this store. Raise WorkerEnded if the worker ends, or if
        they are not up in time."""
        deadline = time.monotonic() + _START_SECONDS
        while len(app.management.nodes()) < nodes:
            self.check()
            if time.monotonic() > deadline:
                raise WorkerEnded(f"the worker is not up after {_START_SECONDS:.0f} s")
            self._pause.wait(0.05)

    def check(self) -> None:
        """Raise WorkerEnded if the worker has ended."""
        if self._process.poll() is not None:
            log_end = self._log.read_text(errors="replace").strip()[-2000:]
            raise WorkerEnded(
                f"the worker ended with code {self._process.returncode}; the end of its"
                f" log:\n{log_end}"
            )

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self._process.kill()
        self._process.wait()
