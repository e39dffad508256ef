"""The application of the workers of `ordered.py`: a task that appends a line when it begins and
another one when it ends."""

import asyncio
import os
import random

from ordered_judge import Job, Record

from fairlead import App, current_task
from fairlead.clock import MICROS, SystemClock, to_datetime
from fairlead.declare.task import Draft

QUEUE = "jobs"
PARTITIONS = 120


class Ahead(SystemClock):
    """The machine's clock set ahead, to simulate a long downtime."""

    def now(self) -> int:
        return super().now() + _ahead


_ahead = round(float(os.environ.get("ORDERED_AHEAD", "0")) * MICROS)
_seconds = float(os.environ.get("ORDERED_SECONDS", "0"))
_urls = {
    what: url for what in ("log", "schedule") if (url := os.environ.get(f"ORDERED_{what.upper()}"))
}
_out: list[int] = []

app = App(os.environ["ORDERED_URL"], clock=Ahead(), **_urls)
# A submit that is repeated until a server is back may be as late as the outage is long.
app.queue(QUEUE, kind="ordered", partitions=PARTITIONS, grace=86_400.0)


def note(what: str, ordering_key: str, unique_key: str) -> None:
    """Write one line in one call, so that lines of several processes do not mix."""
    if not _out:
        _out.append(os.open(os.environ["ORDERED_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT))
    run = current_task()
    assert run is not None
    record = Record(what, app.clock.now(), os.getpid(), run.attempt, ordering_key, unique_key)
    os.write(_out[0], record.line.encode())


@app.task(queue=QUEUE)
async def job(ordering_key: str, unique_key: str) -> None:
    note("start", ordering_key, unique_key)
    try:
        if _seconds:
            await asyncio.sleep(random.uniform(0, 2 * _seconds))
    except asyncio.CancelledError:
        note("cut", ordering_key, unique_key)
        raise
    note("end", ordering_key, unique_key)


def draft(one: Job) -> Draft:
    """Return the draft of a job; equal jobs give the same task."""
    options = job.options(
        ordering_key=one.ordering_key, run_at=to_datetime(one.due), unique_key=one.unique_key
    )
    return options.draft(ordering_key=one.ordering_key, unique_key=one.unique_key)
