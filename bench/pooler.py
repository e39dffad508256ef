"""Measure submits and a worker through PgBouncer in transaction mode, beside direct connections.

    python bench/pooler.py               # three rounds; three minutes
    python bench/pooler.py --tasks 5000 --rounds 1

`direct`: without a pooler. `pooled`: everything through it. `way around`: as pooled, but the worker
has the way around the pooler for the connection that listens (`?direct=`). Prints a JSON line for
each round, and the medians as ratios to `direct`: single submits a second, by four threads and by
one loop, their p50, tasks drained a second, and the p50 from submit to start on an idle worker and
at a steady rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fairlead import App  # noqa: E402
from fairlead.testing import running, settled  # noqa: E402
from services.pgbouncer import PgBouncerServer  # noqa: E402
from services.postgres import PostgresServer  # noqa: E402

WAYS = ("direct", "pooled", "way around")
THREADS = 4
SINGLES = 100
"""Tasks of which the wait is measured one after the other."""
RATE = 200
"""Tasks submitted per second, for the wait at a steady rate."""


def application(url: str, waits: list[float]) -> tuple[App, Any]:
    """Return an application and its task, which notes the seconds from its submit to its start."""
    app = App(url)

    @app.task
    async def quick(at: float) -> None:
        waits.append(time.time() - at)

    return app, quick


def submits(url: str, tasks: int) -> dict[str, float]:
    """Measure single submits, by threads and by an event loop."""
    app, task = application(url, [])

    def submit(_: object) -> float:
        began = time.perf_counter()
        task.submit(at=0.0)
        return time.perf_counter() - began

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(submit, range(THREADS * 4)))  # opens the connections
        began = time.perf_counter()
        took = list(threads.map(submit, range(tasks)))
        threaded = tasks / (time.perf_counter() - began)

    async def submit_all() -> float:
        await task.submit_async(at=0.0)
        began = time.perf_counter()
        for _ in range(tasks):
            await task.submit_async(at=0.0)
        seconds = time.perf_counter() - began
        await app.store.database.close_async()
        return tasks / seconds

    looped = asyncio.run(submit_all())
    app.close()
    return {"threads_per_s": threaded, "p50_ms": median(took) * 1000, "loop_per_s": looped}


async def work(url: str, tasks: int) -> dict[str, float]:
    """Measure a worker: a drain, single tasks, and tasks at a steady rate."""
    waits: list[float] = []
    app, _ = application(url, waits)
    submitter, task = application(url, [])  # has no worker, so it is as another process
    await asyncio.to_thread(task.submit_many, [{"at": 0.0}] * tasks)
    began = time.perf_counter()
    async with running(app) as node:
        await settled(app, node)
        drained = tasks / (time.perf_counter() - began)
        waits.clear()
        for _ in range(SINGLES):
            count = len(waits)
            await task.submit_async(at=time.time())
            while len(waits) == count:
                await asyncio.sleep(0.001)
        single = median(waits)
        waits.clear()
        due = time.perf_counter()
        for _ in range(RATE * 4):
            due += 1 / RATE
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await task.submit_async(at=time.time())
        await settled(app, node)
    await submitter.store.database.close_async()
    app.close()
    return {
        "drained_per_s": drained,
        "idle_p50_ms": single * 1000,
        "steady_p50_ms": median(waits) * 1000,
    }


def rounds(servers: ExitStack, count: int, tasks: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of each way in each round."""
    server = servers.enter_context(PostgresServer())
    pooler = servers.enter_context(PgBouncerServer(server, default_pool_size=20))
    for number in range(count):
        for way in WAYS:
            urls = []
            for _ in range(2):
                url = server.create_database()
                migrated, _ = application(url, [])
                migrated.migrate()
                migrated.close()
                around = f"?direct=127.0.0.1:{urlsplit(url).port}" if way == "way around" else ""
                urls.append(url if way == "direct" else f"{pooler.url_of(url)}{around}")
            figures = submits(urls[0], tasks) | asyncio.run(work(urls[1], tasks))
            yield {"round": number, "way": way} | {k: round(v, 2) for k, v in figures.items()}


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    found = []
    with ExitStack() as servers:
        for line in rounds(servers, given.rounds, given.tasks):
            found.append(line)
            print(json.dumps(line), flush=True)
    direct = medians(found, "direct")
    for way in WAYS:
        figures = medians(found, way)
        ratios = {name: round(value / direct[name], 2) for name, value in figures.items()}
        print(json.dumps({"way": way, "median": figures, "ratio": ratios}))


def medians(found: list[dict[str, Any]], way: str) -> dict[str, float]:
    """Return the median of each figure of one way."""
    lines = [line for line in found if line["way"] == way]
    names = lines[0].keys() - {"round", "way"}
    return {name: median(line[name] for line in lines) for name in sorted(names)}


if __name__ == "__main__":
    main()
