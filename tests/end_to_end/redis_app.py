"""The application of the crash test on Redis alone."""

import asyncio
import os

from crash_app import trace

import fairlead

app = fairlead.App(os.environ["CRASH_URL"])


@app.task(queue="crash")
async def work(n: int) -> None:
    trace(n)
    await asyncio.sleep(0.003)
