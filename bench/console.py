"""The console beside big tables: time to the first byte of each screen, statements a second while
viewers look, and the workers' drain rate beside them; prints a line of JSON for each result.

python bench/console.py [--store postgres|sqlite] [--tasks 5000000] [--attempts 50000000]
                        [--viewers 20] [--drain 20000] [--folder FOLDER]

The tables are copies of real rows (see bench/console_fill.py). Each screen is opened 40 times by
one viewer, each time with another parameter where it has one, so that no result is shared. Then
viewers keep the overview open, live, while nothing changes, and again while workers drain tasks.
Aims: p95 to the first byte 150 ms, 2 statements a second at rest, 2 % slower drain.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "tests" / "end_to_end")]

import httpx  # noqa: E402
import psycopg  # noqa: E402

from bench.console_fill import TENANTS, fill  # noqa: E402
from services.postgres import PostgresServer  # noqa: E402

TOKEN = "a token of the benchmark only"
VISITS = 40
SCREENS = {
    "overview": "/",
    "tasks": "/tasks?rows={rows}",
    "tasks in ERROR": "/tasks?state=ERROR&rows={rows}",
    "tasks of a tenant": "/tasks?tenant=tenant-{n}",
    "tasks by error": "/tasks?error=expired&rows={rows}",
    "tasks by argument": "/tasks?argument=account%3Dacme&rows={rows}",
    "tasks done": "/tasks?state=DONE&rows={rows}",
    "task": "/tasks/task?id={id}",
    "tenants": "/tenants?rows={rows}",
    "tenant": "/tenants/tenant?key=tenant-{n}",
    "queues": "/queues",
    "queue": "/queues/queue?name=mail",
    "ordered": "/ordered",
    "periodic": "/periodic",
    "nodes": "/nodes",
    "incidents": "/incidents?rows={rows}",
    "policies": "/policies?rows={rows}",
    "actions": "/actions?rows={rows}",
    "audit": "/audit?rows={rows}",
    "doctor": "/doctor",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", choices=["postgres", "sqlite"], default="postgres")
    parser.add_argument("--tasks", type=int, default=5_000_000)
    parser.add_argument("--attempts", type=int, default=50_000_000)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--drain", type=int, default=20_000)
    parser.add_argument("--folder", help="Keep the SQLite file here.")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = given.folder or stack.enter_context(tempfile.TemporaryDirectory())
        url = f"sqlite:///{folder}/tasks.db"
        if given.store == "postgres":
            server = stack.enter_context(PostgresServer())
            url = server.create_database()
        asyncio.run(measure(url, given))
    return 0


def say(**found: object) -> None:
    print(json.dumps(found), flush=True)


async def measure(url: str, given: argparse.Namespace) -> None:
    os.environ["CONSOLE_URL"] = url
    import console_app

    from fairlead.testing import running

    console_app.app.migrate()
    console_app.fill()
    with quiet():
        async with running(console_app.app):
            while any(q.submitted or q.processing for q in console_app.app.management.queues()):
                await asyncio.sleep(0.1)
    console_app.fill()  # tasks that no worker has run yet
    await console_app.app.connections.close_async()
    began = time.perf_counter()
    fill(url, given.tasks, given.attempts)
    say(filled=[given.tasks, given.attempts], seconds=round(time.perf_counter() - began, 1))
    ids = [task.id for task in console_app.app.management.page(limit=VISITS).tasks]
    async with console_process(url) as address:
        await open_screens(address, ids)
        await watch(url, address, given)
    console_app.app.close()


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out what the failing tasks of the application write."""
    import logging

    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@asynccontextmanager
async def console_process(url: str) -> AsyncIterator[str]:
    """Run `fairlead web` in a process of its own; yield its address."""
    environment = {**os.environ, "CONSOLE_URL": url, "FAIRLEAD_WEB_TOKEN": TOKEN}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path[:3])
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "web", "console_app:app", "--port", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = ""
        while "http://" not in line:
            line = process.stdout.readline()
        yield line[line.index("http://") :].split("/login")[0].strip().rstrip("/")
    finally:
        process.terminate()
        process.wait()


async def open_screens(address: str, ids: list[str]) -> None:
    """Print the times to the first byte of each screen."""
    async with logged_in(address) as client:
        for name, path in SCREENS.items():
            times, statuses = [], set()
            for visit in range(VISITS):
                here = path.format(
                    n=visit * 7 % TENANTS, rows=50 + visit % 50, id=ids[visit % len(ids)]
                )
                began = time.perf_counter()
                async with client.stream("GET", here) as response:
                    async for _ in response.aiter_raw(1):
                        break
                    statuses.add(response.status_code)
                times.append((time.perf_counter() - began) * 1000)
            ordered = sorted(times)
            say(
                screen=name,
                status=sorted(statuses),
                p50=round(statistics.median(ordered), 1),
                p95=round(ordered[int(len(ordered) * 0.95) - 1], 1),
                worst=round(ordered[-1], 1),
            )


@asynccontextmanager
async def logged_in(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=address, timeout=120) as client:
        response = await client.get("/login", params={"token": TOKEN})
        assert response.status_code == 303, response.text
        yield client


async def watch(url: str, address: str, given: argparse.Namespace) -> None:
    """Print the statements a second of viewers at rest, and the drain rate with and without."""
    rates: dict[str, list[float]] = {"alone": [], "watched": []}
    at_rest = await statements(url, address, given.viewers)
    say(viewers=given.viewers, statements_per_second=at_rest)
    for _ in range(3):
        for how, viewers in (("alone", 0), ("watched", given.viewers)):
            async with watching(address, viewers):
                rates[how].append(drain_rate(url, given.drain))
    say(
        drained_per_second={how: [round(rate) for rate in each] for how, each in rates.items()},
        watched_by_alone=round(
            statistics.median(rates["watched"]) / statistics.median(rates["alone"]), 3
        ),
    )


async def statements(url: str, address: str, viewers: int) -> float | None:
    """Return the transactions a second of PostgreSQL while viewers look at the overview at rest,
    above those without viewers; None on SQLite, which does not count them."""
    if not url.startswith("postgres"):
        return None
    counts = []
    for number in (0, viewers):
        async with watching(address, number):
            await asyncio.sleep(3)
            before = transactions(url)
            await asyncio.sleep(15)
            counts.append((transactions(url) - before) / 15)
    return round(counts[1] - counts[0], 2)


def transactions(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        row = connection.execute(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
        assert row is not None
        return int(row[0])


@asynccontextmanager
async def watching(address: str, viewers: int) -> AsyncIterator[None]:
    """Keep the overview open as browsers do: a stream of events, and the page again at each one."""

    async def view() -> None:
        async with logged_in(address) as client:
            await client.get("/")
            async with client.stream("GET", "/live") as events:
                async for line in events.aiter_lines():
                    if line.startswith("event: changed"):
                        await client.get("/", headers={"hx-request": "true"})

    tasks = [asyncio.create_task(view()) for _ in range(viewers)]
    await asyncio.sleep(1)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def drain_rate(url: str, tasks: int) -> float:
    """Return the tasks a second of one worker process that drains a queue of its own."""
    script = ROOT / "bench" / "console_drain.py"
    found = subprocess.run(
        [sys.executable, str(script), url, str(tasks)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(found.stdout)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    raise SystemExit(main())
