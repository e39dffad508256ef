"""What the workers of `ordered.py` run: a task that appends a line when it begins and another one
when it ends."""

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
    """The machine's clock, set ahead: a long downtime in no time."""

    def now(self) -> int:
        return super().now() + _ahead


_ahead = round(float(os.environ.get("ORDERED_AHEAD", "0")) * MICROS)
_seconds = float(os.environ.get("ORDERED_SECONDS", "0"))
_places = {
    what: url for what in ("log", "schedule") if (url := os.environ.get(f"ORDERED_{what.upper()}"))
}
_out: list[int] = []

app = App(os.environ["ORDERED_URL"], clock=Ahead(), **_places)
# A submit that is repeated until a server is back comes as late as that.
app.queue(QUEUE, kind="ordered", partitions=PARTITIONS, grace=86_400.0)


def note(what: str, ordering_key: str, unique_key: str) -> None:
    """One write a line: lines of several processes do not mix."""
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
    """The same again is the same task."""
    options = job.options(
        ordering_key=one.ordering_key, run_at=to_datetime(one.due), unique_key=one.unique_key
    )
    return options.draft(ordering_key=one.ordering_key, unique_key=one.unique_key)
