"""Worker processes of this interpreter that end with this process, however it ends."""

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


class WorkerProcesses:
    """Several `fairlead worker` processes of one application, started and stopped by `with`. On
    Linux they end with this process, even by kill -9."""

    def __init__(
        self,
        application: str,
        count: int,
        folder: Path,
        environment: Mapping[str, str],
        concurrency: int | None = None,
    ) -> None:
        self._command = [sys.executable, "-m", "fairlead", "worker", application]
        if concurrency is not None:
            self._command += ["--concurrency", str(concurrency)]
        self._count = count
        self._folder = folder
        self._environment = {**os.environ, **environment}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pause = threading.Event()

    def __enter__(self) -> WorkerProcesses:
        try:
            for number in range(self._count):
                with self._log(number).open("wb") as log:
                    # A session of its own: Ctrl-C reaches only this process, which stops the
                    # workers in order.
                    process = subprocess.Popen(
                        self._command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=self._environment,
                        start_new_session=True,
                        preexec_fn=end_with_parent,
                    )
                self._processes.append(process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(at_once=kind is not None)

    def wait_until_up(self, app: App) -> None:
        """Wait until every worker serves this store. Raise WorkerEnded if a worker ends, or if some
        are not up in time."""
        deadline = time.monotonic() + _START_SECONDS
        while len(app.management.nodes()) < self._count:
            self.check()
            if time.monotonic() > deadline:
                raise WorkerEnded(f"the workers are not up after {_START_SECONDS:.0f} s")
            self._pause.wait(0.05)

    def check(self) -> None:
        """Raise WorkerEnded if a worker has ended."""
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                log_end = self._log(number).read_text(errors="replace").strip()[-2000:]
                raise WorkerEnded(
                    f"worker {number} ended with code {process.returncode}; the end of its"
                    f" log:\n{log_end}"
                )

    def kill(self) -> None:
        """Send SIGKILL to each worker, and wait for its end."""
        for process in self._processes:
            process.kill()
            process.wait()

    def stop(self, at_once: bool = False) -> None:
        """Send SIGTERM to each worker, and SIGKILL to one that has not ended in time. `at_once`:
        send SIGKILL first."""
        for process in self._processes:
            if process.poll() is None:
                process.kill() if at_once else process.terminate()
        for process in self._processes:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []

    def _log(self, number: int) -> Path:
        return self._folder / f"worker-{number}.log"
