"""The measured task on Redis alone."""

import os

from probe import ran

from fairlead import App

app = App(os.environ["REDIS_URL"])


@app.task(queue="bench")
async def noop(at: float | None = None) -> None:
    ran(at)
