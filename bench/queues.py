"""Measure one worker that serves many queues: start, stalls of its event loop, memory, idle cost.

    python bench/queues.py                        # 1,000 and 10,000 queues on SQLite
    python bench/queues.py --store postgres

Each size runs in a process of its own. Prints one JSON line for each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fairlead import App  # noqa: E402
from fairlead.backends.postgres import database as postgres  # noqa: E402
from fairlead.backends.sql import drivers  # noqa: E402
from fairlead.testing import running  # noqa: E402
from services.postgres import PostgresServer  # noqa: E402

SIZES = (1000, 10_000)
SETTLE_SECONDS = 20.0
"""Seconds after the first task until the worker counts as idle."""
IDLE_SECONDS = 30.0
BEAT = 0.01
"""Seconds between two looks at how late the event loop is."""


class Stalls:
    """The longest time in which the event loop ran nothing else."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(BEAT)
            self.longest = max(self.longest, time.monotonic() - began - BEAT)


class Statements:
    """The number of statements that this process has given to its database."""

    def __init__(self) -> None:
        self.count = 0
        for module, name in ((drivers, "_sqlite3"), (postgres, "asyncpg_executor")):
            setattr(module, name, self._counting(getattr(module, name)))

    def _counting(self, executor: Any) -> Any:
        def made(connection: Any) -> Any:
            execute = executor(connection)

            def counted(step: Any) -> Any:
                self.count += 1
                return execute(step)

            return counted

        return made


async def measure(url: str, queues: int) -> dict[str, Any]:
    """Start a worker, run one task, and watch the worker while it is idle."""
    app = App(url)
    names = [f"queue-{number}" for number in range(queues)]
    for name in names:
        app.queue(name)
    has_run = asyncio.Event()

    @app.task(queue=names[-1])
    async def quick() -> None:
        has_run.set()

    app.migrate()
    await quick.submit_async()
    statements, stalls = Statements(), Stalls()
    watching = asyncio.create_task(stalls.watch())
    began = time.monotonic()
    async with running(app):
        await has_run.wait()
        first = time.monotonic() - began
        await asyncio.sleep(SETTLE_SECONDS)
        start_stall, stalls.longest = stalls.longest, 0.0
        await asyncio.sleep(IDLE_SECONDS)
        watching.cancel()  # which uses the processor itself
        count, used = statements.count, time.process_time()
        await asyncio.sleep(IDLE_SECONDS)
        used, count = time.process_time() - used, statements.count - count
        return {
            "queues": queues,
            "first_task_s": round(first, 2),
            "longest_stall_at_start_s": round(start_stall, 3),
            "longest_stall_idle_s": round(stalls.longest, 3),
            "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "idle_cpu_percent": round(100 * used / IDLE_SECONDS, 2),
            "idle_statements_per_second": round(count / IDLE_SECONDS, 1),
        }


def main() -> None:
    """Measure each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--queues", type=int, nargs="*", default=SIZES)
    parser.add_argument("--only", metavar="URL")
    given = parser.parse_args()
    if given.only:
        print(json.dumps(asyncio.run(measure(given.only, given.queues[0]))))
        return
    measure_each(given.store, given.queues, [__file__, "--queues"])


def measure_each(store: str, sizes: Sequence[int], command: Sequence[str]) -> None:
    """Run the script `command`, whose last argument is the option of the size, for each size: in a
    process of its own, on a new database."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(PostgresServer()) if store == "postgres" else None
        for size in sizes:
            url = server.create_database() if server else f"sqlite:///{folder}/{size}.db"
            script, *options = command
            subprocess.run([sys.executable, script, "--only", url, *options, str(size)], check=True)


if __name__ == "__main__":
    main()
