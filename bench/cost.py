"""Shares of worker time on the LCG trace with three costs: counted tasks, weights tuned by mean run
time, and charged run time.

python bench/cost.py [--trace ../shared/data/lcg-2005.swf.gz] [--users 10] [--every 4] [--windows 4]
    [--seconds 60] [--slots 20] [--workers 2] [--store sqlite|postgres] [--shuffle]
    [--only counted,tuned,runtime]

The users with the most work are the fairness keys. Every n-th job of each user is taken, in the
order of the trace, or with --shuffle in an order drawn from a fixed seed, so that the run times of
a user do not change with time. A task is one job: it sleeps on the event loop of its worker for the
job's run time, scaled so that the whole takes about --seconds. Each user has 150 to 200 waiting
tasks for as long as its jobs last: new ones are submitted as others start. Tuned: each key has the
weight (median of the users' mean run times) / (its own mean run time), over the jobs that will run,
set before the first submit. Jain's index is over the worker-seconds in a window, for the keys with
waiting tasks throughout.

Print a table in Markdown. Exit code 1 unless the mean index is above 0.95 with tuned weights and
above 0.98 with run time charged.
"""

import argparse
import asyncio
import contextlib
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "src")]

from lcg_trace import jain, read_trace  # noqa: E402

import fairlead  # noqa: E402
from fairlead.lab.workers import WorkerProcess  # noqa: E402
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT  # noqa: E402

TRACE = ROOT.parent / "shared" / "data" / "lcg-2005.swf.gz"
QUEUE = "cost"
FOLDER, COST = "BENCH_COST_FOLDER", "BENCH_COST_COST"
GOALS = {"counted": 0.0, "tuned": 0.95, "runtime": 0.98}
MOST_WAITING, FEW_WAITING = 200, 150
LOOK_SECONDS = 0.05

Runs = dict[str, list[float]]
"""Run times of each key in seconds."""

Notes = list[tuple[str, float, float]]
"""(key, start, end) of each run, in seconds of wall time."""


def application(url: str | None = None, cost: str | None = None) -> tuple[fairlead.App, Any]:
    """Return the application shared by submitter and workers, and its task."""
    app = fairlead.App(url, lake="")
    workers = int(os.environ.get("BENCH_COST_WORKERS", "2"))
    app.queue(QUEUE, partitions=workers, cost=cost or os.environ.get(COST, "tasks"))
    notes: list[int] = []

    def note(line: str) -> None:
        if not notes:
            path = pathlib.Path(os.environ[FOLDER]) / f"{os.getpid()}.runs"
            notes.append(
                os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            )
        os.write(notes[0], line.encode())

    @app.task(queue=QUEUE)
    async def job(key: str, seconds: float) -> None:
        began = time.time()
        note(f"{key} {began:.6f}\n")
        await asyncio.sleep(seconds)
        note(f"{key} {began:.6f} {time.time():.6f}\n")

    return app, job


class NotedRuns:
    """Runs that the workers have noted, read as the files grow."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.started: Counter[str] = Counter()
        self.starts: dict[str, list[float]] = defaultdict(list)
        self.runs: Notes = []
        self._folder = folder
        self._read: dict[pathlib.Path, int] = {}

    def refresh(self) -> None:
        for path in self._folder.glob("*.runs"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.decode().splitlines():
                key, *times = line.split()
                if len(times) == 2:
                    self.runs.append((key, float(times[0]), float(times[1])))
                else:
                    self.started[key] += 1
                    self.starts[key].append(float(times[0]))


def jobs(trace: pathlib.Path, users: int, every: int, shuffle: bool) -> Runs:
    """Return the run times of the users with the most work in the trace."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for one in read_trace(trace):
        found[one.tenant].append(one.run)
    most = sorted(found, key=lambda key: -sum(found[key]))[:users]
    taken = {key: found[key][::every] for key in most}
    if shuffle:
        for key, runs in taken.items():
            random.Random(key).shuffle(runs)
    return taken


def measure(
    mode: str, runs: Runs, seconds: float, wanted: argparse.Namespace
) -> list[tuple[float, int]]:
    """Return Jain's index and its number of keys for each window."""
    with contextlib.ExitStack() as cleanup:
        folder = pathlib.Path(
            cleanup.enter_context(tempfile.TemporaryDirectory(prefix="bench-cost-"))
        )
        url = cleanup.enter_context(store(wanted.store, folder))
        cost = "runtime" if mode == "runtime" else "tasks"
        environment = {
            "FAIRLEAD_URL": url,
            FOLDER: str(folder),
            COST: cost,
            "BENCH_COST_WORKERS": str(wanted.workers),
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT / "bench"), *sys.path[:2], os.environ.get("PYTHONPATH", "")]
            ),
        }
        os.environ["BENCH_COST_WORKERS"] = str(wanted.workers)
        app, job = application(url, cost)
        cleanup.callback(app.close)
        app.migrate()
        each = wanted.slots // wanted.workers
        options = ["--workers", str(wanted.workers), "--concurrency", str(each)]
        with WorkerProcess("cost:app", folder, environment, *options) as workers:
            workers.wait_until_up(app, wanted.workers)
            if mode == "tuned":
                tune(app, runs)
            return feed(app, job, runs, seconds, wanted.windows, NotedRuns(folder), workers)


def tune(app: fairlead.App, runs: Runs) -> None:
    """Set weights by mean run time, and let the workers read them before the first submit."""
    means = {key: statistics.mean(of_key) for key, of_key in runs.items()}
    median = statistics.median(means.values())
    for key, mean in means.items():
        app.management.set_weight(QUEUE, key, min(MAX_WEIGHT, max(MIN_WEIGHT, median / mean)))
    wait_for_heartbeats(app)


def wait_for_heartbeats(app: fairlead.App) -> None:
    """Wait until each node has begun two more heartbeats, and so has ended one, which reads the
    weights."""
    now = app.clock.now()
    beats: defaultdict[str, set[int]] = defaultdict(set)
    while True:
        nodes = app.management.nodes()
        for node in nodes:
            beats[node.node] |= {node.heartbeat_at} if node.heartbeat_at > now else set()
        if all(len(beats[node.node]) >= 2 for node in nodes):
            return
        time.sleep(LOOK_SECONDS)  # heartbeats of other processes raise no event


def feed(
    app: fairlead.App,
    job: Any,
    runs: Runs,
    seconds: float,
    windows: int,
    noted: NotedRuns,
    workers: WorkerProcess,
) -> list[tuple[float, int]]:
    """Keep every key supplied until the last window ends; then return its results."""
    submitted: Counter[str] = Counter()
    supplies: dict[str, list[tuple[float, int]]] = {key: [] for key in runs}
    began = ends = None
    while ends is None or time.time() < ends:
        noted.refresh()
        workers.check()
        drafts = []
        for key, of_key in runs.items():
            if submitted[key] - noted.started[key] < FEW_WAITING:
                more = of_key[submitted[key] : noted.started[key] + MOST_WAITING]
                drafts += [
                    job.options(fairness_key=key).draft(key=key, seconds=run) for run in more
                ]
                submitted[key] += len(more)
                supplies[key].append((time.time(), len(more)))
        if drafts:
            random.Random(len(drafts)).shuffle(drafts)
            app.submit_many(drafts)
        if ends is None and all(noted.started[key] for key in runs):
            began = time.time()  # every key has begun
            ends = began + seconds
        time.sleep(LOOK_SECONDS)  # notes of other processes raise no event
    noted.refresh()
    assert began is not None and ends is not None
    # Count unfinished runs up to the end of the last window.
    ended = Counter((key, start) for key, start, _ in noted.runs)
    open_runs = [
        (key, start, ends)
        for key, starts in noted.starts.items()
        for start in starts
        if not ended[key, start]
    ]
    length = seconds / windows
    return [
        window(
            began + n * length,
            began + (n + 1) * length,
            noted.runs + open_runs,
            noted.starts,
            supplies,
        )
        for n in range(windows)
    ]


def window(
    begin: float,
    end: float,
    runs: Notes,
    starts: dict[str, list[float]],
    supplies: dict[str, list[tuple[float, int]]],
) -> tuple[float, int]:
    """Return Jain's index over the worker-seconds in the window, and the number of keys with
    waiting tasks throughout."""
    served: Counter[str] = Counter()
    for key, start, stop in runs:
        served[key] += max(0.0, min(stop, end) - max(start, begin))  # type: ignore[assignment]
    through = []
    for key, of_key in supplies.items():
        waiting = sum(count for at, count in of_key if at <= begin) - sum(
            at <= begin for at in starts[key]
        )
        changes = [(at, count) for at, count in of_key if begin < at < end]
        changes += [(at, -1) for at in starts[key] if begin < at < end]
        least = waiting
        for _, change in sorted(changes):
            waiting += change
            least = min(least, waiting)
        if least > 0:
            through.append(key)
    say({key: round(served[key], 1) for key in through})
    return (jain([served[key] for key in through]) if len(through) > 1 else float("nan")), len(
        through
    )


def say(what: object) -> None:
    """Print progress to stderr; results go to stdout."""
    print(what, file=sys.stderr, flush=True)


@contextlib.contextmanager
def store(kind: str, folder: pathlib.Path) -> Iterator[str]:
    """Yield the URL of a fresh database."""
    if kind == "postgres":
        from services.postgres import PostgresServer

        with PostgresServer() as server:
            yield server.create_database()
    else:
        yield f"sqlite:///{folder / 'tasks.db'}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=pathlib.Path, default=TRACE)
    parser.add_argument("--users", type=int, default=10)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--slots", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--only", default=",".join(GOALS))
    wanted = parser.parse_args()
    if not wanted.trace.is_file():
        parser.error(f"there is no {wanted.trace}; name a trace by --trace")
    runs = jobs(wanted.trace, wanted.users, wanted.every, wanted.shuffle)
    # Give every key as much work as the key with the least, so that all keys wait through all
    # windows if shares are fair.
    scale = wanted.seconds * wanted.slots / (0.9 * wanted.users * min(map(sum, runs.values())))
    runs = {key: [run * scale for run in of_key] for key, of_key in runs.items()}
    every = [run for of_key in runs.values() for run in of_key]
    print(
        f"{len(every):,} jobs of {len(runs)} users, in"
        f" {'drawn order' if wanted.shuffle else 'the order of the trace'}; run times: mean"
        f" {1000 * statistics.mean(every):.1f} ms, median {1000 * statistics.median(every):.1f} ms,"
        f" longest {max(every):.2f} s; {wanted.workers} workers on {wanted.store}, {wanted.slots}"
        " slots\n"
    )
    found = {mode: measure(mode, runs, wanted.seconds, wanted) for mode in wanted.only.split(",")}
    print("| window | " + " | ".join(f"{mode}: Jain's index (keys)" for mode in found) + " |")
    print("|---|" + "--:|" * len(found))
    for n in range(wanted.windows):
        print(
            f"| {n + 1} | "
            + " | ".join(f"{of[n][0]:.3f} ({of[n][1]})" for of in found.values())
            + " |"
        )
    means = {mode: statistics.mean(index for index, _ in of) for mode, of in found.items()}
    print("| mean | " + " | ".join(f"{means[mode]:.3f}" for mode in found) + " |")
    return 0 if all(mean > GOALS[mode] for mode, mean in means.items()) else 1


if __name__ == "__main__":
    sys.exit(main())

app, _ = application()
