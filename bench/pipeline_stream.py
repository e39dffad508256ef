"""Attempts through Kafka into the lake, measured and killed: relay and stream, then a comparison of
every row with the store.

python bench/pipeline_stream.py [--attempts 200000] [--store sqlite|postgres] [--kills 3]
    [--partitions 4] [--every 2]

The first half of the attempts is in the store before anything runs: one relay, then one stream
(`--once`), each timed. The second half is added while a relay and a stream run as a user starts
them; each is killed with -9 `--kills` times, with all its children, at a random moment after it has
made progress, and started again. Then both run to the end, and the lake is compared with the store
row by row and column by column. Print JSON. Exit code 1 if there is a gap, a double or a
difference.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT), str(ROOT / "src")]

from run import describe_machine, say  # noqa: E402

from tests.pipeline.filling import add_rows, connected  # noqa: E402

PIECE = 150
"""Attempts that are added in one transaction while relay and stream run."""
HOURS = 6
"""Span of time in which the attempts ended."""
FIRST = 1_763_600_400_000_000
PATIENCE = 1200.0
"""Seconds; a guard against a hang, not a measure."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attempts", type=int, default=200_000)
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument(
        "--kills", type=int, default=3, help="kills of the relay, and as many of the stream"
    )
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument(
        "--every", type=int, default=2, help="seconds between two batches while there are kills"
    )
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    random.seed(wanted.seed)
    with contextlib.ExitStack() as cleanup:
        folder = pathlib.Path(
            cleanup.enter_context(tempfile.TemporaryDirectory(prefix="pipeline-stream-"))
        )
        found = Run(wanted, folder, cleanup).course()
    print(
        json.dumps({"machine": describe_machine(pathlib.Path(sys.executable)), **found}, indent=1)
    )
    return 0 if not (found["gaps"] or found["doubles"] or found["differences"]) else 1


class Run:
    """A store, a broker, a lake, and the two commands between them."""

    def __init__(
        self, wanted: argparse.Namespace, folder: pathlib.Path, cleanup: contextlib.ExitStack
    ) -> None:
        from fairlead.backends.sql.migrate import migrate
        from fairlead.connect import task_store
        from services.kafka import KafkaServer
        from services.postgres import PostgresServer

        self.wanted, self.folder = wanted, folder
        if wanted.store == "postgres":
            self.url = cleanup.enter_context(PostgresServer()).create_database()
        else:
            self.url = f"sqlite:///{folder / 'tasks.db'}"
        self.kafka = cleanup.enter_context(KafkaServer()).create_prefix()
        store = task_store(self.url)
        migrate(store.database)
        store.database.close()
        self.added = 0
        self.relay = ["relay", "--kafka", self.kafka, "--partitions", str(wanted.partitions)]
        self.stream = [
            "ingest",
            "--stream",
            "--kafka",
            self.kafka,
            "--checkpoint",
            str(folder / "checkpoint"),
            "--lake",
            str(folder / "lake"),
            "--master",
            "local[2]",
        ]

    def course(self) -> dict[str, Any]:
        """Run both halves, and return the results."""
        half = self.wanted.attempts // 2
        say(f"{half:,} attempts are made")
        for _ in range(0, half, 50_000):
            self.add(min(50_000, half - self.added))
        relayed = self.done(self.relay, "--once")
        say(f"relayed: {relayed[0]['rows']:,} rows in {relayed[0]['seconds']:.1f} s")
        began = time.perf_counter()
        batches = self.done(self.stream, "--once")
        seconds, busy = time.perf_counter() - began, sum(batch["seconds"] for batch in batches)
        streamed = sum(batch["attempts"] for batch in batches)
        say(f"streamed: {streamed:,} rows in {busy:.1f} s, {seconds:.1f} s with the start of Spark")
        killed = self.with_kills(self.wanted.attempts - half)
        rest = {
            "relay": self.done(self.relay, "--once"),
            "stream": self.done(self.stream, "--once"),
        }
        every = [*batches, *killed["stream"]["batches"], *rest["stream"]]
        return {
            "attempts": self.added,
            "store": self.wanted.store,
            "partitions": self.wanted.partitions,
            "relay_rows_per_second": round(relayed[0]["rows"] / relayed[0]["seconds"]),
            "stream_rows_per_second": round(streamed / busy),
            "stream_rows_per_second_with_start": round(streamed / seconds),
            "relay_kills": killed["relay"]["kills"],
            "stream_kills": killed["stream"]["kills"],
            "batches": len(every),
            "doubles_dropped": sum(batch["doubles"] for batch in every),
            **self.compared(),
        }

    def with_kills(self, more: int) -> dict[str, Any]:
        """Add attempts while both commands run and are killed."""
        found: dict[str, Any] = {
            "relay": {"kills": 0, "batches": []},
            "stream": {"kills": 0, "batches": []},
        }
        until = self.added + more
        deadline = time.monotonic() + PATIENCE

        def keep(name: str, command: list[str]) -> None:
            while found[name]["kills"] < self.wanted.kills and time.monotonic() < deadline:
                with self.started(command) as process:
                    assert process.stdout is not None
                    for line in itertools.islice(process.stdout, 2):
                        found[name]["batches"].append(json.loads(line))
                    time.sleep(random.random() * self.wanted.every)  # kill at a random moment
                found[name]["kills"] += 1
                say(f"  {name} killed, {self.added:,} attempts so far")

        relaying = [*self.relay, "--json", "--every", "0.5"]
        streaming = [*self.stream, "--json", "--every", f"{self.wanted.every}s"]
        threads = [
            threading.Thread(target=keep, args=("relay", relaying)),
            threading.Thread(target=keep, args=("stream", streaming)),
        ]
        for thread in threads:
            thread.start()
        with self.relaying_after(threads[0]):
            while any(thread.is_alive() for thread in threads):
                # Add one part for each run of the stream, then single attempts, so that it always
                # has work.
                part = (found["stream"]["kills"] + 1) / (self.wanted.kills + 1)
                self.add(PIECE if self.added < until - more + more * part else 1)
                time.sleep(0.1)  # interval between attempts
        while self.added < until:
            self.add(min(50_000, until - self.added))
        return found

    @contextlib.contextmanager
    def relaying_after(self, first: threading.Thread) -> Iterator[None]:
        """Start another relay after the last kill of the first, so that the stream has something to
        read."""
        ends = threading.Event()

        def go_on() -> None:
            first.join()
            if not ends.is_set():
                with self.started([*self.relay, "--every", "0.5"]):
                    ends.wait()

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()

    @contextlib.contextmanager
    def started(self, command: list[str]) -> Iterator[subprocess.Popen[str]]:
        """Start a command as a user does; at the end kill it and all its children with -9."""
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(
                self.command(command),
                env=self.environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            yield process
        finally:
            for pid in [process.pid, *descendants(process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.communicate()

    def done(self, *command: Any) -> list[dict[str, Any]]:
        """Run a command that ends, and return its output."""
        words = [word for part in command for word in ([part] if isinstance(part, str) else part)]
        ran = subprocess.run(
            self.command([*words, "--json"]),
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise SystemExit(
                f"{' '.join(words)}:"
                f" {ran.stderr[-3000:]}\n{(self.folder / 'log').read_text()[-3000:]}"
            )
        return [json.loads(line) for line in ran.stdout.splitlines()]

    def command(self, words: list[str]) -> list[str]:
        return [sys.executable, "-m", "fairlead", "pipeline", *words, "--url", self.url]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT / "src")}

    # the store ------------------------------------------------------------------------------------

    def add(self, count: int) -> None:
        """Add the next attempts in one transaction."""
        with connected(self.url) as connection:
            connection.execute("BEGIN")
            add_rows(connection, [self.attempt(n) for n in range(self.added, self.added + count)])
            connection.execute("COMMIT")
        self.added += count

    def attempt(self, n: int) -> tuple[Any, ...]:
        at = FIRST + n * (HOURS * 3_600_000_000 // self.wanted.attempts)
        is_wrong = n % 20 == 0
        return (
            f"{n:08x}-0000-7000-8000-{n * 7919 % (1 << 48):012x}",
            1,
            1,
            f"queue-{n % 3}",
            f"work-{n % 11}",
            n % 8,
            5,
            f"tenant-{n * n % 997}",
            1.0,
            f"order-{n % 5000}" if n % 4 else None,
            f"unique-{n}",
            3,
            at,
            at + 1,
            at + 900,
            at + 1100,
            at + 2300,
            at + 2500,
            at + 90_000 + n % 50_000,
            "failed" if is_wrong else "done",
            "FAILED" if is_wrong else "DONE",
            "ValueError" if is_wrong else None,
            f"order {n} is not there" if is_wrong else None,
            f"node-{n % 4}",
            "hook",
            120 + n % 300,
        )

    def compared(self) -> dict[str, int]:
        """Compare lake and store row by row, and return the differences."""
        import pyarrow as pa

        from fairlead.backends.sql.history import SqlHistory
        from fairlead.connect import task_store
        from fairlead.pipeline.bronze import ATTEMPTS
        from fairlead.pipeline.history_rows import RECORDED_FIELDS, attempts_table
        from fairlead.pipeline.warehouse.location import Location
        from fairlead.pipeline.warehouse.warehouse import Warehouse
        from fairlead.ports.history import START, Position

        names = ["store_id", *RECORDED_FIELDS]
        table = Warehouse(Location.of(self.folder / "lake")).table(ATTEMPTS)
        order = [("xid", "ascending"), ("seq", "ascending")]
        here = table.load(columns=names).sort_by(order)
        history = SqlHistory(task_store(self.url).database)
        look: Callable[[Any], Any] = history.database.read_now
        store_id, after, pieces = look(history.store_id()), START, []
        while rows := look(history.attempts(after, Position(2**62, 2**62), 50_000)):
            pieces.append(attempts_table(store_id, rows, 0).select(names))
            after = Position(*rows[-1][:2])
        there = pa.concat_tables(pieces).sort_by(order)
        history.database.close()
        stored, kept = (
            list(zip(*(t[c].to_pylist() for c in ("xid", "seq")), strict=True))
            for t in (there, here)
        )
        differences = (
            0
            if set(stored) ^ set(kept) or len(kept) != len(stored)
            else int(not there.equals(here))
        )
        return {
            "rows_in_store": len(stored),
            "rows_in_lake": len(kept),
            "files": len(table.files()),
            "gaps": len(set(stored) - set(kept)),
            "doubles": len(kept) - len(set(kept)),
            "strangers": len(set(kept) - set(stored)),
            "differences": differences,
        }


def descendants(pid: int) -> list[int]:
    """Return the pids of all descendants."""
    found = []
    for path in pathlib.Path("/proc").glob(f"{pid}/task/*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *descendants(child)]
    return found


if __name__ == "__main__":
    sys.exit(main())
