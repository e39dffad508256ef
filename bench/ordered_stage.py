"""The stage of `ordered.py`: servers, worker processes, paced submits, and the file that handlers
append to."""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import TypeVar

from ordered_judge import Job, Record

from fairlead.core.sharding.partitions import partition_of
from fairlead.errors import ResultTimeout, StoreUnavailable
from services.cassandra import CassandraServer
from services.kafka import KafkaServer
from services.postgres import PostgresServer
from services.server import Server

T = TypeVar("T")
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
SERVERS = {"kafka": KafkaServer, "cassandra": CassandraServer, "postgres": PostgresServer}
MOST_AT_ONCE = 5000
"""Tasks in one submit."""
ANSWER_SECONDS = 30.0
"""Seconds for the log to confirm a task, after which the task is submitted again."""
LOOK_SECONDS = 0.2
_NUMBER = re.compile(r"\d[\d.:]*")
TICK_SECONDS = 0.05
"""Minimum seconds between two submits of a pace."""
STOP_SECONDS = 60.0


def say(text: str) -> None:
    """Print progress to stderr."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def now() -> int:
    """Return microseconds since 1970."""
    return time.time_ns() // 1000


class Broken(Exception):
    """The run cannot continue, for the reason in the message; its records so far are judged all the
    same."""


class Runs:
    """The file of the handlers."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""
        self._ended: set[str] = set()

    def ended(self) -> int:
        """Return the number of tasks that have run to their end at least once."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
            self._offset += len(text)
            *lines, self._rest = (self._rest + text).split(b"\n")
            self._ended.update(
                " ".join(line.decode().split()[4:]) for line in lines if line.startswith(b"end")
            )
        return len(self._ended)

    def records(self) -> Iterator[Record]:
        """Return all records, in the order of the file."""
        if self.path.exists():
            with self.path.open() as lines:
                yield from map(Record.of, lines)


class Worker:
    """One `fairlead worker`, which keeps its number when it is started again."""

    def __init__(
        self, number: int, command: Sequence[str], environment: dict[str, str], log: pathlib.Path
    ) -> None:
        self.number = number
        self.log = log
        self._command = command
        self._environment = environment
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self._said_before = log.tell()
            return subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def restart(self) -> None:
        """Stop and start the worker in order, as a deployment does. Raise Broken if it does not end
        well."""
        self.stop()
        self.process = self._start()

    def kill(self) -> int:
        """Kill the worker with -9, start a new one, and return the time of the kill in microseconds
        since 1970."""
        at = now()
        self.process.kill()
        self.process.wait()
        self.process = self._start()
        return at

    def ask_to_stop(self) -> None:
        """Send SIGTERM once the worker serves: before that, it would end like any process, with
        nothing to hand back."""
        until = time.monotonic() + STOP_SECONDS
        while not self._serves() and self.process.poll() is None and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)  # the log of another process raises no event
        self.process.send_signal(signal.SIGTERM)

    def _serves(self) -> bool:
        with self.log.open("rb") as log:
            log.seek(self._said_before)
            return b'"node started"' in log.read()

    def stop(self) -> None:
        """Stop the worker and wait for it. Raise Broken if it does not end well."""
        self.ask_to_stop()
        self.wait()

    def wait(self) -> None:
        """Wait until the worker has ended. Raise Broken if it does not end, or not well."""
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Broken(
                f"worker {self.number} (pid {self.pid}) did not end within {STOP_SECONDS:.0f} s"
            ) from None
        if code:
            raise Broken(f"worker {self.number} (pid {self.pid}) ended with {code}")


class Stage:
    """The environment of one run: `with Stage(wanted, ...) as stage`."""

    def __init__(self, wanted: argparse.Namespace, **environment: str) -> None:
        """`environment`: variables of the workers, as `ordered_app` reads them."""
        self._wanted = wanted
        self._open = contextlib.ExitStack()
        self._environment = environment
        self.servers: dict[str, Server] = {}
        self.workers: list[Worker] = []
        self.kills: dict[int, int] = {}

    def __enter__(self) -> "Stage":
        with contextlib.ExitStack() as opening:
            kept = self._wanted.keep
            self.folder = pathlib.Path(kept or opening.enter_context(tempfile.TemporaryDirectory()))
            self.folder.mkdir(parents=True, exist_ok=True)
            self.runs = Runs(self.folder / "runs.log")
            if self.runs.path.exists():
                raise SystemExit(f"{self.runs.path} is there already: --keep a new folder")
            for name in self._wanted.servers:
                say(f"starts {name}")
                self.servers[name] = opening.enter_context(SERVERS[name]())
            os.environ.update(self._urls(), ORDERED_RUNS=str(self.runs.path), **self._environment)
            import ordered_app  # reads the environment

            self.module = ordered_app
            self.app = ordered_app.app
            self.app.migrate()
            opening.callback(self.app.close)
            opening.callback(self._end_workers)
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _urls(self) -> dict[str, str]:
        """Return the URLs: the given ones, otherwise those of servers started here, otherwise one
        SQLite file."""
        wanted, servers = self._wanted, self.servers
        database = (
            servers["postgres"].create_database()
            if "postgres" in servers
            else f"sqlite:///{self.folder}/tasks.db"
        )
        log = servers["kafka"].create_prefix() if "kafka" in servers else None
        schedule = servers["cassandra"].create_keyspace() if "cassandra" in servers else None
        found = {
            "ORDERED_URL": wanted.url or database,
            "ORDERED_LOG": wanted.log or log,
            "ORDERED_SCHEDULE": wanted.schedule or schedule,
        }
        return {name: url for name, url in found.items() if url}

    @property
    def where(self) -> dict[str, str]:
        """Return the kinds of log, schedule and task store."""
        kinds = {"store": os.environ["ORDERED_URL"]} | {
            what: os.environ.get(f"ORDERED_{what.upper()}") or os.environ["ORDERED_URL"]
            for what in ("log", "schedule")
        }
        return {what: url.partition(":")[0] for what, url in kinds.items()}

    # workers --------------------------------------------------------------------------------------

    def start_workers(self, count: int, **environment: str) -> None:
        """Start workers, and wait until they serve."""
        for number in range(count):
            command = [
                sys.executable,
                "-m",
                "fairlead",
                "worker",
                "ordered_app:app",
                "--log-format",
                "json",
                "--log-level",
                "info",
                *(["--name", f"worker-{number}"] if self._wanted.named else []),
            ]
            paths = os.pathsep.join([str(HERE), str(ROOT / "src")])
            environs = {**os.environ, **environment, "PYTHONPATH": paths}
            self.workers.append(
                Worker(number, command, environs, self.folder / f"worker-{number}.log")
            )

    def warm_up(self) -> list[Job]:
        """Run one task in each partition, so that each has an owner, and return these jobs."""
        keys: dict[int, str] = {}
        n = 0
        partitions = self.module.PARTITIONS
        while len(keys) < partitions:
            keys.setdefault(partition_of(f"warm-{n}", 0, partitions), f"warm-{n}")
            n += 1
        jobs = [Job(key, "0", now()) for key in keys.values()]
        submit(self, jobs)
        self.wait(len(jobs), 120.0, 30.0)
        return jobs

    def wait(self, tasks: int, patience: float, every: float = 10.0) -> None:
        """Wait until `tasks` tasks have run to their end. Raise Broken if none does for `patience`
        seconds, or if a worker has ended."""
        ended, since, said = self.runs.ended(), time.monotonic(), time.monotonic()
        while ended < tasks:
            time.sleep(LOOK_SECONDS)  # the file of other processes raises no event
            self.check_workers()
            if (more := self.runs.ended()) != ended:
                ended, since = more, time.monotonic()
            elif time.monotonic() - since > patience:
                raise Broken(
                    f"{ended:,} of {tasks:,} tasks have ended, and none more within"
                    f" {patience:.0f} s"
                )
            if time.monotonic() - said > every:
                say(f"{ended:,} of {tasks:,} tasks have ended")
                said = time.monotonic()

    def rest(self, seconds: float) -> None:
        """Let time pass. Raise Broken if a worker ends meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(LOOK_SECONDS, left))  # a span of time, not an event
            self.check_workers()

    def check_workers(self) -> None:
        """Raise Broken if a worker has ended by itself."""
        for worker in self.workers:
            if (code := worker.process.poll()) is not None:
                raise Broken(
                    f"worker {worker.number} (pid {worker.pid}) has ended by itself with {code}"
                )

    def stop_workers(self) -> None:
        """Stop all workers in order. Raise Broken if one does not end well."""
        workers, self.workers = self.workers, []
        for worker in workers:
            worker.ask_to_stop()
        for worker in workers:
            worker.wait()

    def _end_workers(self) -> None:
        try:
            self.stop_workers()
        except Broken as broken:
            say(str(broken))

    # afterwards -----------------------------------------------------------------------------------

    def left(self) -> tuple[int, int]:
        """Return the entries of the log that are not in the schedule, and the unfinished tasks in
        the schedule, as `fairlead ordered status` shows them."""
        views = self._look(self.app.management.ordered.status(self.module.QUEUE))
        return sum(view.lag for view in views), sum(view.unfinished for view in views)

    def lag(self) -> int:
        """Return the number of entries of the log that are not in the schedule."""
        return sum(self._look(self.app.connections.log.lag(self.module.QUEUE)).values())

    def _look(self, looking: Awaitable[T]) -> T:
        async def look() -> T:
            try:
                return await looking
            finally:
                await self.app.connections.close_async()

        return asyncio.run(look())

    def log_counts(self) -> dict[str, int]:
        """Return the counts of the workers' log lines from WARNING on; lines in another format
        have the key "other lines"."""
        found: Counter[str] = Counter()
        for log in sorted(self.folder.glob("worker-*.log")):
            for line in log.read_text(errors="replace").splitlines():
                try:
                    event = json.loads(line)
                    if event["level"] in ("warning", "error", "critical"):
                        found[f"{event['level']}: {_NUMBER.sub('N', event['event'])[:80]}"] += 1
                        found["tracebacks"] += "exception" in event
                except (ValueError, KeyError, TypeError):
                    found["other lines"] += 1
        return {what: count for what, count in found.most_common() if count}


def submit(stage: Stage, jobs: Sequence[Job]) -> int:
    """Submit jobs until the log has all of them, and return how many were repeated. Jobs that the
    log may not have are submitted again before any later job."""
    repeated = 0
    for low in range(0, len(jobs), MOST_AT_ONCE):
        missing: Sequence[Job] = jobs[low : low + MOST_AT_ONCE]
        while missing:
            missing = _submit(stage, missing)
            repeated += len(missing)
    return repeated


def _submit(stage: Stage, jobs: Sequence[Job]) -> list[Job]:
    """Submit jobs, and return those that the log may not have."""
    try:
        handles = stage.app.submit_many([stage.module.draft(job) for job in jobs])
    except StoreUnavailable:
        time.sleep(0.5)  # nothing announces the return of a server
        return list(jobs)
    missing = []
    for job, handle in zip(jobs, handles, strict=True):
        try:
            handle.result(ANSWER_SECONDS)
        except (StoreUnavailable, ResultTimeout):
            missing.append(job)
    return missing


class Pace:
    """A thread that submits each job some seconds before its time, until all jobs are submitted."""

    def __init__(self, stage: Stage, jobs: Iterable[tuple[int, Job]]) -> None:
        """`jobs`: time of each submit (microseconds since 1970) with its job, ascending."""
        self.submitted: list[Job] = []
        self.repeated = 0
        self.slowest = 0.0
        """Seconds of the slowest submit."""
        self._stage = stage
        self._jobs = iter(jobs)
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """True if all jobs are submitted. Raise the error of a failed submit."""
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Submit nothing more, and wait until the log has all submitted jobs."""
        self._over.set()
        self._thread.join()
        assert self.is_over

    def _run(self) -> None:
        try:
            batch: list[Job] = []
            for at, job in self._jobs:
                if at > now() or len(batch) == MOST_AT_ONCE:
                    self._send(batch)
                    batch = []
                    if self._over.wait(max(TICK_SECONDS, (at - now()) / 1e6)):
                        return
                batch.append(job)
            self._send(batch)
        except BaseException as error:
            self._error = error

    def _send(self, batch: list[Job]) -> None:
        if batch:
            began = time.monotonic()
            self.submitted += batch  # before the submit, because a job may run at once
            self.repeated += submit(self._stage, batch)
            self.slowest = max(self.slowest, time.monotonic() - began)
