"""Fairlead measured exactly as the peers are measured; prints one line of JSON for each entry.

python bench/peers_fairlead.py --tasks 30000 --only fairlead-sqlite [--workers 2]
    [--idle-transaction]

Throughput: no-op tasks are submitted first, in one bulk call per 30,000, then the worker processes
start; the rate is taken between the first and the last count that the tasks report. Latency: 300
tasks, one each 20 ms, on a running worker; seconds from the submit call to the task's first line.
Needs PG_DSN (an empty database, whose schema `public` is dropped) for fairlead-pg.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
PEERS = ROOT.parent / "shared" / "bench" / "peers"
PACED, GAP_S = 300, 0.02
BULK = 30_000
MOST_SECONDS = 120

ENTRIES = {
    "fairlead-sqlite": "tasks_fairlead_sqlite",
    "fairlead-pg": "tasks_fairlead_pg",
}


def probe_folder() -> pathlib.Path:
    """Return the folder of the peers' own probe if it exists, so that all systems are measured by
    the same code."""
    return PEERS if (PEERS / "probe.py").is_file() else HERE / "own"


def paths() -> list[str]:
    """Return the import path of the measured processes."""
    return [str(HERE), str(probe_folder()), str(ROOT / "src")]


def counts(folder: pathlib.Path) -> list[tuple[float, int]]:
    """Return [(time, total so far)] over all processes, by time; the peers use the same rule."""
    steps = []
    for log in folder.glob("*.log"):
        last = 0
        for line in log.read_text().splitlines():
            if line.startswith("C "):
                _, at, total = line.split()
                steps.append((float(at), int(total) - last))
                last = int(total)
    steps.sort()
    total_so_far, out = 0, []
    for at_time, step in steps:
        total_so_far += step
        out.append((at_time, total_so_far))
    return out


def latencies(folder: pathlib.Path) -> list[float]:
    """Return the latencies in seconds, ascending."""
    lines = (line for log in folder.glob("*.log") for line in log.read_text().splitlines())
    return sorted(float(line.split()[1]) for line in lines if line.startswith("L "))


def percentile_ms(ordered: list[float], share: float) -> float | None:
    """Return a percentile, computed as the peers do."""
    return (
        round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
        if ordered
        else None
    )


def peak_rss_mb(pid: int) -> float | None:
    """Return the peak resident memory of the process; None where the system does not report it."""
    with contextlib.suppress(OSError):
        if match := re.search(
            r"^VmHWM:\s+(\d+) kB$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
        ):
            return round(int(match[1]) * 1024 / 1e6, 1)
    return None


def start(module: str, folder: pathlib.Path, number: int) -> subprocess.Popen[bytes]:
    """Start one worker process by the command that a user would run."""
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *paths()])
    with (folder / f"worker-{number}.out").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "fairlead", "worker", f"{module}:app"],
            env={**os.environ, "PROBE_DIR": str(folder), "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stop(workers: list[subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM, and SIGKILL to processes that have not ended in time."""
    for worker in workers:
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
    for worker in workers:
        try:
            worker.wait(10)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


@contextlib.contextmanager
def idle_transaction(wanted: bool) -> Iterator[None]:
    """Hold another session idle in its transaction, so that no dead row can be removed
    meanwhile."""
    if not wanted:
        yield
        return
    import psycopg

    with psycopg.connect(os.environ["PG_DSN"]) as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT count(*) FROM pg_class")
        yield
        session.rollback()


def reset_pg() -> None:
    """Empty the database as the peers do."""
    import psycopg

    with psycopg.connect(os.environ["PG_DSN"], autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")


def wait_for(folder: pathlib.Path, tasks: int, workers: list[subprocess.Popen[bytes]]) -> None:
    """Wait until the tasks' own counts show that (nearly) all ran. Raise RuntimeError if a worker
    ends first."""
    end = time.monotonic() + MOST_SECONDS
    steps: list[tuple[float, int]] = []
    while time.monotonic() < end:
        steps = counts(folder)
        # Each process counts in steps of 50, so that up to 49 tasks of each never show.
        if steps and steps[-1][1] >= tasks - 50 * len(workers):
            return
        need_running(folder, workers)
        time.sleep(0.2)
    raise RuntimeError(
        f"{steps[-1][1] if steps else 0} of {tasks} tasks ran within {MOST_SECONDS} s"
    )


def need_running(folder: pathlib.Path, workers: list[subprocess.Popen[bytes]]) -> None:
    """Raise RuntimeError with the end of its log if a worker has ended, since its measures are
    void."""
    for number, worker in enumerate(workers):
        if worker.poll() is not None:
            log_end = (folder / f"worker-{number}.out").read_text(errors="replace")[-2000:]
            raise RuntimeError(
                f"worker {number} ended by itself with code {worker.returncode}: {log_end}"
            )


def measure(
    entry: str, tasks: int, processes: int, idle: bool, with_latency: bool
) -> dict[str, object]:
    """Measure one round of one entry."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"bench-{entry}-"))
    os.environ["PROBE_DIR"] = str(folder)
    workers: list[subprocess.Popen[bytes]] = []
    try:
        if entry == "fairlead-pg":
            reset_pg()
        module = __import__(ENTRIES[entry])
        app, noop = module.app, module.noop
        app.migrate()
        # Connect first, as a service does. The peers' bulk calls reuse a connection too.
        app.management.queues()
        arguments: list[dict[str, object]] = [{}] * tasks
        with idle_transaction(idle):
            began = time.perf_counter()
            for low in range(0, tasks, BULK):
                noop.submit_many(arguments[low : low + BULK])
            enqueue = tasks / (time.perf_counter() - began)
            workers = [start(ENTRIES[entry], folder, number) for number in range(processes)]
            wait_for(folder, tasks, workers)
            time.sleep(0.5)  # let the last tasks end that show in no count
            steps = counts(folder)
        seconds = steps[-1][0] - steps[0][0] if len(steps) > 1 else 0.0
        done = (steps[-1][1] - steps[0][1]) / seconds if seconds else 0.0
        ordered: list[float] = []
        if with_latency:
            time.sleep(1)  # let the workers become idle, so that single tasks are timed
            for _ in range(PACED):
                noop.submit(at=time.time())
                time.sleep(GAP_S)  # interval between submits
            time.sleep(2)  # time for the last tasks; see below
            ordered = latencies(folder)
            if len(ordered) != PACED:
                need_running(folder, workers)
                raise RuntimeError(
                    f"{len(ordered)} of {PACED} paced tasks ran within 2 s of the last submit"
                )
        need_running(folder, workers)
        peaks = [peak for worker in workers if (peak := peak_rss_mb(worker.pid)) is not None]
        app.close()
        return {
            "peer": entry,
            "workers": processes,
            "idle_transaction": idle,
            "enqueue_per_s": round(enqueue),
            "done_per_s": round(done),
            "ran": steps[-1][1] if steps else 0,
            "latency_ms": {
                "p50": percentile_ms(ordered, 0.5),
                "p99": percentile_ms(ordered, 0.99),
                "n": len(ordered),
            },
            "peak_rss_mb": max(peaks, default=None),
        }
    finally:
        stop(workers)
        if "KEEP" not in os.environ:
            shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=30_000)
    parser.add_argument("--only", choices=list(ENTRIES), required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--idle-transaction", action="store_true")
    parser.add_argument("--no-latency", action="store_true")
    wanted = parser.parse_args()
    sys.path[:0] = paths()
    try:
        found = measure(
            wanted.only,
            wanted.tasks,
            wanted.workers,
            wanted.idle_transaction,
            not wanted.no_latency,
        )
    except Exception as error:  # as the peers report theirs
        found = {"peer": wanted.only, "error": repr(error)[:4000]}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
