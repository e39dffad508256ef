"""Triggers through Redis compared with those of the database, in one run: latency and drain; prints
a line of JSON for each.

python bench/redis_channel.py [--stores sqlite,postgres] [--runs 3] [--tasks 30000]

- latency: 3 workers, a submit each 20 ms: from its commit to the first line of the handler
- drain: tasks that wait for a worker to start, and tasks that wait in a paused queue
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from redis import Redis  # noqa: E402

from bench.kafka import drain, latency, say  # noqa: E402
from services.postgres import PostgresServer  # noqa: E402
from services.redis import RedisServer  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stores", default="sqlite,postgres")
    parser.add_argument("--runs", type=int, default=3, help="rounds; the median counts")
    parser.add_argument("--tasks", type=int, default=30_000, help="in a drain")
    wanted = parser.parse_args()
    os.environ["CRASH_ORDER"] = ""  # the default order; tenants take turns with both channels
    with (
        RedisServer() as redis,
        PostgresServer() as postgres,
        tempfile.TemporaryDirectory() as folder,
    ):
        count = 0

        def fresh(store: str) -> str:
            nonlocal count
            count += 1
            with Redis.from_url(redis.url) as client:
                client.flushall()
            return (
                f"sqlite:///{folder}/tasks-{count}.db"
                if store == "sqlite"
                else postgres.create_database()
            )

        for store in wanted.stores.split(","):
            for how in ("latency", "worker starts", "queue resumed"):
                found: dict[str | None, list[float]] = {None: [], redis.url: []}
                for pass_ in range(wanted.runs):
                    for channel in (None, redis.url) if pass_ % 2 == 0 else (redis.url, None):
                        url = fresh(store)
                        found[channel].append(
                            latency(store, url, channel)
                            if how == "latency"
                            else drain(store, url, channel, how, wanted.tasks)
                        )
                ratio = statistics.median(found[redis.url]) / statistics.median(found[None])
                say(run=how, store=store, redis_to_database=round(ratio, 2))


if __name__ == "__main__":
    main()
