"""Many tasks in ERROR on Redis alone: the time of each look and change, and the longest time for
which one command holds the server; prints a line of JSON for each run.

python bench/dead_letters.py [--letters 1000000] [--bytes 500]

Each line has the seconds of the whole operation, the longest command by the server's slow log, the
number of commands over the aim of 20 ms, and the longest response to a ping on another connection
meanwhile. These times include those for which the machine runs other programs, so run it on an idle
machine. The exit code is 1 if a command takes longer than the aim.
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
from contextlib import contextmanager
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from redis import Redis  # noqa: E402

from fairlead import App  # noqa: E402
from fairlead.backends.redis.sharded.dead_letters import DeadLetterSteps, Revival  # noqa: E402
from fairlead.backends.redis.sharded.endpoint import GROUP  # noqa: E402
from fairlead.backends.redis.sharded.message import ClaimEnd  # noqa: E402
from fairlead.backends.redis.sharded.steps import Steps  # noqa: E402
from fairlead.backends.redis.task_messages import reasons  # noqa: E402
from fairlead.model import State  # noqa: E402
from fairlead.operate.changes import Retry  # noqa: E402
from fairlead.sharded import SyncShardedQueue  # noqa: E402
from services.redis import RedisServer  # noqa: E402

AIM = 20.0  # milliseconds
BATCH = 500
PAGE = 1000  # incidents that a worker checks in one round
NOW = 4_000_000_000_000_000  # microseconds since the epoch: every incident is due


def say(**report: object) -> None:
    print(json.dumps(report), flush=True)


def ping(url: str, longest: Any, ended: Any) -> None:
    """Ping the server until the end, and keep the longest time (seconds) of a response."""
    with Redis.from_url(url) as redis:
        redis.ping()
        while not ended.wait(0.001):
            began = time.perf_counter()
            redis.ping()
            longest.value = max(longest.value, time.perf_counter() - began)


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
        longest, ended = multiprocessing.Value("d", 0.0), multiprocessing.Event()
        pinging = multiprocessing.Process(target=ping, args=(self.url, longest, ended), daemon=True)
        pinging.start()
        self.server.slowlog_reset()
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            ended.set()
            pinging.join()
        slow = [entry["duration"] / 1000 for entry in self.server.slowlog_get(10_000)]
        if run != "fill":
            self.worst = max([self.worst, *slow])
        say(
            run=run,
            seconds=round(seconds, 3),
            longest_command_ms=round(max(slow, default=1.0), 1),
            commands_over_aim=sum(each > AIM for each in slow),
            longest_ping_ms=round(longest.value * 1000, 1),
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

    def retry_all(self) -> int:
        """Write all dead letters into their queue again; return their number."""
        steps, moved = DeadLetterSteps(self.lane), 0
        while heads := self.do(steps.page("")):
            moved += sum(self.do(steps.revive([Revival(head) for head in heads])))
        return moved


def run(bench: Bench, letters: int, size: int) -> None:
    management, incidents = bench.app.management, bench.store.incidents

    def sweep(after: int) -> int:
        return asyncio.run(incidents.sweep(after, NOW, PAGE))

    with bench.measured("fill", letters=letters, bytes=size):
        ids = bench.fill(letters, size)
    rare = bench.task.options(fairness_key="rare").submit("").id
    (found,) = bench.do(bench.lane.read_many(GROUP, "c", 1, 0.0))
    bench.do(bench.lane.finish(GROUP, "c", [ClaimEnd(found.id, "dead", reasons("E", "no"))]))
    used = bench.server.info("memory")["used_memory"]
    say(run="memory", gigabytes=round(used / 1e9, 2))
    with bench.measured("first sweep: an incident for each"):
        sweep(0)
    with bench.measured("next sweep: a round of 1,000"):
        sweep(0)
    with bench.measured("claim 100 incidents"):
        assert len(asyncio.run(incidents.claim(NOW, NOW + 1, 100))) == 100
    with bench.measured("list 100"):
        assert len(management.find(state=State.ERROR)) == 100
    with bench.measured("find by a rare key among all"):
        (only,) = management.find(state=State.ERROR, fairness_key="rare")
        assert only.id == rare
    with bench.measured("show the last, with its payload"):
        assert management.show(ids[-1]).state == State.ERROR
        assert management.payload(ids[-1]) is not None
    with bench.measured("retry the last"):
        management.retry(ids[-1])
    bulk = letters // 4
    with bench.measured(f"retry {bulk} as a bulk change"):
        result = management.bulk(Retry(), state=State.ERROR, limit=bulk)
        assert result.changed == bulk
    with bench.measured("retry all others"):
        assert bench.retry_all() == letters + 1 - 1 - bulk
    assert management.queues()[0].submitted == letters + 1
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
