"""The application of `bench/fleet.py`: one queue with one partition."""

from __future__ import annotations

import asyncio
import os
import time

from fairlead import App

app = App(os.environ["FLEET_URL"])
app.queue("fleet", order="fifo", partitions=1)
_trace = os.open(os.environ["FLEET_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def trace(submitted_at: float) -> None:
    """Write when a task was submitted and when it started, and the process that runs it."""
    os.write(_trace, f"{submitted_at:.6f} {time.time():.6f} {os.getpid()}\n".encode())


@app.task(queue="fleet")
async def quick(at: float) -> None:
    """Only leave a trace."""
    trace(at)


@app.task(queue="fleet")
async def hold(at: float) -> None:
    """Keep a slot until the worker stops."""
    trace(at)
    await asyncio.Event().wait()


@app.task(queue="fleet")
async def busy(at: float) -> None:
    """Use a millisecond of processor time."""
    trace(at)
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass


@app.task(queue="fleet")
async def pause(at: float) -> None:
    """Sleep for ten milliseconds."""
    trace(at)
    await asyncio.sleep(0.01)
