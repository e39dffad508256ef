"""The measured task on SQLite, synchronous=FULL as by default."""

import os

from probe import ran

from fairlead import App

app = App(f"sqlite:///{os.environ['PROBE_DIR']}/fairlead.db")
app.queue("bench", order=os.environ.get("BENCH_ORDER", "fair"))


@app.task(queue="bench")
async def noop(at: float | None = None) -> None:
    ran(at)
