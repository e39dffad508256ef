"""The LCG trace as an ordered queue: ordering key = user, time = scaled submit time, unique key = job; several workers.

    python bench/ordered.py [--url sqlite:///FILE] [--jobs 30000] [--seconds 90] [--workers 3]

Prints how late the tasks began. Exit code 1 unless every job ran once, none before its time, each user's in order and
one at a time. What a user may have ended a second is bounded: a run's end is durable before the next one begins.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime
from itertools import islice

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fairlead import App  # noqa: E402
from fairlead.replay.trace import read_trace  # noqa: E402

TRACE = ROOT.parent / "shared" / "data" / "lcg-2005.swf.gz"
HEAD_START = 10.0  # seconds for the submits and the workers to begin

app = App(os.environ.get("ORDERED_URL"))
app.queue("jobs", kind="ordered", partitions=120)
_out: list[int] = []


@app.task(queue="jobs")
async def job(user: str, number: int, due: float) -> None:
    """One line when it begins, one when it ends."""
    if not _out:
        _out.append(os.open(os.environ["ORDERED_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT))
    os.write(_out[0], f"start {user} {number} {due} {time.time()}\n".encode())
    os.write(_out[0], f"end {user} {number} {due} {time.time()}\n".encode())


def check(lines: list[str], expected: dict[str, list[int]]) -> list[float]:
    """How late each job began, in seconds. Raises SystemExit for a promise that was broken."""
    late, running, order = [], {}, defaultdict(list)
    for what, user, number, due, at in (line.split() for line in lines):
        if what == "start":
            if user in running:
                sys.exit(f"two jobs of {user} at once: {running[user]}, {number}")
            running[user] = number
            order[user].append(int(number))
            late.append(float(at) - float(due))
        elif running.pop(user) != number:
            sys.exit(f"job {number} ended unbegun")
    if order != expected:
        wrong = [user for user in expected if order.get(user) != expected[user]]
        sys.exit(f"not every job once and in order: {len(wrong)} users, as {wrong[:3]}")
    if min(late) < 0:
        sys.exit(f"begun {-min(late):.3f} s before its time")
    return sorted(late)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=pathlib.Path, default=TRACE)
    parser.add_argument("--url")
    parser.add_argument("--jobs", type=int, default=30_000)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--workers", type=int, default=3)
    options = parser.parse_args()
    jobs = list(islice(read_trace(options.trace, lambda line: None), options.jobs))
    scale = options.seconds / max(1.0, jobs[-1].submit - jobs[0].submit)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ORDERED_URL"] = options.url or f"sqlite:///{folder}/tasks.db"
        os.environ["ORDERED_LOG"] = f"{folder}/runs.log"
        app._urls = (os.environ["ORDERED_URL"], None, None, None)
        app.migrate()
        begin = time.time() + HEAD_START
        due = [(begin + (j.submit - jobs[0].submit) * scale, f"user-{j.user}", j.number) for j in jobs]
        for start in range(0, len(due), 5000):
            app.submit_many(
                [
                    job.options(
                        ordering_key=user, run_at=datetime.fromtimestamp(at, UTC), unique_key=f"{number:08}"
                    ).draft(user=user, number=number, due=at)
                    for at, user, number in due[start : start + 5000]
                ]
            )
        expected: dict[str, list[int]] = defaultdict(list)
        for _, user, number in sorted(due, key=lambda one: (round(one[0] * 1e6), one[1], one[2])):
            expected[user].append(number)
        command = [sys.executable, "-m", "fairlead", "worker", "ordered:app", "--log-level", "warning"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "bench")])}
        workers = [subprocess.Popen(command, env=environment) for _ in range(options.workers)]
        log = pathlib.Path(os.environ["ORDERED_LOG"])
        lines: list[str] = []
        while len(lines) < 2 * len(jobs):
            time.sleep(1)
            if any(worker.poll() is not None for worker in workers):
                sys.exit("a worker has ended")
            lines = log.read_text().splitlines() if log.exists() else []
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
        late = check(log.read_text().splitlines(), dict(expected))
    print(
        f"{len(jobs):,} jobs of {len(expected)} users in {options.seconds:.0f} s, {options.workers} workers: each once, in "
        f"order, none early; late by {late[len(late) // 2] * 1000:.1f} ms (p50), {late[len(late) * 99 // 100] * 1000:.1f} ms "
        f"(p99), {late[-1]:.2f} s at most"
    )


if __name__ == "__main__":
    main()
