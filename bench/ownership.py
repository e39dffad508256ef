"""Partitions that change owners under load, on PostgreSQL; prints a line of JSON for each run.

bench/ownership.py nodes      three nodes, 50,000 tasks: one node added, one stopped, one killed
bench/ownership.py cassandra  a backlog in Cassandra at 1,000 tasks/s: kill -9 of its owner
bench/ownership.py rivals     a backlog in Cassandra: two nodes believe they own it, for 60 s

Exit code 1 if a task was lost, or a hand-over took too long: more than 2 s for a node that stops,
15 s for a killed one (the lease of 10 s, and 5 s).
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "src")]

from fairlead.backends.sql.coordinator import DatabaseCoordinator  # noqa: E402
from fairlead.errors import StoreUnavailable  # noqa: E402
from fairlead.model import LaneKey  # noqa: E402
from fairlead.ports.backlog_store import Fenced  # noqa: E402
from fairlead.testing import running  # noqa: E402
from services.cassandra import CassandraServer  # noqa: E402
from services.postgres import PostgresServer  # noqa: E402

KEYS = 200
GRACEFUL_SECONDS = 2.0
KILLED_SECONDS = 15.0
PATIENCE = 300.0
RATE = 1000
"""Tasks per second in the runs with Cassandra."""


class Nodes:
    """Worker processes by pid, each with its metrics on a port of its own."""

    def __init__(self, folder: pathlib.Path, concurrency: int) -> None:
        self._folder = folder
        self._concurrency = concurrency
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ports: dict[int, int] = {}

    def start(self) -> int:
        """Start one more worker, and return its pid."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with (self._folder / f"worker-{port}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "fairlead",
                    "worker",
                    "tasks_owned:app",
                    "--metrics-port",
                    str(port),
                    "--concurrency",
                    str(self._concurrency),
                    "--log-level",
                    "warning",
                ],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT / "src")])},
                stdout=log,
                stderr=log,
            )
        self.processes[process.pid], self._ports[process.pid] = process, port
        return process.pid

    def end(self, pid: int, how: signal.Signals) -> float:
        """Send the signal, and return the time in seconds since the epoch."""
        at = time.time()
        self.processes[pid].send_signal(how)
        if how is signal.SIGKILL:
            self.processes[pid].wait()
        return at

    def metric(self, pid: int, sample: str) -> float:
        """Return the value of one sample, 0 if the worker has none."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self._ports[pid]}/metrics", timeout=5
        ) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{sample} "))

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


def submit(app: Any, work: Any, count: int, chance: random.Random) -> None:
    """Submit tasks whose n-th key has tasks in proportion to 1 / n."""
    popularity = list(itertools.accumulate(1 / n for n in range(1, KEYS + 1)))
    keys = chance.choices(range(KEYS), cum_weights=popularity, k=count)
    app.submit_many([work.options(fairness_key=f"tenant-{key}").draft() for key in keys])


def attempts(app: Any) -> list[tuple[int, int, float]]:
    """Return (partition, pid of the node, time of the claim) of every attempt, by time."""
    with app.store.database.transaction() as connection:
        rows = connection.execute(
            "SELECT partition, node, claimed_at FROM fairlead_attempts"
        ).fetchall()
    return sorted(
        ((part, pid_of(node), at / 1e6) for part, node, at in rows), key=lambda row: row[2]
    )


def pid_of(node: str) -> int:
    return int(node.rsplit("-", 2)[1])


def counts_of(app: Any) -> tuple[int, Counter[str]]:
    """Return the number of unfinished tasks, and the attempts by outcome."""
    with app.store.database.transaction() as connection:
        left = connection.execute("SELECT count(*) FROM fairlead_tasks").fetchone()[0]
        rows = connection.execute(
            "SELECT outcome, count(*) FROM fairlead_attempts GROUP BY outcome"
        ).fetchall()
    return left, Counter(dict(rows))


def wait_for(what: str, is_so: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for a change made by other processes. Raise TimeoutError if it does not come."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.1)  # other processes raise no event here


def ran(app: Any) -> int:
    return counts_of(app)[1]["done"]


def hand_overs(rows: Sequence[tuple[int, int, float]], pid: int, at: float) -> list[float]:
    """Return for each partition of the ended node the seconds until another node claimed one of its
    tasks."""
    last = {part: owner for part, owner, when in rows if when <= at}
    found = []
    for part in [part for part, owner in last.items() if owner == pid]:
        following = next(
            (when for p, owner, when in rows if p == part and owner != pid and when > at), None
        )
        if following is not None:
            found.append(round(following - at, 2))
    return sorted(found)


def overlaps(rows: Sequence[tuple[int, int, float]]) -> int:
    """Count claims by a node within 5 s after another node had taken over the partition."""
    count = 0
    owners: dict[int, int] = {}
    lost: dict[tuple[int, int], float] = {}
    for part, pid, when in rows:
        owner = owners.get(part)
        if owner is not None and owner != pid:
            if when - lost.get((part, pid), float("-inf")) < 5:
                count += 1
                continue
            lost[part, owner] = when
        owners[part] = pid
    return count


def nodes(tasks: int, seed: int) -> dict[str, Any]:
    """Run "nodes"; see the module."""
    os.environ.update(OWNED_PARTITIONS="8", OWNED_SECONDS="0.05")
    with (
        new_app() as (app, work),
        tempfile.TemporaryDirectory() as folder,
        Nodes(pathlib.Path(folder), 40) as crew,
    ):
        submit(app, work, tasks, random.Random(seed))
        first, second, _ = crew.start(), crew.start(), crew.start()
        wait_for("all three have run tasks", lambda: len({pid for _, pid, _ in attempts(app)}) == 3)
        added_at, added = time.time(), crew.start()
        wait_for(
            "the added node runs tasks", lambda: any(pid == added for _, pid, _ in attempts(app))
        )
        joined = min(when for _, pid, when in attempts(app) if pid == added) - added_at
        stopped_at = crew.end(first, signal.SIGTERM)
        crew.processes[first].wait(30)
        wait_for("it continues", lambda: any(when > stopped_at + 4 for _, _, when in attempts(app)))
        killed_at = crew.end(second, signal.SIGKILL)
        wait_for("everything has run", lambda: counts_of(app)[0] == 0)
        rows, (left, outcomes) = attempts(app), counts_of(app)
        graceful, killed = hand_overs(rows, first, stopped_at), hand_overs(rows, second, killed_at)
        return {
            "run": "nodes",
            "tasks": tasks,
            "seed": seed,
            "lost": tasks - outcomes["done"],
            "left": left,
            "outcomes": dict(outcomes),
            "joined_after_s": round(joined, 1),
            "hand_over_graceful_s": graceful,
            "hand_over_killed_s": killed,
            "claims_by_a_former_owner": overlaps(rows),
            "is_met": (
                outcomes["done"] == tasks
                and all(s < GRACEFUL_SECONDS for s in graceful)
                and all(s < KILLED_SECONDS for s in killed)
                and bool(graceful and killed)
            ),
        }


def cassandra(seconds: int, seed: int) -> dict[str, Any]:
    """Run "cassandra"; see the module. The owner runs about as many tasks per second as arrive,
    before a backlog of 30,000."""
    os.environ.update(OWNED_PARTITIONS="1", OWNED_SECONDS="0.05")
    chance = random.Random(seed)
    with (
        CassandraServer() as server,
        new_app(server.create_keyspace()) as (app, work),
        tempfile.TemporaryDirectory() as folder,
        Nodes(pathlib.Path(folder), RATE // 16) as crew,
    ):
        submit(app, work, 30_000, chance)
        pids = [crew.start(), crew.start()]
        submitted = 30_000
        is_over = threading.Event()

        def pace() -> None:
            nonlocal submitted
            while not is_over.wait(0.1):
                submit(app, work, RATE // 10, chance)
                submitted += RATE // 10

        pacing = threading.Thread(target=pace)
        pacing.start()
        try:
            wait_for("tasks run", lambda: ran(app) > 0)
            time.sleep(seconds / 2)  # the load before the crash
            before = attempts(app)
            owner = before[-1][1]
            at = time.time()
            rate = sum(1 for *_, when in before if when > at - 10) / 10
            crew.end(owner, signal.SIGKILL)
            tombstones = asyncio.run(first_reads(app))
            (other,) = [pid for pid in pids if pid != owner]
            wait_for(
                "the other node runs tasks",
                lambda: any(pid == other for _, pid, _ in attempts(app)[-100:]),
            )
            time.sleep(seconds / 2)  # the load after the crash
        finally:
            is_over.set()
            pacing.join()
        wait_for("everything has run", lambda: counts_of(app)[0] == 0)
        again = crew.metric(other, 'fairlead_events_total{event="lost_claims"}')
        rows, (left, outcomes) = attempts(app), counts_of(app)
        budget = 60 * rate
        tombstone_budget = 60 / 15 + budget / 1000
        return {
            "run": "cassandra",
            "seed": seed,
            "tasks": submitted,
            "rate_before_per_s": round(rate),
            "lost": submitted - outcomes["done"],
            "left": left,
            "outcomes": dict(outcomes),
            "hand_over_killed_s": hand_overs(rows, owner, at),
            "dispatched_again": again,
            "budget": round(budget),
            "tombstones": tombstones,
            "tombstone_budget": round(tombstone_budget),
            "is_met": (
                outcomes["done"] == submitted
                and again <= budget
                and max(tombstones) <= tombstone_budget
            ),
        }


async def first_reads(app: Any) -> list[int]:
    """Return the tombstones met by the first reads of a new owner: five pages above the saved ack
    level."""
    store: Any = app.connections.backlog
    ((partition, owned),) = (await store.records()).items()
    ((priority, record),) = owned.lanes.items()
    lane, above = LaneKey(*partition, priority), record.ack_level
    found = []
    for _ in range(5):
        rows, tombstones = await store.traced_read(lane, above, 5000)
        found.append(tombstones)
        if not rows:
            break
        above = rows[-1].level
    return found


class Grants(DatabaseCoordinator):
    """A broken coordinator, which gives every lease to every node and hides the leases of
    others."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._all: dict[str, dict[str, int]] = {}

    async def acquire(self, names: Sequence[str], owner: str, ttl: float) -> dict[str, int]:
        mine = self._all.setdefault(owner, {})
        mine.update(dict.fromkeys(names, 1))
        return dict.fromkeys(names, 1)

    async def renew(self, owner: str, ttl: float) -> dict[str, int]:
        return dict(self._all.get(owner, {}))

    async def release(self, names: Sequence[str], owner: str) -> None:
        for name in names:
            self._all.get(owner, {}).pop(name, None)

    async def owners(self) -> dict[str, str]:
        return {}


def rivals(seconds: int, seed: int) -> dict[str, Any]:
    """Run "rivals"; see the module."""
    os.environ.update(OWNED_PARTITIONS="1", OWNED_SECONDS="0.05")
    with CassandraServer() as server, new_app(server.create_keyspace()) as (app, work):
        return asyncio.run(_rivals(app, work, seconds, seed))


async def _rivals(app: Any, work: Any, seconds: int, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    backlog: Any = app.connections.backlog
    counts: Counter[str] = Counter()

    def counted(name: str) -> None:
        call = getattr(backlog, name)

        async def counting(*arguments: Any) -> Any:
            counts[f"{name}s"] += 1
            try:
                return await call(*arguments)
            except Fenced:
                counts[f"{name}s refused"] += 1
                raise
            except StoreUnavailable:
                counts[f"{name}s failed"] += 1
                raise

        setattr(backlog, name, counting)

    for name in ("take_over", "write", "delete_through"):
        counted(name)
    app.connector.use(app.connections._replace(coordinator=Grants(app.store)))
    await asyncio.to_thread(submit, app, work, 30_000, chance)
    submitted = 30_000
    settings: Mapping[str, Any] = {"concurrency": RATE // 40}
    # Separate channels, as two processes would have.
    async with running(app, **settings) as one, running(twin_of(app), **settings) as other:
        for node in (one, other):
            # each node wants all partitions
            node.parts.ownership.shares.due = lambda queue, partitions, identity=None: partitions
            node.parts.ownership.poke()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.to_thread(submit, app, work, RATE // 2, chance)
            submitted += RATE // 2
            await asyncio.sleep(0.5)
        refused = counts["writes refused"] + counts["delete_throughs refused"]
        end = time.monotonic() + PATIENCE
        while (await asyncio.to_thread(counts_of, app))[0] and time.monotonic() < end:
            await asyncio.sleep(0.2)
    left, outcomes = counts_of(app)
    return {
        "run": "rivals",
        "seconds": seconds,
        "seed": seed,
        "tasks": submitted,
        "lost": submitted - outcomes["done"],
        "left": left,
        "outcomes": dict(outcomes),
        "calls": dict(counts),
        "is_met": outcomes["done"] == submitted and refused > 0,
    }


def twin_of(app: Any) -> Any:
    """Return the same application with connections of its own, except for the backlog store and the
    coordinator."""
    import importlib

    sys.modules.pop("tasks_owned", None)
    twin = importlib.import_module("tasks_owned").app
    twin.connector.use(
        twin.connections._replace(
            backlog=app.connections.backlog, coordinator=app.connections.coordinator
        )
    )
    return twin


@contextlib.contextmanager
def new_app(backlog: str | None = None) -> Iterator[tuple[Any, Any]]:
    """Yield the measured application over an empty, migrated database, and its task."""
    with PostgresServer() as server:
        os.environ["OWNED_URL"] = server.create_database()
        if backlog is not None:
            os.environ["OWNED_BACKLOG"] = backlog
        import tasks_owned

        tasks_owned.app.migrate()
        if backlog is not None:
            asyncio.run(tasks_owned.app.connections.backlog.migrate())
        yield tasks_owned.app, tasks_owned.work
        tasks_owned.app.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", choices=["nodes", "cassandra", "rivals"])
    parser.add_argument("--tasks", type=int, default=50_000, help="of `nodes`")
    parser.add_argument("--seconds", type=int, default=60, help="of `cassandra` and `rivals`")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    wanted = parser.parse_args()
    if wanted.run == "nodes":
        report = nodes(wanted.tasks, wanted.seed)
    else:
        report = {"cassandra": cassandra, "rivals": rivals}[wanted.run](wanted.seconds, wanted.seed)
    print(json.dumps(report), flush=True)
    return 0 if report["is_met"] else 1


if __name__ == "__main__":
    sys.exit(main())
