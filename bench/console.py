"""The console beside big tables: time to the first byte of each screen, statements a second while
viewers look, and the workers' drain rate beside them; prints a line of JSON for each result.

python bench/console.py [--store postgres|sqlite] [--tasks 5000000] [--attempts 50000000]
                        [--viewers 20] [--drain 100000] [--pairs 5] [--folder FOLDER] [--url URL]

The tables are copies of real rows (see bench/console_fill.py). Each screen is opened 40 times by
one viewer, each time with another parameter where it has one; `first` is the first visit, for which
nothing that screens share is younger than the limit, and `first_visit_of_all` that of a console
which has read nothing yet; `processor` is the console's processor time of
a visit, all times are in milliseconds. Then viewers keep all live screens open while nothing
changes, and again while a worker drains tasks, in turns with the worker alone. Aims: p95 to the
first byte 150 ms, 2 statements a second at rest, 2 % slower drain.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import pathlib
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

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
LIVE = [
    "overview",
    "tenants",
    "queues",
    "task",
    "queue",
    "tenant",
    "ordered",
    "periodic",
    "nodes",
    "incidents",
    "actions",
]
"""Screens that follow changes."""
REST_SECONDS = 6.0
"""Seconds after which nothing that screens share is used any more."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", choices=["postgres", "sqlite"], default="postgres")
    parser.add_argument("--tasks", type=int, default=5_000_000)
    parser.add_argument("--attempts", type=int, default=50_000_000)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--drain", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--rest",
        type=float,
        default=120,
        help="Seconds to watch at rest; pages reload each minute.",
    )
    parser.add_argument("--folder", help="Keep the SQLite file here.")
    parser.add_argument("--url", help="Measure this database, which was filled before.")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = given.folder or stack.enter_context(tempfile.TemporaryDirectory())
        url = f"sqlite:///{folder}/tasks.db"
        if given.url:
            url = given.url
        elif given.store == "postgres":
            server = stack.enter_context(PostgresServer())
            url = server.create_database()
        asyncio.run(measure(url, given))
    return 0


def say(**found: object) -> None:
    print(json.dumps(found), flush=True)


async def measure(url: str, given: argparse.Namespace) -> None:
    os.environ["CONSOLE_URL"] = url
    import console_app

    if not given.url:
        await prepare(url, given)
    ids = [task.id for task in console_app.app.management.page(limit=VISITS).tasks]
    async with console_process(url) as served:
        await open_screens(served, ids)
        await watch(served, ids, given)
    console_app.app.close()


async def prepare(url: str, given: argparse.Namespace) -> None:
    """Make tasks and attempts by a worker, then copy them until there are enough."""
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


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out what the failing tasks of the application write."""
    import logging

    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@dataclass(frozen=True)
class Served:
    """A console in a process of its own."""

    address: str
    url: str
    process: int
    counts: pathlib.Path
    """File with the number of its statements on SQLite."""

    @property
    def seconds(self) -> float:
        """Processor time that the console has used."""
        fields = pathlib.Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def statements(self) -> int:
        """Return the statements of the console, or the transactions of all on PostgreSQL."""
        if not self.url.startswith("postgres"):
            return int(struct.unpack("<q", self.counts.read_bytes())[0])
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT pg_stat_force_next_flush()")
            row = connection.execute(
                "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
            ).fetchone()
            assert row is not None
            return int(row[0])


@asynccontextmanager
async def console_process(url: str) -> AsyncIterator[Served]:
    """Run `fairlead web` in a process of its own."""
    environment = {**os.environ, "CONSOLE_URL": url, "FAIRLEAD_WEB_TOKEN": TOKEN}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path[:3])
    with tempfile.NamedTemporaryFile() as counts:
        counts.write(bytes(8))
        counts.flush()
        script = str(ROOT / "bench" / "console_serve.py")
        process = subprocess.Popen(
            [sys.executable, script, counts.name, "console_app:app", "--port", "0"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            line = ""
            while "http://" not in line:
                line = process.stdout.readline()
                assert line, "the console has not started"
            address = line[line.index("http://") :].split("/login")[0].strip().rstrip("/")
            yield Served(address, url, process.pid, pathlib.Path(counts.name))
        finally:
            process.terminate()
            process.wait()


def paths(visit: int, ids: list[str]) -> dict[str, str]:
    """Return the address of each screen for one visit."""
    given = {"n": visit * 7 % TENANTS, "rows": 50 + visit % 50, "id": ids[visit % len(ids)]}
    return {name: path.format(**given) for name, path in SCREENS.items()}


async def open_screens(served: Served, ids: list[str]) -> None:
    """Print the times to the first byte of each screen."""
    async with logged_in(served.address) as client:
        began = time.perf_counter()
        await client.get("/")
        say(first_visit_of_all=round((time.perf_counter() - began) * 1000, 1))
        for name in SCREENS:
            times, statuses = [], set()
            await asyncio.sleep(REST_SECONDS)
            used = served.seconds
            for visit in range(VISITS):
                began = time.perf_counter()
                async with client.stream("GET", paths(visit, ids)[name]) as response:
                    async for _ in response.aiter_raw(1):
                        break
                    statuses.add(response.status_code)
                times.append((time.perf_counter() - began) * 1000)
            ordered = sorted(times)
            say(
                screen=name,
                status=sorted(statuses),
                first=round(times[0], 1),
                p50=round(statistics.median(ordered), 1),
                p95=round(ordered[math.ceil(len(ordered) * 0.95) - 1], 1),
                worst=round(ordered[-1], 1),
                processor=round((served.seconds - used) / VISITS * 1000, 1),
                load=round(os.getloadavg()[0], 1),
            )


@asynccontextmanager
async def logged_in(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=address, timeout=120) as client:
        response = await client.get("/login", params={"token": TOKEN})
        assert response.status_code == 303, response.text
        yield client


async def watch(served: Served, ids: list[str], given: argparse.Namespace) -> None:
    """Print the statements a second of viewers at rest, and the drain rate with and without."""
    await watch_at_rest(served, ids, given.viewers, given.rest)
    rates: dict[str, list[float]] = {"alone": [], "watched": []}
    costs: dict[str, list[float]] = {"alone": [], "watched": []}
    used = seconds = 0.0
    for _ in range(given.pairs):
        for how, viewers in (("alone", 0), ("watched", given.viewers)):
            async with watching(served, ids, viewers):
                began, before = time.perf_counter(), served.seconds
                rate, cost = await asyncio.to_thread(drain, served.url, given.drain)
                rates[how].append(rate)
                costs[how].append(cost)
                if viewers:
                    used += served.seconds - before
                    seconds += time.perf_counter() - began
    say(
        drained_per_second={how: [round(rate) for rate in each] for how, each in rates.items()},
        watched_by_alone=round(
            statistics.median(rates["watched"]) / statistics.median(rates["alone"]), 3
        ),
        median_of_pairs=round(
            statistics.median(b / a for a, b in zip(rates["alone"], rates["watched"], strict=True)),
            3,
        ),
        worker_microseconds={how: [round(cost, 1) for cost in each] for how, each in costs.items()},
        worker_microseconds_ratio=round(
            statistics.median(costs["watched"]) / statistics.median(costs["alone"]), 3
        ),
        console_processor_share=round(used / seconds, 4),
        load=round(os.getloadavg()[0], 1),
    )


async def watch_at_rest(served: Served, ids: list[str], viewers: int, seconds: float) -> None:
    """Print the statements a second of the viewers, above those without viewers."""
    counts, shares = [], []
    for number in (0, viewers):
        async with watching(served, ids, number):
            await asyncio.sleep(10)
            before, used = served.statements(), served.seconds
            await asyncio.sleep(seconds)
            counts.append((served.statements() - before) / seconds)
            shares.append((served.seconds - used) / seconds)
    say(
        viewers=viewers,
        statements_per_second=round(counts[1] - counts[0], 2),
        console_processor_share=round(shares[1], 4),
    )


@asynccontextmanager
async def watching(served: Served, ids: list[str], viewers: int) -> AsyncIterator[None]:
    """Keep the live screens open as browsers do: a stream of events, and the page again at each
    one."""

    async def view(number: int) -> None:
        path = paths(number, ids)[LIVE[number % len(LIVE)]]
        async with logged_in(served.address) as client:
            await client.get(path)
            async with client.stream("GET", "/live") as events:
                async for line in events.aiter_lines():
                    if line.startswith("event: changed"):
                        await client.get(path, headers={"hx-request": "true"})

    tasks = [asyncio.create_task(view(number)) for number in range(viewers)]
    await asyncio.sleep(3)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(result, asyncio.CancelledError):
                raise AssertionError(f"a viewer has ended: {result!r}")


def drain(url: str, tasks: int) -> tuple[float, float]:
    """Return the tasks a second of one worker process that drains a queue of its own, and its
    processor time for each task in microseconds."""
    script = ROOT / "bench" / "console_drain.py"
    found = subprocess.run(
        [sys.executable, str(script), url, str(tasks)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    rate, cost = map(float, found.stdout.split())
    return rate, cost


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    raise SystemExit(main())
