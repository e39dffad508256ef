"""Benchmark of the cost of fairness. Compare the drain rate of a fair queue with that of a fifo
queue, or measure a fair queue with a very long backlog.

python bench/fairness.py [--tasks 60000] [--keys 200] [--runs 3] [--workers 1] [--only
    sqlite,postgres]
python bench/fairness.py --backlog 5000000 [--idle-transaction] [--only postgres]

Tasks do nothing, and the number of tasks of the n-th key is proportional to 1 / n. The benchmark
submits all tasks before it starts the workers. "per_s" is the rate between the first and the last
progress report of the workers; "per_s_with_start" begins at the start of the workers. "of_each" has
what the workers used for each task since their start, which other work on the machine changes less
than the rates: microseconds of processor time in their own code and in the kernel, calls that read
and write, KiB written. With --backlog, one worker drains the queue, and the results are the rate
over each tenth of the tasks and the peak memory.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "src")]

from peers_fairlead import counts, idle_transaction, paths, peak_rss_mb, start, stop  # noqa: E402

CHUNK = 20_000
MODULES = {"sqlite": "tasks_fairlead_sqlite", "postgres": "tasks_fairlead_pg"}
ORDERS = ("fifo", "fair")
GOAL_RATIO = 0.8
GOAL_MB = 200
GOAL_DRIFT = 0.2
MAX_SECONDS_WITHOUT_PROGRESS = 120


class NoProgress(Exception):
    """Raised when the workers make no progress; the message has the number of tasks that ran."""


@contextlib.contextmanager
def new_store(store: str, order: str) -> Iterator[tuple[Any, pathlib.Path]]:
    """Create an empty store; yield the module with its application and tasks, and the folder for
    the progress reports of the workers."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"fairness-{store}-"))
    os.environ["PROBE_DIR"], os.environ["BENCH_ORDER"] = str(folder), order
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        if store == "postgres":
            from services.postgres import PostgresServer

            os.environ["PG_DSN"] = cleanup.enter_context(PostgresServer()).create_database()
        sys.path[:0] = paths()
        sys.modules.pop(MODULES[store], None)
        module = __import__(MODULES[store])
        module.app.migrate()
        cleanup.callback(module.app.close)
        yield module, folder


def submit(module: Any, tasks: int, keys: int) -> float:
    """Submit all tasks, and return the number of tasks submitted per second."""
    rng = random.Random(1)
    popularity = list(itertools.accumulate(1 / n for n in range(1, keys + 1)))
    names = [f"tenant-{n}" for n in range(keys)]
    began = time.perf_counter()
    for low in range(0, tasks, CHUNK):
        drawn = rng.choices(names, cum_weights=popularity, k=min(CHUNK, tasks - low))
        module.app.submit_many([module.noop.options(fairness_key=key).draft() for key in drawn])
        if low and low % 500_000 == 0:
            say(f"  submitted {low:,}")
    return tasks / (time.perf_counter() - began)


def drain(
    module: Any, folder: pathlib.Path, store: str, tasks: int, workers: int
) -> dict[str, Any]:
    """Start the workers, wait until all tasks have run, and return the measured rates. Raise
    NoProgress after too long a time without a progress report."""
    began = time.time()
    running = [start(MODULES[store], folder, number) for number in range(workers)]
    try:
        steps: list[tuple[float, int]] = []
        said, moved_at = 0, time.monotonic()
        # Each process reports every 50th task.
        while not steps or steps[-1][1] < tasks - 50 * workers:
            # Pause, because each look reads all progress reports again.
            time.sleep(0.5 if tasks < 1_000_000 else 5)
            before, steps = len(steps), counts(folder)
            if len(steps) > before:
                moved_at = time.monotonic()
            elif time.monotonic() > moved_at + MAX_SECONDS_WITHOUT_PROGRESS:
                raise NoProgress(
                    f"{steps[-1][1] if steps else 0:,} of {tasks:,} ran, then none for"
                    f" {MAX_SECONDS_WITHOUT_PROGRESS} s"
                )
            if steps and steps[-1][1] - said >= 500_000:
                said = steps[-1][1]
                say(f"  ran {said:,}")
        tenth = len(steps) // 10
        tenths = [rate(steps[n * tenth : (n + 1) * tenth + 1]) for n in range(10)]
        return {
            "per_s": rate(steps),
            "per_s_with_start": round(steps[-1][1] / (steps[-1][0] - began)),
            "tenths_per_s": tenths,
            "of_each": used([worker.pid for worker in running], tasks),
            "peak_rss_mb": max(
                filter(None, (peak_rss_mb(worker.pid) for worker in running)), default=None
            ),
        }
    finally:
        stop(running)


def used(pids: list[int], tasks: int) -> dict[str, float]:
    """Return what processes have used for each task; empty where the system does not report it."""
    sums = defaultdict[str, float](float)
    tick_us = 1_000_000 / os.sysconf("SC_CLK_TCK")
    with contextlib.suppress(OSError):
        for pid in pids:
            folder = pathlib.Path(f"/proc/{pid}")
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            sums["own_us"] += int(fields[11]) * tick_us
            sums["kernel_us"] += int(fields[12]) * tick_us
            lines = (line.split(": ") for line in (folder / "io").read_text().splitlines())
            counts_of = {name: int(count) for name, count in lines}
            sums["reads"] += counts_of["syscr"]
            sums["writes"] += counts_of["syscw"]
            sums["kib_written"] += counts_of["wchar"] / 1024
    return {name: round(total / tasks, 2) for name, total in sums.items()}


def rate(steps: list[tuple[float, int]]) -> int:
    """Return the number of tasks per second between the first and the last step."""
    (first, begin), (last, end) = steps[0], steps[-1]
    return round((end - begin) / (last - first)) if last > first else 0


def compare(store: str, tasks: int, keys: int, runs: int, workers: int) -> dict[str, Any]:
    """Measure the fair and the fifo order alternately; return the median rates and the median ratio
    of fair to fifo."""
    found: dict[str, list[dict[str, Any]]] = {order: [] for order in ORDERS}
    for number in range(runs):
        for order in ORDERS if number % 2 == 0 else reversed(ORDERS):
            with new_store(store, order) as (module, folder):
                submit(module, tasks, keys)
                found[order].append(drain(module, folder, store, tasks, workers))
            say(f"{store}, {order}: {found[order][-1]}")
    report: dict[str, Any] = {
        "store": store,
        "tasks": tasks,
        "keys": keys,
        "workers": workers,
        "runs": runs,
    }
    for figure in ("per_s", "per_s_with_start"):
        medians = {
            order: statistics.median(run[figure] for run in found[order]) for order in ORDERS
        }
        pairs = zip(found["fair"], found["fifo"], strict=True)
        ratio = statistics.median(fair[figure] / fifo[figure] for fair, fifo in pairs)
        report[figure] = medians | {"ratio": round(ratio, 2)}
    return report | {"is_met": report["per_s"]["ratio"] >= GOAL_RATIO}


def long_backlog(store: str, tasks: int, keys: int, is_idle: bool) -> dict[str, Any]:
    """Measure how one worker drains a fair queue with a long backlog."""
    with new_store(store, "fair") as (module, folder):
        submitted = submit(module, tasks, keys)
        say(f"{store}: {tasks:,} submitted at {submitted:,.0f}/s")
        with idle_transaction(is_idle):
            found = drain(module, folder, store, tasks, 1)
    # During the first tenths, the worker also assigns levels to the rest of the backlog.
    drift = found["tenths_per_s"][-1] / found["tenths_per_s"][0] - 1
    is_met = found["peak_rss_mb"] < GOAL_MB and drift >= -GOAL_DRIFT
    report = {"store": store, "backlog": tasks, "idle_transaction": is_idle, **found}
    return report | {"drift": round(drift, 2), "is_met": is_met}


def say(text: str) -> None:
    """Print progress to stderr; results go to stdout."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=60_000)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--backlog", type=int)
    parser.add_argument("--idle-transaction", action="store_true")
    parser.add_argument("--only", default=",".join(MODULES))
    wanted = parser.parse_args()
    stores = wanted.only.split(",")
    if set(stores) - set(MODULES):
        parser.error(f"--only: use a list of {', '.join(MODULES)}")
    if min(wanted.tasks, wanted.backlog or wanted.tasks) < 10_000:
        parser.error("use 10,000 tasks or more; fewer give no reliable rate")
    found = []
    for store in stores:
        if wanted.backlog:
            found.append(long_backlog(store, wanted.backlog, wanted.keys, wanted.idle_transaction))
        else:
            found.append(compare(store, wanted.tasks, wanted.keys, wanted.runs, wanted.workers))
        print(json.dumps(found[-1]), flush=True)
    return 0 if all(result["is_met"] for result in found) else 1


if __name__ == "__main__":
    sys.exit(main())
