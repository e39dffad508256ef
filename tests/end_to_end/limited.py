"""Workers of `limited_app` that are killed and stopped, and the number of their concurrent runs as
counted from outside."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests import tiers
from tests.end_to_end.workers import ROOT


class Observed(NamedTuple):
    """Counts of concurrent runs, and of faults of the workers."""

    most: dict[str, int]
    """Greatest number of concurrent runs, by level."""
    starts: int
    kills: int
    stops: int
    ended_by_watchdog: int
    """Workers that were stopped and ended by their watchdogs."""
    seed: int


class Limited:
    """`size` workers, each started again when it dies. A run of a task ends with its last line, or
    with its process."""

    def __init__(
        self,
        url: str,
        coordinator: str | None,
        folder: Path,
        size: int,
        permit_seconds: float,
        seed: int | None = None,
    ) -> None:
        self.trace = folder / "limited-trace"
        self.log = folder / "limited.log"
        self.seed = tiers.seed() if seed is None else seed
        self._chance = random.Random(self.seed)
        self._permit_seconds = permit_seconds
        self._environment = {
            **os.environ,
            "LIMITED_URL": url,
            "LIMITED_COORDINATOR": coordinator or "",
            "LIMITED_TRACE": str(self.trace),
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        }
        self._deaths: list[tuple[float, int]] = []
        self._stopped: set[int] = set()
        self._killed: set[int] = set()
        self._stops = 0
        self._lock = threading.Lock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._is_over = False
        self._guards = [threading.Thread(target=self._keep_running) for _ in range(size)]

    def run(
        self, seconds: float, stop_seconds: float, disturb: Callable[[], None] = lambda: None
    ) -> Observed:
        """Kill and stop workers at random for `seconds`, and call `disturb` now and then."""
        for guard in self._guards:
            guard.start()
        waking: list[threading.Timer] = []
        ends = time.monotonic() + seconds
        try:
            while (left := ends - time.monotonic()) > 0:
                # Wait between two faults.
                time.sleep(min(left, self._chance.uniform(1.0, 4.0)))
                self._disturb_one(stop_seconds, waking)
                if self._chance.random() < 0.3:
                    disturb()
        finally:
            self._end(waking)
        return self._counts()

    def _disturb_one(self, stop_seconds: float, waking: list[threading.Timer]) -> None:
        # The watchdog may end the worker at any moment; `send_signal` ignores processes that ended.
        with self._lock:
            victims = sorted(self._running.keys() - self._stopped)
            if not victims:
                return
            pid = self._chance.choice(victims)
            victim = self._running[pid]
            if self._chance.random() < 0.4:
                self._killed.add(pid)
                victim.send_signal(signal.SIGKILL)
            else:
                self._stopped.add(pid)
                self._stops += 1
                victim.send_signal(signal.SIGSTOP)
                waking.append(threading.Timer(stop_seconds, self._wake, (victim,)))
                waking[-1].start()

    def _end(self, waking: list[threading.Timer]) -> None:
        """Continue stopped workers, end all workers and wait for them."""
        for timer in waking:
            timer.cancel()
        with self._lock:
            self._is_over = True
            for worker in self._running.values():
                worker.send_signal(signal.SIGCONT)
                worker.send_signal(signal.SIGTERM)
        for guard in self._guards:
            guard.join()

    def _keep_running(self) -> None:
        while True:
            with self._lock, self.log.open("ab") as log:
                if self._is_over:
                    return
                worker = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "tests.end_to_end.limited_app",
                        str(self._permit_seconds),
                    ],
                    cwd=ROOT,
                    env=self._environment,
                    stdout=log,
                    stderr=log,
                )
                self._running[worker.pid] = worker
            worker.wait()
            died = time.monotonic()
            with self._lock:
                del self._running[worker.pid]
                self._deaths.append((died, worker.pid))

    def _wake(self, worker: subprocess.Popen[bytes]) -> None:
        with self._lock:
            if worker.pid in self._running:
                self._stopped.discard(worker.pid)
                worker.send_signal(signal.SIGCONT)

    def _counts(self) -> Observed:
        events = [(at, pid, "died", "", "") for at, pid in self._deaths]
        for line in self.trace.read_text().splitlines():
            at, pid, what, *task = line.split()
            events.append((float(at), int(pid), what, task[0], task[1]))
        running: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        most: Counter[str] = Counter()
        starts = 0
        for _, pid, what, name, key in sorted(events):
            if what == "died":
                running.pop(pid, None)
            elif what == "end":
                running[pid].remove((name, key))
            else:
                starts += 1
                running[pid].append((name, key))
                now = [task for those in running.values() for task in those]
                for level, count in (
                    ("total", len(now)),
                    ("payout", sum(name == "payout" for name, _ in now)),
                    ("acme", sum(key == "acme" for _, key in now)),
                ):
                    most[level] = max(most[level], count)
        by_watchdog = (self._stopped & {pid for _, pid in self._deaths}) - self._killed
        return Observed(
            dict(most), starts, len(self._killed), self._stops, len(by_watchdog), self.seed
        )
