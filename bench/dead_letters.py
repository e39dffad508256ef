"""Many tasks in ERROR on Redis alone: the time of each look and change, and the longest time for
which one command holds the server; prints a line of JSON for each run. While all are retried, an
interruption comes after a quarter, and another process submits tasks.

python bench/dead_letters.py [--letters 1000000] [--bytes 500]

Each line has the seconds of the whole operation, the longest command by the server's slow log, the
number of commands over the aim of 20 ms, and the p99 and the longest time of the responses to a
ping every 2 ms on another connection meanwhile. The times of pings include those for which the
machine runs other programs: `probe_late_ms` is the longest time by which the probe itself came too
late. The exit code is 1 if a command takes longer than the aim.
"""

import argparse
import asyncio
import json
import multiprocessing
import pathlib
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from redis import Redis  # noqa: E402

from fairlead import App  # noqa: E402
from fairlead.backends.redis.sharded.endpoint import GROUP  # noqa: E402
from fairlead.backends.redis.sharded.message import ClaimEnd  # noqa: E402
from fairlead.backends.redis.sharded.steps import Steps  # noqa: E402
from fairlead.backends.redis.task_messages import reasons  # noqa: E402
from fairlead.model import State  # noqa: E402
from fairlead.operate.changes import Retry  # noqa: E402
from fairlead.operate.tasks import BulkResult  # noqa: E402
from fairlead.sharded import SyncShardedQueue  # noqa: E402
from services.redis import RedisServer  # noqa: E402

AIM = 20.0  # milliseconds
BATCH = 500
PING_SECONDS = 0.002
PAGE = 1000  # incidents that a worker checks in one round
NOW = 4_000_000_000_000_000  # microseconds since the epoch: every incident is due


def say(**report: object) -> None:
    print(json.dumps(report), flush=True)


def ping(url: str, results: Any, ended: Any) -> None:
    """Ping the server every 2 ms until the end. Send the p99 and the longest time of a response,
    and the longest time by which a ping came too late, in seconds."""
    times, late = [0.0], 0.0
    with Redis.from_url(url) as redis:
        redis.ping()
        results.send(None)
        until = time.perf_counter() + PING_SECONDS
        while not ended.is_set():
            time.sleep(max(0.0, until - time.perf_counter()))
            began = time.perf_counter()
            redis.ping()
            answered = time.perf_counter()
            times.append(answered - began)
            late, until = max(late, began - until), answered + PING_SECONDS
    times.sort()
    results.send((times[len(times) * 99 // 100], times[-1], late))


def submit(url: str, count: Any, ended: Any) -> None:
    """Submit tasks until the end, and count them."""
    app = App(url)

    @app.task
    async def other(body: str) -> None: ...

    while not ended.wait(0.01):
        other.submit_many([{"body": ""}] * 10)
        count.value += 10
    app.close()


@contextmanager
def submitting(url: str) -> Iterator[Any]:
    """Submit tasks in another process, and yield their number, which is final after the block."""
    count, ended = multiprocessing.Value("q", 0), multiprocessing.Event()
    process = multiprocessing.Process(target=submit, args=(url, count, ended), daemon=True)
    process.start()
    try:
        yield count
    finally:
        ended.set()
        process.join()


class Bench:
    """An application on a Redis of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = App(url)
        self.store: Any = self.app.store
        self.server = Redis.from_url(url)
        self.server.config_set("slowlog-log-slower-than", 1000)
        self.server.config_set("slowlog-max-len", 10_000)
        self.queue = SyncShardedQueue(self.store.endpoint.server.url, "unused")
        self.lane = self.store.endpoint.lanes("default", 5).at(5)
        self.worst = 0.0  # milliseconds

        @self.app.task
        async def fail(body: str) -> None: ...

        self.task = fail

    def do(self, steps: Steps[Any]) -> Any:
        return self.queue._do(steps)

    @contextmanager
    def measured(self, run: str, **report: object) -> Iterator[None]:
        (results, sent), ended = multiprocessing.Pipe(duplex=False), multiprocessing.Event()
        pinging = multiprocessing.Process(target=ping, args=(self.url, sent, ended), daemon=True)
        pinging.start()
        results.recv()  # it has begun
        self.server.slowlog_reset()
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            ended.set()
            p99, longest, late = results.recv()
            pinging.join()
        slow = [entry["duration"] / 1000 for entry in self.server.slowlog_get(10_000)]
        if run != "fill":
            self.worst = max([self.worst, *slow])
        say(
            run=run,
            seconds=round(seconds, 3),
            longest_command_ms=round(max(slow, default=1.0), 1),
            commands_over_aim=sum(each > AIM for each in slow),
            ping_p99_ms=round(p99 * 1000, 2),
            longest_ping_ms=round(longest * 1000, 1),
            probe_late_ms=round(late * 1000, 1),
            **report,
        )

    def fill(self, letters: int, size: int) -> list[str]:
        """Submit tasks and move them to ERROR; return their ids."""
        body, ids = secrets.token_hex(size)[:size], []
        # Submits and ends of runs have no limit of bytes, and are not measured here.
        batch = max(1, min(BATCH, 500_000 // size))
        for start in range(0, letters, batch):
            bodies = [{"body": body}] * min(batch, letters - start)
            ids += [each.id for each in self.task.submit_many(bodies)]
            found = self.do(self.lane.read_many(GROUP, "c", batch, 0.0))
            ends = [ClaimEnd(each.id, "dead", reasons("ValueError", "no")) for each in found]
            self.do(self.lane.finish(GROUP, "c", ends))
        return ids

    def sweep_all(self, sweep: Callable[[int], int]) -> int:
        """Check all incidents, a round of a worker at a time; return the number of rounds."""
        after, rounds = sweep(0), 1
        while after:
            after = sweep(after)
            rounds += 1
        return rounds

    def memory(self) -> None:
        """Print the memory of the server, and the bytes of each kind of key for one dead letter."""
        names = ["5:dead", "5:dead:heads", "dead:names", "dead:keys"]
        found = {}
        for name in names:
            (key,) = self.server.keys(f"*default}}:{name}")
            count = (self.server.zcard if name[0] == "d" else self.server.xlen)(key)
            found[name] = round(self.server.memory_usage(key, samples=100_000) / count)
        used = self.server.info("memory")["used_memory"]
        say(run="memory", gigabytes=round(used / 1e9, 2), bytes_a_letter=found)


def run(bench: Bench, letters: int, size: int) -> None:
    management, incidents = bench.app.management, bench.store.incidents

    def sweep(after: int) -> int:
        return asyncio.run(incidents.sweep(after, NOW, PAGE))

    with bench.measured("fill", letters=letters, bytes=size):
        ids = bench.fill(letters, size)
    rare = bench.task.options(fairness_key="rare").submit("").id
    (found,) = bench.do(bench.lane.read_many(GROUP, "c", 1, 0.0))
    end = ClaimEnd(found.id, "dead", reasons("E", "a rare text"))
    bench.do(bench.lane.finish(GROUP, "c", [end]))
    bench.memory()
    with bench.measured("first sweeps: an incident for each"):
        bench.sweep_all(sweep)
    with bench.measured("next sweep: a round of 1,000"):
        sweep(0)
    with bench.measured("claim 100 incidents"):
        assert len(asyncio.run(incidents.claim(NOW, NOW + 1, 100))) == 100
    with bench.measured("list 100"):
        assert len(management.find(state=State.ERROR)) == 100
    with bench.measured("find by a rare key among all"):
        (only,) = management.find(state=State.ERROR, fairness_key="rare")
        assert only.id == rare
    with bench.measured("find by a rare text of the error among all"):
        (only,) = management.find(state=State.ERROR, error="RARE")
        assert only.id == rare
    with bench.measured("find by a name that no task has"):
        assert management.find(state=State.ERROR, name="none") == []
    with bench.measured("show the last, with its payload"):
        assert management.show(ids[-1]).state == State.ERROR
        assert management.payload(ids[-1]) is not None
    with bench.measured("retry the last"):
        management.retry(ids[-1])
    changed = 0

    def on_batch(sums: BulkResult) -> None:
        nonlocal changed
        changed = sums.changed
        if not is_again and changed >= letters // 4:
            raise KeyboardInterrupt

    is_again = False
    with submitting(bench.url) as written:
        with bench.measured("retry all, interrupted after a quarter"), suppress(KeyboardInterrupt):
            management.bulk(Retry(), state=State.ERROR, on_batch=on_batch)
        first, is_again = changed, True
        with bench.measured("retry all, again"):
            management.bulk(Retry(), state=State.ERROR, on_batch=on_batch)
    assert first + changed == letters, (first, changed)
    (status,) = management.queues()
    assert (status.submitted, status.error) == (letters + 1 + written.value, 0)
    say(run="all retried", interrupted_after=first, then=changed, written_meanwhile=written.value)
    with bench.measured("sweeps after the end of all"):
        bench.sweep_all(sweep)
    assert asyncio.run(incidents.counts()) == {}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--letters", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=500, help="payload of a task")
    wanted = parser.parse_args()
    letters = wanted.letters
    with RedisServer() as redis:
        bench = Bench(redis.url)
        run(bench, letters, wanted.bytes)
        bench.app.close()
    say(run="all", longest_command_ms=round(bench.worst, 1), aim_ms=AIM)
    return int(bench.worst > AIM)


if __name__ == "__main__":
    sys.exit(main())
