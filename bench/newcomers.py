"""How long keys that arrive beside a flood wait: under a limit of the queue, and under as many
slots of the node.

python bench/newcomers.py [--flood 100000] [--seconds 30] [--arriving] [--json]

One worker on SQLite runs a flood of one key; 4 times a second a new key submits one task. The wait
is the time from the submit to the start of the task. Aim: the 95th percentile under `Limit(20)` is
at most 3 times that under 20 slots, for tasks of 0.05 s and of 1 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import statistics
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "src")]

import fairlead  # noqa: E402
from fairlead.core.limits.limits import ConcurrencyPolicy  # noqa: E402
from fairlead.testing import running  # noqa: E402

SLOTS = 20
EVERY = 0.25
"""Seconds between two newcomers."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flood", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each run")
    parser.add_argument(
        "--arriving", action="store_true", help="submit the flood after the start of the worker"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = []
    for task_seconds in (0.05, 1.0):
        limits: dict[str, tuple[int, ConcurrencyPolicy | None]] = {
            "slots of the node": (SLOTS, None),
            "Limit": (200, fairlead.Limit(SLOTS)),
            "RateLimit": (200, fairlead.RateLimit(SLOTS, per=task_seconds)),
        }
        for name, (slots, limit) in limits.items():
            waits = asyncio.run(
                measure(given.flood, given.seconds, task_seconds, slots, limit, given.arriving)
            )
            found.append({"limit": name, "task_seconds": task_seconds, **waits})
            if not given.json:
                print(*(f"{key}={value}" for key, value in found[-1].items()), flush=True)
    if given.json:
        print(json.dumps(found))
    return 0


async def measure(
    flood: int,
    seconds: float,
    task_seconds: float,
    slots: int,
    limit: ConcurrencyPolicy | None,
    is_arriving: bool,
) -> dict[str, float]:
    """Return the waits of the newcomers in seconds, and how many did not start."""
    with tempfile.TemporaryDirectory() as folder:
        app = fairlead.App(f"sqlite:///{folder}/tasks.db")
        app.migrate()
        app.queue("q", concurrency=limit)
        waits: list[float] = []

        @app.task(queue="q")
        async def work(submitted_at: float) -> None:
            if submitted_at:
                waits.append(time.time() - submitted_at)
            await asyncio.sleep(task_seconds)

        key_of_flood = work.options(fairness_key="flood")
        rows = [{"submitted_at": 0.0}] * flood
        if not is_arriving:
            key_of_flood.submit_many(rows)
        submitted = 0
        async with running(app, concurrency=slots, drain=0.0):
            if is_arriving:
                await asyncio.to_thread(key_of_flood.submit_many, rows)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                submitted += 1
                key = work.options(fairness_key=f"new {submitted}")
                await key.submit_async(submitted_at=time.time())
                await asyncio.sleep(EVERY)
        return {
            "submitted": submitted,
            "not_started": submitted - len(waits),
            "p50": round(statistics.median(waits or [seconds]), 3),
            "p95": round(sorted(waits or [seconds])[int(0.95 * (len(waits) or 1))], 3),
            "longest": round(max(waits, default=seconds), 3),
        }


if __name__ == "__main__":
    sys.exit(main())
