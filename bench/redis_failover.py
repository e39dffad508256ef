"""Measure tasks on Redis alone while Sentinels replace its master, again and again.

    python bench/redis_failover.py                        # submits return at once
    python bench/redis_failover.py --wait                 # a replica confirms each submit
    python bench/redis_failover.py --lag 0.5 --failovers 3
    python bench/redis_failover.py cost                   # latency of single submits

A master, two replicas and three Sentinels, which take a server for dead after a second. Two workers
run 1,000 tasks per second, submitted 50 at a time. Each failover kills the master with SIGKILL; it
comes back as a replica. With a lag, all replicas are in a full resynchronisation during the last
seconds before each kill, and have none of its writes. Prints one JSON line: acknowledged tasks that
were lost, tasks that ran twice, submits that raised NotReplicated, how long after each kill the
Sentinels named the next master, and the longest pauses between two acknowledged submits and between
two starts of tasks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from bench.failover import pauses  # noqa: E402
from bench.fleet import LEAD, Load, at_percent, fleet  # noqa: E402
from fairlead.errors import NotReplicated  # noqa: E402
from services.redis_group import RedisGroup  # noqa: E402

WORKERS = 2
WAIT = "&wait_replicas=1&wait_ms=100"
SINGLES = 5_000
"""Submits of which the latency is measured, one after the other."""


def measure(failovers: int, rate: int, lag: float, has_wait: bool) -> dict[str, Any]:
    """Return what was lost and repeated, and how soon work went on."""
    with ExitStack() as stack:
        group = stack.enter_context(
            RedisGroup(replicas=2, sentinels=3, down_after=1000, is_quick=False)
        )
        url = f"{group.url}&reclaim=5{WAIT if has_wait else ''}"
        one = stack.enter_context(fleet(url, concurrency=100))
        for _ in range(WORKERS):
            one.start()
        one.wait_until_serving(WORKERS)
        load = Load(one, rate)
        killed, named = [], []
        for _ in range(failovers):
            time.sleep(LEAD)
            if lag:
                group.hold_back_replicas()
                time.sleep(lag)
            killed.append(time.time())
            group.fail_over()
            named.append(time.time() - killed[-1])
            time.sleep(LEAD)
            group.repair()
        load.stop()
        one.drain()
        starts = [start for _, start, _ in one.runs()]
        runs = Counter(round(at, 6) for at, _, _ in one.runs())
    return {
        "wait_replicas": int(has_wait),
        "failovers": failovers,
        "lag_s": lag,
        "acknowledged": len(load.acknowledged),
        "lost": sum(name not in runs for name in load.acknowledged),
        "twice": sum(count > 1 for count in runs.values()),
        "not_replicated": load.refusals[NotReplicated],
        "until_named_s": {"median": round(median(named), 1), "max": round(max(named), 1)},
        "until_submit_s": pauses(killed, load.instants),
        "until_start_s": pauses(killed, starts),
    }


def cost(has_wait: bool) -> dict[str, Any]:
    """Return the latency of single submits without workers."""
    with (
        RedisGroup(replicas=2, sentinels=3, is_quick=False) as group,
        fleet(f"{group.url}{WAIT if has_wait else ''}", concurrency=1) as one,
    ):
        taken = []
        for _ in range(SINGLES):
            began = time.perf_counter()
            one.module.quick.submit(at=time.time())
            taken.append(time.perf_counter() - began)
    return {
        "wait_replicas": int(has_wait),
        "submits": SINGLES,
        "p50_ms": at_percent(taken, 50),
        "p99_ms": at_percent(taken, 99),
    }


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["failovers", "cost"], default="failovers")
    parser.add_argument("--failovers", type=int, default=10)
    parser.add_argument("--rate", type=int, default=1000, help="tasks per second")
    parser.add_argument("--lag", type=float, default=0.0, help="seconds")
    parser.add_argument("--wait", action="store_true", help="let a replica confirm each submit")
    given = parser.parse_args()
    found = (
        cost(given.wait)
        if given.what == "cost"
        else measure(given.failovers, given.rate, given.lag, given.wait)
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
