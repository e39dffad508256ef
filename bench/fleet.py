"""Measure fleets of worker processes that share one queue with one partition.

    python bench/fleet.py scale            # 1, 2, 4 and 8 workers: tasks per second
    python bench/fleet.py latency          # from submit to start: at the owner, and granted
    python bench/fleet.py kills            # kill -9 of a worker, ten times, at 800 tasks/s
    python bench/fleet.py kills --store postgres

`kills` prints the longest time between two starts of tasks, and how long tasks waited.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fairlead.errors import StoreUnavailable  # noqa: E402
from services.postgres import PostgresServer  # noqa: E402

WORKERS = (1, 2, 4, 8)
RATE = 800
"""Tasks per second during the kills."""
EVERY = 0.05
"""Seconds between two submits of a load."""
KILLS = 10
PAUSE = 6.0
"""Seconds between two kills: longer than a worker needs to start and to join the others."""
LEAD = 3.0
"""Seconds of load before the first kill."""
SINGLES = 200
"""Tasks of which the latency is measured, one after the other."""
SETTLE = 6.0
"""Seconds in which workers that serve learn of each other: two heartbeats."""


class Fleet:
    """Worker processes on one store, and what they ran."""

    def __init__(self, url: str, folder: Path, concurrency: int) -> None:
        self._trace = folder / "trace"
        os.environ |= {"FLEET_URL": url, "FLEET_TRACE": str(self._trace)}
        self._folder, self._concurrency = folder, concurrency
        self.module: Any = import_module("bench.fleet_app")
        self.app = self.module.app
        self.app.migrate()
        self.workers: list[subprocess.Popen[bytes]] = []
        self._number = itertools.count()

    def start(self) -> subprocess.Popen[bytes]:
        """Start one worker more."""
        log = (self._folder / f"worker{next(self._number)}.log").open("wb")
        command = [sys.executable, "-m", "fairlead", "worker", "bench.fleet_app:app"]
        options = ["--concurrency", str(self._concurrency), "--log-level", "info"]
        worker = subprocess.Popen([*command, *options], cwd=ROOT, stdout=log, stderr=log)
        self.workers.append(worker)
        return worker

    def wait_until_serving(self, count: int) -> None:
        """Wait until `count` workers have ever begun to serve, then until they know each other."""
        while self.logs.count("node started") < count:
            time.sleep(0.05)
        time.sleep(SETTLE)

    @property
    def logs(self) -> str:
        """Return the log lines of all workers."""
        return "".join(log.read_text() for log in sorted(self._folder.glob("worker*.log")))

    def runs(self) -> list[tuple[float, float, int]]:
        """Return the instants of submit and start, and the process, of every run."""
        lines = self._trace.read_text().splitlines() if self._trace.exists() else []
        return [(float(at), float(start), int(pid)) for at, start, pid in map(str.split, lines)]

    def left(self) -> int:
        """Return how many tasks have not ended."""
        store = self.app.store
        left: int = store.database.read_now(store.unfinished(["fleet"]))[0]
        return left

    def drain(self) -> None:
        """Wait until all tasks have ended."""
        while self.left():
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop all workers."""
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.wait()
        self.app.close()


class Load:
    """A thread that submits tasks at a rate, and notes which ones were acknowledged."""

    def __init__(self, one: Fleet, rate: float) -> None:
        self._task = one.module.quick
        self._count = round(rate * EVERY)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[float] = []
        """Names of tasks: instants, no two of which are equal."""
        self.instants: list[float] = []
        """Instants of acknowledgements."""
        self.refusals: Counter[type[StoreUnavailable]] = Counter()
        """Submits that were not acknowledged, by their error."""
        self._thread.start()

    def stop(self) -> None:
        """Submit no more."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._is_over.is_set():
            due = max(due + EVERY, time.monotonic() - 1.0)
            time.sleep(max(0.0, due - time.monotonic()))
            first = round(time.time() * 1_000_000)
            names = [(first + n) / 1_000_000 for n in range(self._count)]
            try:
                self._task.submit_many([{"at": name} for name in names])
            except StoreUnavailable as error:
                self.refusals[type(error)] += 1
                continue  # these may have been written
            self.acknowledged += names
            self.instants.append(time.time())


@contextmanager
def fleet(url: str, concurrency: int) -> Iterator[Fleet]:
    """Run a fleet, without workers at first."""
    with tempfile.TemporaryDirectory() as folder:
        one = Fleet(url, Path(folder), concurrency)
        try:
            yield one
        finally:
            one.stop()


def at_percent(values: list[float], percent: float) -> float:
    """Return a percentile, in milliseconds."""
    ordered = sorted(values)
    return round(1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))], 1)


def scale(url: str, workers: int, name: str, tasks: int) -> dict[str, Any]:
    """Return tasks per second of a fleet, and how many tasks each worker ran."""
    with fleet(url, concurrency=4) as one:
        for _ in range(workers):
            one.start()
        one.wait_until_serving(workers)
        task = getattr(one.module, name)
        task.submit_many([{"at": time.time()} for _ in range(tasks)])
        one.drain()
        starts = [start for _, start, _ in one.runs()]
        shares = Counter(pid for _, _, pid in one.runs())
        seconds = max(starts) - min(starts)
        return {
            "workers": workers,
            "task": name,
            "per_second": round(tasks / seconds),
            "shares": sorted(shares.values()),
        }


def latency(url: str, is_granted: bool) -> dict[str, Any]:
    """Return how long single tasks wait until they start: run by the owner of the partition, or
    granted by it to a second worker, because it has no free slot."""
    with fleet(url, concurrency=1) as one:
        one.start()
        one.wait_until_serving(1)
        if is_granted:
            one.module.hold.submit(at=time.time())
            while not one.runs():
                time.sleep(0.05)
            one.start()
            one.wait_until_serving(2)
        held = len(one.runs())
        for number in range(SINGLES):
            one.module.quick.submit(at=time.time())
            while len(one.runs()) <= held + number:
                time.sleep(0.001)
            time.sleep(0.02)
        waits = [start - at for at, start, _ in one.runs()[held:]]
        for worker in one.workers:
            worker.kill()  # one of them never ends its task
        return {
            "is_granted": is_granted,
            "wait_p50_ms": at_percent(waits, 50),
            "wait_p99_ms": at_percent(waits, 99),
        }


def kills(url: str, log: Path | None) -> dict[str, Any]:
    """Kill one of three workers again and again under load."""
    with fleet(url, concurrency=100) as one:
        for _ in range(3):
            one.start()
        one.wait_until_serving(3)
        load = Load(one, RATE)
        time.sleep(LEAD)
        killed = []
        for _ in range(KILLS):
            victim = one.workers.pop(0)  # the oldest
            victim.kill()
            killed.append(time.time())
            victim.wait()
            one.start()
            time.sleep(PAUSE)
        load.stop()
        one.drain()
        runs, logs = one.runs(), one.logs
        if log:
            log.write_text(logs)
    starts = sorted(start for _, start, _ in runs)
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    waits = [start - at for at, start, _ in runs]
    by_kill = [
        max(
            (b - a for a, b in itertools.pairwise(starts) if at - 0.1 <= b <= at + PAUSE), default=0
        )
        for at in killed
    ]
    return {
        "runs": len(runs),
        "longest_gap_ms": round(1000 * max(gaps), 1),
        "gaps_ms": [round(1000 * gap) for gap in by_kill],
        "median_gap_of_kills_ms": round(1000 * median(by_kill)),
        "wait_p50_ms": at_percent(waits, 50),
        "wait_p99_ms": at_percent(waits, 99),
        "wait_max_ms": at_percent(waits, 100),
    }


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["scale", "latency", "kills"])
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS)
    parser.add_argument("--log", type=Path, help="keep the logs of the workers in this file")
    parser.add_argument(
        "--only", nargs=3, metavar=("URL", "WORKERS", "TASK"), help="measure one fleet; for scale"
    )
    parser.add_argument("--granted", metavar="URL", help="measure granted tasks; for latency")
    given = parser.parse_args()
    if given.only:
        url, workers, name = given.only
        tasks = (3000 if name == "busy" else 2000) * int(workers)
        print(json.dumps(scale(url, int(workers), name, tasks)))
        return
    if given.granted:
        print(json.dumps(latency(given.granted, is_granted=True)))
        return
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(PostgresServer()) if given.store == "postgres" else None
        number = itertools.count()

        def new_url() -> str:
            if server is not None:
                return server.create_database()
            return f"sqlite:///{folder}/{next(number)}.db"

        if given.what == "kills":
            print(json.dumps(kills(new_url(), given.log)))
            return
        if given.what == "latency":
            print(json.dumps(latency(new_url(), is_granted=False)), flush=True)
            command = [sys.executable, __file__, "latency", "--granted", new_url()]
            subprocess.run(command, check=True)
            return
        for name in ("busy", "pause"):
            for workers in given.workers:
                # Each in a process of its own, because an application has one URL.
                command = [sys.executable, __file__, "scale", "--only", new_url()]
                subprocess.run([*command, str(workers), name], check=True)


if __name__ == "__main__":
    main()
