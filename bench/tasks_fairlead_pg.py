"""The measured task on PostgreSQL."""

import os

from probe import ran

from fairlead import App

app = App(os.environ["PG_DSN"])
app.queue("bench", order=os.environ.get("BENCH_ORDER", "fair"))


@app.task(queue="bench")
async def noop(at: float | None = None) -> None:
    ran(at)
