"""Triggers through Kafka: latency, drain, priorities, a broker outage, and dying workers; prints a
line of JSON for each run.

python bench/kafka.py [latency] [drain] [priority] [broker] [nodes] [--stores sqlite,postgres]
    [--runs 3]

All of them by default. Exit code 1 if a task was lost, ran twice without reason, or an aim was
missed:

- latency: 3 workers, a submit each 20 ms: from its commit to the first line of the handler, p50
  below 10 ms
- drain: tasks that wait in a paused queue, and tasks that wait for a worker to start: at least 0.7
  of the rate of the database channel
- priority: 100,000 tasks of low priority, then 100 of high priority, which start before 10,200 have
  started
- broker: stopped for 30 s under load
- nodes: one killed with -9, one added, during 100,000 tasks
"""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fairlead import App  # noqa: E402
from fairlead.backends.kafka.endpoint import KafkaEndpoint  # noqa: E402
from fairlead.engine.lease_names import owners_of  # noqa: E402
from fairlead.ports.notification import Notification  # noqa: E402
from services.kafka import KafkaServer  # noqa: E402
from services.postgres import PostgresServer  # noqa: E402
from tests.end_to_end.test_kafka import PIECE, submit_in_pieces  # noqa: E402
from tests.end_to_end.test_kill import app_of, judge, submit, wait_until_finished  # noqa: E402
from tests.end_to_end.workers import Crew  # noqa: E402

RUNS = ("latency", "drain", "priority", "broker", "nodes")
LATENCY_MS, DRAIN_RATIO, MOST_STARTED = 10.0, 0.7, 10_200
missed: list[object] = []


def say(**report: object) -> None:
    print(json.dumps(report), flush=True)
    if report.get("aim") == "missed":
        missed.append(report)


def kind(channel: str | None) -> str:
    return urlsplit(channel).scheme if channel else "database"


def aim(is_reached: bool) -> str:
    return "reached" if is_reached else "missed"


def wait_for(what: str, is_so: Callable[[], bool], seconds: float = 600.0) -> None:
    """Wait for a change made by other processes. Raise TimeoutError if it does not come."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)  # no event of ours announces the change


@contextlib.contextmanager
def workers(
    url: str, channel: str | None, count: int, **environment: str
) -> Iterator[tuple[App, Crew]]:
    """Start workers that own all partitions, and yield the application of this process with
    them."""
    names = {
        "FAIRLEAD_CHANNEL": channel or "database",
        "CRASH_SLEEP": "0",
        "CRASH_CONCURRENCY": "500",
        **environment,
    }
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    app = app_of(url)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            Crew(url, pathlib.Path(folder), count) as crew,
        ):
            wait_for("workers", lambda: crew.started == count)
            submit(app, "work", range(-1, 0))
            wait_for("the first task", lambda: -1 in crew.runs())
            wait_for("partitions", lambda: is_owned(app))
            yield app, crew
    finally:
        app.close()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def is_owned(app: App) -> bool:
    if not app.channel.shares_partitions:
        return len(owners_of(asyncio.run(app.connections.coordinator.owners()))) == 6
    found = KafkaEndpoint.of(os.environ["FAIRLEAD_CHANNEL"]).status(["crash"]).partitions
    return len(found) == 6 and all(partition.owner for partition in found)


def lag(channel: str) -> int:
    return sum(
        partition.lag for partition in KafkaEndpoint.of(channel).status(["crash"]).partitions
    )


def latency(store: str, url: str, channel: str | None, count: int = 500) -> float:
    """Return the median latency in milliseconds."""
    committed: dict[int, float] = {}
    with workers(url, channel, 3) as (app, crew):
        announce, number = app.channel.announce, 0

        def timed(notification: Notification) -> None:
            committed[number] = time.time()
            announce(notification)

        app.channel.announce = timed  # type: ignore[method-assign]
        for number in range(count):
            submit(app, "work", range(number, number + 1))
            time.sleep(0.02)  # interval between submits
        wait_until_finished(app, crew)
        runs = crew.runs()
    took = sorted(
        (runs[n][0][1] - committed[n]) * 1000 for n in range(50, count)
    )  # the first tasks warm up
    p50 = statistics.median(took)
    say(
        run="latency",
        store=store,
        channel=kind(channel),
        workers=3,
        tasks=len(took),
        p50_ms=round(p50, 2),
        p99_ms=round(took[round(len(took) * 0.99) - 1], 2),
    )
    return p50


def drain(store: str, url: str, channel: str | None, how: str, tasks: int) -> float:
    """Return the tasks per second, from the first to the last."""
    resumed_at = 0.0
    if how == "worker starts":
        os.environ["FAIRLEAD_CHANNEL"] = channel or "database"
        app = app_of(url)
        submit(app, "work", range(tasks))
        app.close()
        del os.environ["FAIRLEAD_CHANNEL"]
        with workers(url, channel, 1) as (app, crew):
            wait_until_finished(app, crew)
            runs = crew.runs()
    else:
        with workers(url, channel, 1) as (app, crew):
            app.management.pause("crash")
            wait_for(
                "the first task to be gone",
                lambda: not app.store.database.read_now(app.store.unfinished(["crash"]))[0],
            )
            for first in range(0, tasks, PIECE):
                submit(app, "work", range(first, first + PIECE))
            if kind(channel) == "kafka":
                wait_for("Kafka to be read", lambda: lag(channel) == 0)
            resumed_at = time.time()
            app.management.unpause("crash")
            wait_until_finished(app, crew)
            runs = crew.runs()
    assert len(runs.keys() & set(range(tasks))) == tasks
    # A pause takes effect within seconds: tasks that ran before it are not counted.
    times = sorted(
        at for n, those in runs.items() for _, at in those if n >= 0 and at >= resumed_at
    )
    rate = len(times) / (times[-1] - times[0])
    say(
        run="drain",
        how=how,
        store=store,
        channel=kind(channel),
        tasks=tasks,
        per_second=round(rate),
    )
    return rate


def priority(
    store: str, url: str, channel: str, order: str, low: int = 100_000, high: int = 100
) -> None:
    """Run one worker whose first tasks block it until all tasks have been submitted."""
    with tempfile.TemporaryDirectory() as folder:
        gate = pathlib.Path(folder) / "gate"
        with workers(
            url, channel, 1, CRASH_GATE=str(gate), CRASH_ORDER=order, CRASH_CONCURRENCY="100"
        ) as (app, crew):
            (worker,) = crew.processes
            before = memory(worker.pid)
            work = app.handlers["work"]
            piece = PIECE if store == "postgres" else 5000
            for first in range(0, low, piece):
                submit(app, "work", range(first, first + piece), priority=9)
            submit(app, "work", range(low, low + high), priority=0)
            began = time.monotonic()
            wait_for("offsets", lambda: lag(channel) == 0)
            offsets_after = time.monotonic() - began
            gate.touch()
            wait_for("the high ones", lambda: crew.runs().keys() >= set(range(low, low + high)))
            order_of_start = sorted((at, n) for n, those in crew.runs().items() for _, at in those)
            started = max(rank for rank, (_, n) in enumerate(order_of_start, 1) if n >= low)
            say(
                run="priority",
                store=store,
                order=order,
                low=low,
                high=high,
                name=work.name,
                all_high_started_among_the_first=started,
                aim=aim(started < MOST_STARTED),
                offsets_committed_to_the_end_after_s=round(offsets_after, 1),
                worker_mb_before=before,
                worker_mb_peak=memory(worker.pid),
            )
            crew.processes[0].kill()  # the other 90,000 tasks need not run


def memory(pid: int) -> int:
    """Return the peak resident memory in MB."""
    (line,) = [
        line
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        if "VmHWM" in line
    ]
    return round(int(line.split()[1]) / 1024)


def broker(store: str, url: str, seconds: float = 30.0) -> None:
    """Submit through an outage of the broker."""
    with KafkaServer() as server, workers(url, server.url, 2) as (app, crew):
        numbers, slowest, is_over = 0, 0.0, threading.Event()

        def sending() -> None:
            nonlocal numbers, slowest
            while not is_over.is_set():
                began = time.monotonic()
                submit(app, "work", range(numbers, numbers + 10))
                slowest = max(slowest, time.monotonic() - began)
                numbers += 10
                time.sleep(0.02)  # interval between submits

        sender = threading.Thread(target=sending)
        sender.start()
        # The outage lasts for a fixed time: nothing here can be waited for.
        time.sleep(5)
        at_stop = numbers
        server.crash()
        time.sleep(seconds)
        ran_meanwhile, at_start = len(crew.runs()) - at_stop, numbers
        server.start()
        time.sleep(10)
        is_over.set()
        sender.join()
        began = time.monotonic()
        wait_until_finished(app, crew)
        twice = judge(crew, range(numbers))
        say(
            run="broker",
            store=store,
            stopped_s=seconds,
            tasks=numbers,
            lost=0,
            ran_twice=twice,
            submitted_while_away=at_start - at_stop,
            ran_while_away=ran_meanwhile,
            slowest_submit_ms=round(slowest * 1000),
            drained_after_s=round(time.monotonic() - began, 1),
            aim=aim(twice == 0),
        )


def nodes(store: str, url: str, channel: str, tasks: int = 100_000) -> None:
    with workers(url, channel, 2) as (app, crew):
        sender = threading.Thread(target=submit_in_pieces, args=(app, range(tasks)))
        sender.start()
        wait_for("a tenth", lambda: len(crew.runs()) > tasks // 10)
        crew.processes.append(crew.start())
        wait_for("a third", lambda: len(crew.runs()) > tasks // 3)
        crew.kill_one()
        wait_for("two thirds", lambda: len(crew.runs()) > tasks * 2 // 3)
        crew.kill_one()
        sender.join()
        wait_until_finished(app, crew)
        twice = judge(crew, range(tasks))
        say(
            run="nodes",
            store=store,
            tasks=tasks,
            kills=2,
            added=1,
            lost=0,
            ran_twice_in_flight_at_a_kill=twice,
            seed=crew.seed,
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--stores", default="sqlite,postgres")
    parser.add_argument("--runs", type=int, default=3, help="rounds of a drain; the median counts")
    parser.add_argument("--tasks", type=int, default=30_000, help="in a drain")
    wanted = parser.parse_args()
    if unknown := set(wanted.what) - set(RUNS):
        parser.error(f"no run named {', '.join(sorted(unknown))}; there are {', '.join(RUNS)}")
    with (
        KafkaServer() as kafka,
        PostgresServer() as postgres,
        tempfile.TemporaryDirectory() as folder,
    ):
        count = 0

        def fresh(store: str) -> str:
            nonlocal count
            count += 1
            return (
                f"sqlite:///{folder}/tasks-{count}.db"
                if store == "sqlite"
                else postgres.create_database()
            )

        for store in wanted.stores.split(","):
            for run in wanted.what or RUNS:
                if run == "latency":
                    latency(store, fresh(store), None)
                    p50 = latency(store, fresh(store), kafka.create_prefix())
                    say(run=run, store=store, aim=aim(p50 < LATENCY_MS))
                elif run == "drain":
                    for how in ("worker starts", "queue resumed"):
                        rates: dict[bool, list[float]] = {False: [], True: []}
                        for round_number in range(wanted.runs):
                            for is_kafka in (
                                (False, True) if round_number % 2 == 0 else (True, False)
                            ):
                                channel = kafka.create_prefix() if is_kafka else None
                                rates[is_kafka].append(
                                    drain(store, fresh(store), channel, how, wanted.tasks)
                                )
                        ratio = statistics.median(rates[True]) / statistics.median(rates[False])
                        say(
                            run=run,
                            how=how,
                            store=store,
                            kafka_to_database=round(ratio, 2),
                            aim=aim(ratio >= DRAIN_RATIO),
                        )
                elif run == "priority":
                    for order in ("fair", "fifo"):
                        priority(store, fresh(store), kafka.create_prefix(), order)
                elif run == "broker":
                    broker(store, fresh(store))
                else:
                    nodes(store, fresh(store), kafka.create_prefix())
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
