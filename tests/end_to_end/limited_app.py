"""The application of the tests of cluster-wide limits: each run of a task writes its start and its
end into one file."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time

from fairlead import App, ClusterLimit, Fixed, LimitTree, current_task

TOTAL, PAYOUTS, ACME = 30, 15, 3

app = App(os.environ.get("LIMITED_URL"), coordinator=os.environ.get("LIMITED_COORDINATOR") or None)
app.queue(
    "limited",
    partitions=6,
    concurrency=LimitTree(
        ClusterLimit(TOTAL),
        names={"payout": ClusterLimit(PAYOUTS)},
        fairness_keys={"acme": ClusterLimit(ACME)},
    ),
)
again = Fixed(0.1, max_attempts=1000)


def report(what: str) -> None:
    """Append one line by one write, so that lines of several processes do not mix."""
    task = current_task()
    line = f"{time.monotonic()} {os.getpid()} {what} {task.name} {task.fairness_key}\n"
    trace = os.open(os.environ["LIMITED_TRACE"], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(trace, line.encode())
    os.close(trace)


async def work() -> None:
    report("start")
    try:
        await asyncio.sleep(random.uniform(0.02, 0.3))
    finally:
        report("end")


@app.task(queue="limited", name="payout", retry=again)
async def payout(n: int) -> None:
    await work()


@app.task(queue="limited", name="mail", retry=again)
async def mail(n: int) -> None:
    await work()


if __name__ == "__main__":
    asyncio.run(app.node(permit_seconds=float(sys.argv[1])).run())
