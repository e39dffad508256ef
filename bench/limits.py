"""Cluster-wide limits: exact under faults as observed from outside, and faster than a plain
semaphore of ZooKeeper's client.

python bench/limits.py [--seconds 60] [--seed N] [--json]
python bench/limits.py --ledger [--nodes 100] [--keys 500] [--json]

Three workers on one tree of limits (30 in total, 15 payouts, 3 of one partner) are killed, and
stopped for 20 s with SIGSTOP, while ZooKeeper is restarted. Then three processes acquire and
release slots as fast as they can, from permits and from a semaphore of 30 on the same ZooKeeper.
Exit code 1 if a limit was exceeded, or if permits give less than 50 times as many slots as the
semaphore.

With --ledger: the records of a limit by key in memory, when all nodes run all keys, and the time of
the event loop that one round of a node takes. Exit code 1 if a record has 64 KiB.
"""

import argparse
import asyncio
import json
import multiprocessing
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from services.zookeeper import ZooKeeperServer  # noqa: E402
from tests.end_to_end.limited import Limited  # noqa: E402
from tests.end_to_end.limited_app import ACME, PAYOUTS, TOTAL  # noqa: E402
from tests.end_to_end.test_cluster_limits import fill  # noqa: E402
from tests.unit.ledger_store import LedgerStore  # noqa: E402

PROCESSES = 3
GOAL = 50
MEASURED_SECONDS = 8.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of chaos")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ledger", action="store_true")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--keys", type=int, default=500)
    wanted = parser.parse_args()
    if wanted.ledger:
        return measure_ledger(wanted.nodes, wanted.keys)
    with tempfile.TemporaryDirectory() as folder, ZooKeeperServer() as server:
        url = f"sqlite:///{folder}/tasks.db"
        fill(url, round(wanted.seconds * 40))
        crew = Limited(
            url, server.url, pathlib.Path(folder), PROCESSES, permit_seconds=15.0, seed=wanted.seed
        )
        seen = crew.run(wanted.seconds, stop_seconds=20.0, disturb=server.restart)
        ours = together(acquire_permits, f"{server.url}/bench")
        theirs = together(acquire_semaphore, server.url)
    limits = {"total": TOTAL, "payout": PAYOUTS, "acme": ACME}
    report = {
        "chaos": seen._asdict() | {"limits": limits, "seconds": wanted.seconds},
        "bookings_per_second": round(ours),
        "semaphore_per_second": round(theirs),
        "ratio": round(ours / theirs, 1),
    }
    if wanted.json:
        print(json.dumps(report, indent=1))
    else:
        print(
            f"{seen.starts} runs, {seen.kills} kills, {seen.stops} stops (of these"
            f" {seen.ended_by_watchdog} ended by a watchdog)"
        )
        for level, n in limits.items():
            print(f"  {level}: at most {seen.most.get(level, 0)} at once, limit {n}")
        print(
            f"permits: {ours:,.0f}/s, semaphore: {theirs:,.0f}/s, ratio {ours / theirs:,.0f} (at"
            f" least {GOAL})"
        )
    exceeded = any(seen.most.get(level, 0) > n for level, n in limits.items())
    return 1 if exceeded or ours < GOAL * theirs else 0


def measure_ledger(nodes: int, keys: int) -> int:
    """Print the size of records and the time of rounds while all nodes run all keys."""
    from fairlead.core.limits.sharded_permits import Permits

    store = LedgerStore()
    every = [Permits(f"worker-{n:03d}.example.org#{n:08x}", 15.0) for n in range(nodes)]
    pools = [f"key-{key:05d}" for key in range(keys)]

    def round_of(permits: Permits, now: float) -> list[float]:
        """Do a round of a node, and return the milliseconds of each shard."""
        times = []
        for pool in pools:
            while permits.take(pool, nodes, now):
                pass
        for shard in permits.due(now):
            began = time.process_time()
            store.follow(permits.round(shard, lambda: now))
            times.append(1000 * (time.process_time() - began))
        return times

    for now in (0.0, 0.5, 1.0, 6.0):
        rounds = [round_of(permits, now) for permits in every]
    steps = [ms for each in rounds for ms in each]
    running = sum(permits.running for permits in every)
    report = {
        "running": running,
        "records": len(store.shards),
        "greatest_record_bytes": store.greatest,
        "ms_of_a_round": round(sum(steps) / nodes, 1),
        "ms_at_once_mean": round(sum(steps) / len(steps), 2),
        "ms_at_once_p99": round(sorted(steps)[len(steps) * 99 // 100], 2),
    }
    print(json.dumps(report, indent=1))
    return 1 if store.greatest >= 64 * 1024 or running != nodes * keys else 0


def together(ledger, url: str) -> float:
    """Return the slots acquired per second by all processes at work together."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(PROCESSES) as pool:
        barrier_at = time.time() + 3.0
        counts = pool.starmap(ledger, [(url, barrier_at) for _ in range(PROCESSES)])
    return sum(counts) / MEASURED_SECONDS


def acquire_permits(url: str, starts_at: float) -> int:
    """Acquire and release one permit at a time, until the measured time ends."""
    return asyncio.run(_acquire_permits(url, starts_at))


async def _acquire_permits(url: str, starts_at: float) -> int:
    import os
    from types import SimpleNamespace
    from typing import Any

    from fairlead.backends.zookeeper.coordinator import ZooKeeperCoordinator
    from fairlead.clock import SYSTEM_CLOCK
    from fairlead.core.limits.cluster_limits import ClusterLimit
    from fairlead.engine.cluster_limits import ClusterLimits
    from fairlead.model import Trigger

    coordinator = ZooKeeperCoordinator(url)
    events: Any = SimpleNamespace(on_freed=lambda _: None)
    limits = ClusterLimits(f"node {os.getpid()}", coordinator, events, SYSTEM_CLOCK)
    policy = limits.on_node(ClusterLimit(TOTAL), "bench")
    keeping = asyncio.create_task(limits.run())
    trigger = Trigger("1", 1, "q", 0, "n", 5, "", 1.0, None)
    count, ends = 0, starts_at + MEASURED_SECONDS
    while (now := time.time()) < ends:
        for _ in range(200):
            if policy.acquire(trigger, time.monotonic()) is not None:
                break
            policy.release(trigger, time.monotonic())
            count += now >= starts_at
        await asyncio.sleep(0)
    keeping.cancel()
    await asyncio.wait([keeping])
    await limits.leave()
    coordinator.close()
    return count


def acquire_semaphore(url: str, starts_at: float) -> int:
    """Acquire and release one lease of a kazoo semaphore at a time, until the measured time
    ends."""
    from kazoo.client import KazooClient

    client = KazooClient(url.removeprefix("zookeeper://"))
    client.start()
    semaphore = client.Semaphore("/semaphore", max_leases=TOTAL)
    count, ends = 0, starts_at + MEASURED_SECONDS
    while (now := time.time()) < ends:
        with semaphore:
            count += now >= starts_at
    client.stop()
    return count


if __name__ == "__main__":
    sys.exit(main())
