"""Measure the memory of a worker with many deep queues, or how fast it drains them.

    python bench/deep_queues.py --queues 20 --tasks 12000
    python bench/deep_queues.py --queues 1 --tasks 60000 --drain 50000

Without --drain, no task ends, so that the queues stay deep. Prints one line of JSON. The store is a
new SQLite file, or a copy of --keep FILE, which is made if it does not exist.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from fairlead import App  # noqa: E402

SETTLE_SECONDS = 5.0
"""Seconds without a change of the number of triggers in memory, until the memory is measured."""


def rss_mb() -> float:
    """Return the resident memory of this process (MB)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1e3, 1)
    raise RuntimeError("no VmRSS in /proc/self/status")


def application(url: str, queues: int, order: str) -> tuple[App, list[Any]]:
    """Return an application with one task in each queue."""
    app = App(url)
    tasks = []
    for number in range(queues):
        app.queue(f"queue-{number}", order=order)
        tasks.append(app.task(work, name=f"work-{number}", queue=f"queue-{number}"))
    app.migrate()
    return app, tasks


gate: asyncio.Event | None = None
ended = 0


async def work(n: int) -> None:
    """Wait for the gate."""
    global ended
    if gate is not None:
        await gate.wait()
    ended += 1


async def measure(app: App, given: argparse.Namespace) -> dict[str, Any]:
    """Run a node until its memory is at rest, or until it has drained tasks."""
    global gate
    gate = None if given.drain else asyncio.Event()
    settings = json.loads(given.settings)
    before = rss_mb()
    node = app.node(drain=0.0, **settings)
    running = asyncio.create_task(node.run())
    began = time.monotonic()
    table, found = node.parts.context.table, {}
    if given.drain:
        while not ended:
            await asyncio.sleep(0.01)
        first, began, used = ended, time.monotonic(), time.process_time()
        while ended < given.drain:
            await asyncio.sleep(0.01)
        cpu = (time.process_time() - used) / (ended - first)
        found["cpu_us_per_task"] = round(1e6 * cpu, 1)
        found["done_per_s"] = round((ended - first) / (time.monotonic() - began))
    else:
        size, changed = -1, time.monotonic()
        peak = 0.0
        while time.monotonic() - changed < SETTLE_SECONDS:
            if len(table) != size:
                size, changed = len(table), time.monotonic()
            peak = max(peak, rss_mb())
            await asyncio.sleep(0.2)
        found["seconds"] = round(changed - began, 1)
        found["peak_mb"] = peak
    found |= {"triggers": len(table), "base_mb": before, "rss_mb": rss_mb()}
    node.stop()
    await running
    return found


def main() -> None:
    """Submit the tasks in a process of its own, and measure in this one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queues", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=12_000, help="tasks in each queue")
    parser.add_argument("--order", choices=["fair", "fifo"], default="fair")
    parser.add_argument("--drain", type=int, default=0)
    parser.add_argument("--settings", default="{}", help="settings of the node, as JSON")
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tasks.db"
        if given.keep is not None and given.keep.exists():
            shutil.copy(given.keep, file)
        app, tasks = application(f"sqlite:///{file}", given.queues, given.order)
        if given.keep is None or not given.keep.exists():
            for task in tasks:
                keyed = [task.options(fairness_key=f"tenant-{k}") for k in range(10)]
                for each in keyed:
                    each.submit_many([{"n": n} for n in range(given.tasks // 10)])
            if given.keep is not None:
                app.close()
                shutil.copy(file, given.keep)
                app, tasks = application(f"sqlite:///{file}", given.queues, given.order)
        found = asyncio.run(measure(app, given))
        app.close()
    print(json.dumps({"order": given.order, "queues": given.queues, **found}))


if __name__ == "__main__":
    main()
