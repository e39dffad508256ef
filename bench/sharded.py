"""The sharded queue compared with bare commands of redis-py, and the cost of its scripts on the
server; prints a line of JSON for each run.

python bench/sharded.py [rates] [costs] [fair] [--rounds 5] [--messages 4000]

All by default. No run has an aim: the ratios are for information.

- rates: messages per second of 1 and of 8 processes, one by one and in batches of 100: written;
  read and acknowledged. Compared with XADD, XREADGROUP and XACK of one plain stream, which keeps
  everything, and with the same and XDEL, which keeps nothing, like our queue. Each round measures
  all of them, every other round backwards; the result is the median of the rounds' ratios.
- costs: microseconds of the server for a read of 64 streams, full, 12 of them full, and empty, both
  ways; a write; an acknowledgement; by the server's own statistics.
- fair: with 40, 400 and 4,000 tenants that wait, the places of 20 new tenants of one message, read
  by tenants, and the share of four tenants of weight 10; microseconds of the server's processor for
  a message read and acknowledged, and its bytes of memory and of the append-only file.
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from redis import Redis  # noqa: E402

from fairlead.core.sharding.shards import shard  # noqa: E402
from fairlead.sharded import Empty, NewMessage, SyncShardedQueue  # noqa: E402
from services.redis import RedisServer  # noqa: E402

BATCH, TENANTS = 100, 20
BODY = b"x" * 100


def say(**report: object) -> None:
    print(json.dumps(report), flush=True)


# rates --------------------------------------------------------------------------------------------


class Sharded:
    """The sharded queue with 64 streams, 6 a shard, and 20 tenants."""

    def __init__(self, url: str, name: str, reads: Any) -> None:
        self._queue = SyncShardedQueue(url, "q", reads=reads)
        self._name = name

    def write(self, count: int) -> None:
        for n in range(count):
            self._queue.write({"body": BODY}, shard_key=f"tenant {n % TENANTS}")

    def write_batches(self, count: int) -> None:
        news = [NewMessage({"body": BODY}, f"tenant {n % TENANTS}") for n in range(BATCH)]
        for _ in range(count // BATCH):
            self._queue.write_many(news)

    def read(self, count: int) -> None:
        for _ in range(count):
            self._queue.ack("g", self._queue.read("g", self._name).id)

    def read_batches(self, count: int) -> None:
        while count > 0:
            found = self._queue.read_many("g", self._name, count=min(BATCH, count))
            self._queue.ack("g", *(message.id for message in found))
            count -= len(found)


class Bare:
    """One stream and one group, with the fewest round trips that the commands need."""

    def __init__(self, url: str, name: str, deletes: bool) -> None:
        self._redis = Redis.from_url(url)
        self._name = name
        self._deletes = deletes
        with contextlib.suppress(Exception):  # another client has created the group
            self._redis.xgroup_create("bare", "g", "0", mkstream=True)

    def write(self, count: int) -> None:
        for _ in range(count):
            self._redis.xadd("bare", {"body": BODY})

    def write_batches(self, count: int) -> None:
        for _ in range(count // BATCH):
            with self._redis.pipeline(transaction=False) as pipeline:
                for _ in range(BATCH):
                    pipeline.xadd("bare", {"body": BODY})
                pipeline.execute()

    def read(self, count: int) -> None:
        for _ in range(count):
            self._read(1)

    def read_batches(self, count: int) -> None:
        while count > 0:
            count -= self._read(min(BATCH, count))

    def _read(self, count: int) -> int:
        found: Any = self._redis.xreadgroup("g", self._name, {"bare": ">"}, count=count)
        ids = [id for id, _ in found[0][1]]
        if not self._deletes:
            self._redis.xack("bare", "g", *ids)
            return len(ids)
        with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.xack("bare", "g", *ids)
            pipeline.xdel("bare", *ids)
            pipeline.execute()
        return len(ids)


CONTESTANTS: dict[str, Callable[[str, str], Any]] = {
    "sharded, by streams": lambda url, name: Sharded(url, name, "streams"),
    "sharded, by tenants": lambda url, name: Sharded(url, name, "tenants"),
    "bare": lambda url, name: Bare(url, name, deletes=False),
    "bare with XDEL": lambda url, name: Bare(url, name, deletes=True),
}


def client(url: str, who: str, deed: str, count: int, barrier: Any, times: Any) -> None:
    """Run one client process."""
    contestant = CONTESTANTS[who](url, f"consumer {multiprocessing.current_process().pid}")
    barrier.wait()
    began = time.monotonic()
    getattr(contestant, deed)(count)
    times.put((began, time.monotonic()))


def rate(url: str, who: str, deed: str, clients: int, count: int) -> float:
    """Return the messages per second of all clients, from the first start to the last end."""
    each = math.ceil(count / clients / BATCH) * BATCH
    barrier, times = multiprocessing.Barrier(clients), multiprocessing.Queue()
    arguments = (url, who, deed, each, barrier, times)
    processes = [
        multiprocessing.Process(target=client, args=arguments, daemon=True) for _ in range(clients)
    ]
    for process in processes:
        process.start()
    spans = [times.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    return each * clients / (max(end for _, end in spans) - min(began for began, _ in spans))


def rates(url: str, rounds: int, messages: int) -> None:
    found: dict[tuple[str, int, str], list[float]] = {}
    with Redis.from_url(url) as server:
        for round_number in range(rounds):
            for clients in (1, 8):
                for how, factor in (("", 1), ("_batches", 5)):
                    names = list(CONTESTANTS)
                    for who in names if round_number % 2 == 0 else reversed(names):
                        server.flushall()
                        for deed in ("write", "read"):
                            speed = rate(url, who, deed + how, clients, messages * factor)
                            found.setdefault((deed + how, clients, who), []).append(speed)
    for deed in ("write", "read", "write_batches", "read_batches"):
        for clients in (1, 8):
            for who in CONTESTANTS:
                each = found[deed, clients, who]
                say(
                    run="rates",
                    deed=deed,
                    clients=clients,
                    who=who,
                    per_s=round(statistics.median(each)),
                    least=round(min(each)),
                    most=round(max(each)),
                    **{
                        f"to {bare}": ratio(each, found[deed, clients, bare])
                        for bare in ("bare", "bare with XDEL")
                    },
                )


def ratio(each: list[float], others: list[float]) -> float:
    """Return the median of the rounds' ratios, since a slow round is slow for all."""
    return round(statistics.median(one / other for one, other in zip(each, others, strict=True)), 2)


# costs --------------------------------------------------------------------------------------------


def two_apart() -> tuple[str, str]:
    """Return two tenants that share no stream."""
    first = set(shard("tenant 0", 64, 6))
    return "tenant 0", next(
        key for key in (f"tenant {n}" for n in range(1, 100)) if not first & set(shard(key, 64, 6))
    )


def fill(queue: SyncShardedQueue, keys: list[str], count: int) -> None:
    queue.write_many([NewMessage({"body": BODY}, keys[n % len(keys)]) for n in range(count)])


def costs(url: str, rounds: int) -> None:
    with Redis.from_url(url) as server:

        def spent(deed: Callable[[], object], times: int = 200) -> float:
            """Return the server's microseconds for one call of a script."""
            with contextlib.suppress(Empty):
                deed()  # let the server load the script
            server.config_resetstat()
            for _ in range(times):
                with contextlib.suppress(Empty):
                    deed()
            found = server.info("commandstats")["cmdstat_evalsha"]
            assert found["calls"] == times
            return float(found["usec_per_call"])

        found: dict[str, list[float]] = {}
        for _ in range(rounds):
            for reads in ("streams", "tenants"):
                server.flushall()
                with SyncShardedQueue(url, "q", reads=reads) as queue:  # type: ignore[arg-type]
                    read = lambda queue=queue: queue.read("g", "c")  # noqa: E731
                    many = lambda queue=queue: queue.read_many("g", "c", count=BATCH)  # noqa: E731
                    fill(queue, [f"tenant {n}" for n in range(500)], 64 * 100)
                    assert len(server.keys("{q}:s[0-9]*")) == 64
                    found.setdefault(f"read, 64 full, by {reads}", []).append(spent(read))
                    cost = spent(many, 20) / BATCH
                    found.setdefault(f"read, 64 full, batch of 100, each, by {reads}", []).append(
                        cost
                    )
                    server.flushall()
                    fill(queue, list(two_apart()), 12 * 50)
                    found.setdefault(f"read, 12 of 64 full, by {reads}", []).append(spent(read))
                    while True:
                        try:
                            queue.ack(
                                "g",
                                *(message.id for message in queue.read_many("g", "c", count=500)),
                            )
                        except Empty:
                            break
                    held = [
                        message.id for message in queue.reclaim("g", "c", min_idle=0, count=1000)
                    ]
                    queue.ack("g", *held)
                    found.setdefault(f"read, 64 empty, by {reads}", []).append(spent(read))
            server.flushall()
            with SyncShardedQueue(url, "q") as queue:
                write = lambda queue=queue: queue.write({"body": BODY}, shard_key="tenant 0")  # noqa: E731
                found.setdefault("write", []).append(spent(write))
                batch = [NewMessage({"body": BODY}, f"tenant {n % TENANTS}") for n in range(BATCH)]
                cost = spent(lambda queue=queue, batch=batch: queue.write_many(batch), 20) / BATCH  # type: ignore[misc]
                found.setdefault("write, batch of 100, each", []).append(cost)
                ids = iter([message.id for message in queue.read_many("g", "c", count=500)])
                found.setdefault("ack", []).append(
                    spent(lambda queue=queue, ids=ids: queue.ack("g", next(ids)))
                )  # type: ignore[misc]
                parts = iter(
                    [
                        [message.id for message in queue.read_many("g", "c", count=BATCH)]
                        for _ in range(11)
                    ]
                )
                cost = (
                    spent(lambda queue=queue, parts=parts: queue.ack("g", *next(parts)), 10) / BATCH
                )  # type: ignore[misc]
                found.setdefault("ack, batch of 100, each", []).append(cost)
            server.flushall()
            bare = Bare(url, "c", deletes=True)
            server.config_resetstat()
            bare.write(500)
            bare.read(500)
            for name in ("xadd", "xreadgroup", "xack", "xdel"):
                found.setdefault(name.upper(), []).append(
                    server.info("commandstats")[f"cmdstat_{name}"]["usec_per_call"]
                )
        for what, each in found.items():
            say(
                run="costs",
                what=what,
                us=round(statistics.median(each), 1),
                least=round(min(each), 1),
                most=round(max(each), 1),
            )


# fair ---------------------------------------------------------------------------------------------


def served(queue: SyncShardedQueue, count: int) -> list[str]:
    """Read and acknowledge messages in batches, and return their tenants."""
    found: list[str] = []
    while len(found) < count:
        messages = queue.read_many("g", "c", count=min(BATCH, count - len(found)))
        queue.ack("g", *(message.id for message in messages))
        found += [message.shard_key for message in messages]
    return found


def processor_seconds(server: Any) -> float:
    found = server.info("cpu")
    return float(found["used_cpu_user"] + found["used_cpu_sys"])


def fair(url: str) -> None:
    with Redis.from_url(url) as server, SyncShardedQueue(url, "q", reads="tenants") as queue:
        for tenants in (40, 400, 4000):
            server.flushall()
            waiting = max(8000, 2 * tenants)
            empty = server.info("memory")["used_memory"]
            fill(queue, [f"tenant {n}" for n in range(tenants)], waiting)
            written = server.info("memory")["used_memory"]
            appended = server.info("persistence")["aof_current_size"]
            began, began_at = processor_seconds(server), time.monotonic()
            served(queue, 1)  # makes the index
            indexed = server.info("memory")["used_memory"]
            new = [f"young {n}" for n in range(20)]  # of equal tags, theirs come last
            fill(queue, new, 20)
            order = served(queue, waiting + 19)
            places = [order.index(key) + 1 for key in new]
            appended = server.info("persistence")["aof_current_size"] - appended
            say(
                run="fair",
                tenants=tenants,
                waiting=waiting,
                median_place=statistics.median(places),
                last_place=max(places),
                us=round((processor_seconds(server) - began) / len(order) * 1e6, 1),
                per_s=round(len(order) / (time.monotonic() - began_at)),
                aof_bytes=round(appended / len(order)),
                memory_written=round((written - empty) / waiting),
                memory_indexed=round((indexed - written) / waiting),
            )
        for tenants in (80, 400, 4000):
            server.flushall()
            heavy = {f"heavy {n}" for n in range(4)}
            turn = tenants - 4 + 40
            fill(queue, [f"tenant {n}" for n in range(tenants - 4)], 5 * (tenants - 4))
            queue.write_many(
                [NewMessage({"n": 1}, key, None, 10.0) for key in heavy for _ in range(45)]
            )
            share = sum(key in heavy for key in served(queue, 4 * turn)) / (4 * turn)
            say(run="fair", tenants=tenants, share=round(share, 4), due=round(40 / turn, 4))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", metavar="RUN", help="rates, costs, fair")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--messages",
        type=int,
        default=2_400,
        help="one by one in each run; five times as many in batches",
    )
    wanted = parser.parse_args()
    if unknown := set(wanted.what) - {"rates", "costs", "fair"}:
        parser.error(f"no run named {', '.join(sorted(unknown))}; there are rates, costs and fair")
    with RedisServer() as redis:
        if "costs" in wanted.what or not wanted.what:
            costs(redis.url, wanted.rounds)
        if "rates" in wanted.what or not wanted.what:
            rates(redis.url, wanted.rounds, wanted.messages)
    if "fair" in wanted.what or not wanted.what:
        with RedisServer(appendonly=True) as redis:
            fair(redis.url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
