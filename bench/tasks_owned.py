"""The application of the nodes of `ownership.py`: short tasks in a fair queue of several
partitions."""

import asyncio
import os

from fairlead import App

app = App(os.environ["OWNED_URL"], backlog=os.environ.get("OWNED_BACKLOG"))
app.queue("owned", partitions=int(os.environ.get("OWNED_PARTITIONS", "8")))
_seconds = float(os.environ.get("OWNED_SECONDS", "0.05"))


@app.task(queue="owned")
async def work() -> None:
    await asyncio.sleep(_seconds)
