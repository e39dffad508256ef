"""Measure PgQueuer and Procrastinate beside a transaction that stays open, as
`bench/open_transaction.py` measures Fairlead.

    python bench/open_transaction_peers.py    # 800 tasks/s, 60 s without it and 240 s beside it
    python bench/open_transaction_peers.py --rate 800 --beside 1800 --only pgqueuer

Needs the programs of the peers in ../shared/bench/peers; see bench/README.md. Prints one JSON line
for each window: tasks, p50 and p99 from the enqueue call to the start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PEERS = ROOT.parent / "shared" / "bench" / "peers"
NAMES = ("pgqueuer", "procrastinate")
EVERY = 0.05
"""Seconds between two enqueue calls."""
WINDOW = 20.0
"""Seconds of one window."""

Enqueue = Callable[[list[float]], Coroutine[Any, Any, object]]


async def pgqueuer(peer: Any) -> Enqueue:
    """Return a function that enqueues tasks of PgQueuer."""
    queries = await peer.queries()

    async def enqueue(instants: list[float]) -> None:
        count = len(instants)
        payloads = [str(at).encode() for at in instants]
        await queries.enqueue(["noop"] * count, payloads, [0] * count)

    return enqueue


async def procrastinate(peer: Any) -> Enqueue:
    """Return a function that enqueues tasks of Procrastinate."""
    import tasks_procrastinate as tasks

    await tasks.app.open_async()

    async def enqueue(instants: list[float]) -> None:
        await tasks.noop.batch_defer_async(*({"at": at} for at in instants))

    return enqueue


async def load(
    begin: Callable[[Any], Coroutine[Any, Any, Enqueue]],
    peer: Any,
    rate: float,
    is_over: threading.Event,
) -> None:
    """Enqueue tasks at a rate until told to stop."""
    enqueue = await begin(peer)
    due = time.monotonic()
    while not is_over.is_set():
        due = max(due + EVERY, time.monotonic() - 1.0)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await enqueue([time.time()] * round(rate * EVERY))


@contextmanager
def worker(peer: Any, folder: Path) -> Iterator[None]:
    """Run one worker of a peer."""
    from peers import env

    with subprocess.Popen(
        peer.worker,
        env=env(folder),
        cwd=PEERS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def windows(name: str, window: str, seconds: float, folder: Path) -> None:
    """Report windows for some time."""
    ends = time.monotonic() + seconds
    while (began := time.monotonic()) < ends:
        known = len(waits(folder))
        time.sleep(min(WINDOW, max(0.0, ends - began)))
        new = sorted(waits(folder)[known:])
        line: dict[str, Any] = {"peer": name, "window": window}
        line["per_second"] = round(len(new) / (time.monotonic() - began))
        for percent in (50, 99) if new else ():
            at = min(len(new) - 1, len(new) * percent // 100)
            line[f"p{percent}_ms"] = round(1000 * new[at], 1)
        print(json.dumps(line), flush=True)


def waits(folder: Path) -> list[float]:
    """Return the seconds that each task of the one worker waited, in the order of starts."""
    lines = [line for log in folder.glob("*.log") for line in log.read_text().splitlines()]
    return [float(line.split()[1]) for line in lines if line.startswith("L ")]


def measure(name: str, url: str, given: argparse.Namespace) -> None:
    """Report one peer, alone and beside an open transaction."""
    os.environ["PG_DSN"] = url
    import peers
    import psycopg

    peer = {each.name: each for each in peers.Peer.__subclasses__()}[name]()
    peer.setup()
    is_over, begin = threading.Event(), {"pgqueuer": pgqueuer, "procrastinate": procrastinate}[name]
    submitter = threading.Thread(
        target=lambda: asyncio.run(load(begin, peer, given.rate, is_over)), daemon=True
    )
    with tempfile.TemporaryDirectory() as folder, worker(peer, Path(folder)):
        submitter.start()
        windows(name, "without", given.without, Path(folder))
        with psycopg.connect(url) as snapshot:
            snapshot.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            snapshot.execute("SELECT count(*) FROM pg_class")
            windows(name, "beside", given.beside, Path(folder))
        is_over.set()
        submitter.join()


def main() -> None:
    """Run what the command line asks for, with the interpreter that has the peers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=800.0, help="tasks enqueued per second")
    parser.add_argument("--without", type=float, default=60.0, help="seconds before")
    parser.add_argument("--beside", type=float, default=240.0, help="seconds beside it")
    parser.add_argument("--only", choices=NAMES, help="one peer")
    given = parser.parse_args()
    sys.path[:0] = [str(HERE), str(ROOT), str(PEERS)]
    if not (PEERS / "peers.py").is_file():
        sys.exit("the folder ../shared/bench/peers is not beside this repository")
    if "PEERS_PYTHON" not in os.environ:
        from run import peers_python

        python = str(peers_python(with_others=True))
        os.environ |= {"PEERS_PYTHON": python, "PYTHONPATH": str(ROOT / "src")}
        os.execv(python, [python, *sys.argv])
    from services.postgres import PostgresServer

    with PostgresServer() as server:
        for name in [given.only] if given.only else NAMES:
            measure(name, server.create_database(), given)


if __name__ == "__main__":
    main()
