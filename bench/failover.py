"""Measure a fleet while standbys of PostgreSQL become the primary, again and again.

    python bench/failover.py synchronous              # ten failovers under 1,000 tasks/s
    python bench/failover.py asynchronous --failovers 3 --rate 200 --lag 0.5

Two workers run tasks. Each failover kills the primary and promotes its standby after two seconds;
the old primary comes back as the standby. With a lag, the standby receives nothing in the last
seconds before each kill. Prints one JSON line: acknowledged tasks that were lost,
tasks that ran twice, and the longest pauses after each kill between two acknowledged submits and
between two starts of tasks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.fleet import LEAD, Load, fleet  # noqa: E402
from services.postgres import PostgresServer  # noqa: E402

WORKERS = 2
DETECTION = 2.0
"""Seconds from the end of a primary to the promotion of its standby, as a failover manager needs to
be sure."""


def measure(failovers: int, rate: int, lag: float, is_synchronous: bool) -> dict[str, Any]:
    """Return what was lost and repeated, and how soon work went on."""
    with ExitStack() as stack:
        primary = stack.enter_context(PostgresServer())
        standby = stack.enter_context(PostgresServer(primary=primary))
        url = primary.url_of("postgres", standby)
        one = stack.enter_context(fleet(url, concurrency=100))
        for _ in range(WORKERS):
            one.start()
        one.wait_until_serving(WORKERS)
        load = Load(one, rate)
        killed = []
        for _ in range(failovers):
            primary.commit_on_standby(is_synchronous)
            time.sleep(LEAD)
            if lag:
                standby.stop_receiving()
                time.sleep(lag)
            killed.append(time.time())
            primary.crash()
            time.sleep(DETECTION)
            standby.promote()
            time.sleep(LEAD)
            primary.follow(standby)
            primary, standby = standby, primary
        load.stop()
        one.drain()
        starts = [start for _, start, _ in one.runs()]
        runs = Counter(round(at, 6) for at, _, _ in one.runs())
    return {
        "replication": "synchronous" if is_synchronous else "asynchronous",
        "failovers": failovers,
        "lag_s": lag,
        "acknowledged": len(load.acknowledged),
        "lost": sum(name not in runs for name in load.acknowledged),
        "twice": sum(count > 1 for count in runs.values()),
        "until_submit_s": pauses(killed, load.instants),
        "until_start_s": pauses(killed, starts),
    }


def pauses(killed: list[float], instants: list[float]) -> dict[str, float]:
    """Return the longest pause after each kill: median and maximum."""
    ordered = sorted(instants)
    longest = [
        max(b - a for a, b in itertools.pairwise(ordered) if at < b and a < until)
        for at, until in itertools.pairwise([*killed, float("inf")])
    ]
    return {"median": round(median(longest), 1), "max": round(max(longest), 1)}


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("replication", choices=["synchronous", "asynchronous"])
    parser.add_argument("--failovers", type=int, default=10)
    parser.add_argument("--rate", type=int, default=1000, help="tasks per second")
    parser.add_argument("--lag", type=float, default=0.0, help="seconds")
    given = parser.parse_args()
    is_synchronous = given.replication == "synchronous"
    print(json.dumps(measure(given.failovers, given.rate, given.lag, is_synchronous)))


if __name__ == "__main__":
    main()
