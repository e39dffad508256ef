"""Real worker processes, which tests kill and start again, each by its own pid."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests import tiers
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


class Crew:
    """A number of `fairlead worker` processes. `application`: what the next started process
    serves."""

    def __init__(
        self,
        url: str,
        folder: Path,
        size: int,
        seed: int | None = None,
        seconds: float | None = None,
        application: str = "crash_app:app",
    ) -> None:
        self.application = application
        self.trace = folder / "trace"
        self.log = folder / "workers.log"
        self.seed = tiers.seed() if seed is None else seed
        self.random = random.Random(self.seed)
        self.killed: dict[int, float] = {}
        """Time of death of each killed process, by pid."""
        self._environment = {
            **os.environ,
            "CRASH_URL": url,
            "CRASH_TRACE": str(self.trace),
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{Path(__file__).parent}",
        }
        if seconds is not None:
            self._environment["CRASH_SLEEP"] = str(seconds)
        self.processes = [self.start() for _ in range(size)]

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "fairlead",
                    "worker",
                    self.application,
                    "--drain",
                    "5",
                    "--log-level",
                    "info",
                    "--concurrency",
                    os.environ.get("CRASH_CONCURRENCY", "100"),
                ],
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def kill_one(self) -> None:
        """Kill a random worker with `kill -9` and start another in its place."""
        number = self.random.randrange(len(self.processes))
        victim = self.processes[number]
        victim.kill()
        victim.wait()
        self.killed[victim.pid] = time.time()
        self.processes[number] = self.start()

    @property
    def started(self) -> int:
        """Return the number of workers that have begun to serve."""
        return self.log.read_text().count("node started")

    def wait_until(self, is_so: Callable[[], object]) -> None:
        """Wait until the condition is true. If patience ends, show what the workers said last."""
        try:
            wait_until(is_so)
        except TimeoutError as error:
            error.add_note(f"seed {self.seed}; workers said:\n{self.log.read_text()[-4000:]}")
            raise

    def runs(self) -> dict[int, list[tuple[int, float]]]:
        """Return (pid, time) of every run, by task number."""
        runs: dict[int, list[tuple[int, float]]] = {}
        if self.trace.exists():
            for line in self.trace.read_text().splitlines():
                n, pid, at = line.split()
                runs.setdefault(int(n), []).append((int(pid), float(at)))
        return runs

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
