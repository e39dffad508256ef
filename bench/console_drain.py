"""Submit tasks to a queue of their own, drain them with one worker, and print the rate and the
processor time of the worker for each task in microseconds."""

from __future__ import annotations

import asyncio
import sys
import time

import fairlead
from fairlead.testing import running


async def main(url: str, tasks: int) -> None:
    app = fairlead.App(url)
    ended = asyncio.Event()
    count = 0

    @app.task(queue="drain")
    async def tick(n: int) -> None:
        nonlocal count
        count += 1
        if count == tasks:
            ended.set()

    tick.options(fairness_key="drain").submit_many([{"n": n} for n in range(tasks)])
    began, used = time.perf_counter(), time.process_time()
    async with running(app, queues=["drain"]):
        await ended.wait()
        seconds, used = time.perf_counter() - began, time.process_time() - used
    print(tasks / seconds, used / tasks * 1e6)


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
