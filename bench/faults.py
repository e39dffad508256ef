"""Measure a fleet while its store or one of its workers is half broken.

    python bench/faults.py stop                    # SIGSTOP of the oldest worker for 40 s
    python bench/faults.py stop --store postgres
    python bench/faults.py backends                # twice a second, close all connections
    python bench/faults.py restart                 # restart PostgreSQL three times
    python bench/faults.py idle                    # beside 300 idle connections that listen

Three workers share a queue with one partition; 800 tasks/s are submitted. Prints one JSON line: the
longest time between two starts of tasks, how long tasks waited, and how many ran twice.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import psycopg  # noqa: E402

from bench.fleet import LEAD, RATE, Fleet, Load, at_percent, fleet  # noqa: E402
from services.postgres import PostgresServer  # noqa: E402

STOP_SECONDS = 40.0
BACKENDS_SECONDS = 20.0
RESTART_PAUSE = 8.0
IDLE_SECONDS = 20.0
IDLE_CONNECTIONS = 300
TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


def stop(one: Fleet) -> None:
    """Stop the oldest worker, which may own the partition, and continue it later."""
    one.workers[0].send_signal(signal.SIGSTOP)
    time.sleep(STOP_SECONDS)
    one.workers[0].send_signal(signal.SIGCONT)
    time.sleep(5.0)


def backends(url: str) -> None:
    """Close all connections to the database twice a second."""
    ends = time.monotonic() + BACKENDS_SECONDS
    with psycopg.connect(url, autocommit=True) as connection:
        while time.monotonic() < ends:
            connection.execute(TERMINATE)
            time.sleep(0.5)
    time.sleep(3.0)


def restart(server: PostgresServer) -> None:
    """Restart PostgreSQL once after a clean stop, and twice after a crash."""
    for mode in ("fast", "immediate", "immediate"):
        server.restart(mode)
        time.sleep(RESTART_PAUSE)


def idle(url: str) -> None:
    """Keep many other connections open, which listen and do nothing else."""
    with ExitStack() as stack:
        for _ in range(IDLE_CONNECTIONS):
            other = stack.enter_context(psycopg.connect(url, autocommit=True))
            other.execute("LISTEN somebody_else")
        time.sleep(IDLE_SECONDS)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["stop", "backends", "restart", "idle"])
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        url = f"sqlite:///{folder}/tasks.db"
        if given.store == "postgres" or given.what != "stop":
            server = stack.enter_context(PostgresServer(connections=IDLE_CONNECTIONS + 100))
            url = server.create_database()
        one = stack.enter_context(fleet(url, concurrency=100))
        for _ in range(3):
            one.start()
        one.wait_until_serving(3)
        load = Load(one, RATE)
        time.sleep(LEAD)
        if given.what == "stop":
            stop(one)
        elif given.what == "backends":
            backends(url)
        elif given.what == "idle":
            idle(url)
        else:
            restart(server)
        load.stop()
        one.drain()
        print(json.dumps(result(one, len(load.acknowledged))))


def result(one: Fleet, acknowledged: int) -> dict[str, Any]:
    """Return what the fleet ran, and how evenly."""
    runs = one.runs()
    starts = sorted(start for _, start, _ in runs)
    waits = [start - at for at, start, _ in runs]
    return {
        "acknowledged": acknowledged,
        "runs": len(runs),
        "repeated": len(runs) - len({at for at, _, _ in runs}),
        "living_workers": sum(worker.poll() is None for worker in one.workers),
        "longest_gap_s": round(max(b - a for a, b in itertools.pairwise(starts)), 2),
        "wait_p50_ms": at_percent(waits, 50),
        "wait_p99_ms": at_percent(waits, 99),
        "wait_max_ms": at_percent(waits, 100),
    }


if __name__ == "__main__":
    main()
