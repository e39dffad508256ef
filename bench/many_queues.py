"""A node that serves very many queues: seconds to the first task, the longest stall of its event
loop, its memory, and what it costs while idle.

python bench/many_queues.py [--queues 1000] [--idle 20] [--profile FILE]

Prints one line of JSON. The store is a new SQLite file.
"""

import argparse
import asyncio
import cProfile
import json
import pathlib
import resource
import tempfile
import time

from fairlead import App

TICK = 0.005
"""Seconds between two looks at the event loop."""


class Stalls:
    """Measures how long the event loop did not run."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last - TICK)
            last = now


async def measure(app: App, queues: int, idle: float) -> dict[str, float]:
    ran = asyncio.Event()

    @app.task(queue=f"queue-{queues // 2}")
    async def first() -> None:
        ran.set()

    node, stalls = app.node(), Stalls()
    began = time.perf_counter()
    watching = asyncio.create_task(stalls.run())
    running = asyncio.create_task(node.run())
    await node.ready.wait()
    ready = time.perf_counter() - began
    await first.submit_async()
    await ran.wait()
    first_task = time.perf_counter() - began
    starting, stalls.longest = stalls.longest, 0.0
    cpu, at = time.process_time(), time.perf_counter()
    await asyncio.sleep(idle)
    share = (time.process_time() - cpu) / (time.perf_counter() - at)
    found = {
        "queues": queues,
        "ready_s": round(ready, 2),
        "first_task_s": round(first_task, 2),
        "longest_stall_at_start_s": round(starting, 3),
        "longest_stall_idle_s": round(stalls.longest, 3),
        "idle_cpu_percent": round(100 * share, 2),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1),
    }
    watching.cancel()
    node.stop()
    await running
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds to measure while idle")
    parser.add_argument("--profile", help="write a cProfile here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        app = App(f"sqlite:///{pathlib.Path(folder) / 'tasks.db'}")
        for number in range(options.queues):
            app.queue(f"queue-{number}")
        app.migrate()
        profile = cProfile.Profile()
        if options.profile:
            profile.enable()
        print(json.dumps(asyncio.run(measure(app, options.queues, options.idle))))
        if options.profile:
            profile.disable()
            profile.dump_stats(options.profile)
        app.close()


if __name__ == "__main__":
    main()
