"""A deep backlog on one worker: how soon new weights show, and how soon a newcomer starts.

python bench/deep_backlog.py [--store postgres] [--tasks 10000000] [--keys 100000] [--equal]
                             [--tenants | --inside] [--json]

Half of the tasks belong to ten big keys and half to all keys in turn, submitted before the worker
starts. With --equal, all keys have the same number of tasks, and one has 20,000 more. With
--tenants, each key is a tenant with ten keys. With --inside, all keys and newcomers belong to one
tenant.

A new key submits one task every second, from the start of the worker until the lane has been
searched for all its keys, and then until each key has had a turn: its wait is the time from the
submit to the start of the task. Then one big key gets a weight of a hundredth of the number of
keys: the time until it has 80 % of its due share of 1,000 starts in a row, and meanwhile the waits
of newcomers. Aims: a newcomer starts within 1 s, weights show within 10 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import pathlib
import resource
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import fairlead  # noqa: E402
from fairlead.testing import running  # noqa: E402
from services.postgres import PostgresServer  # noqa: E402

BIG = 10
HEAVY = "big 0"
"""Key or tenant that gets the weight."""
CHUNK = 100_000
WINDOW = 1000
"""Number of starts over which a share is counted."""
VISIBLE = 0.8
"""Part of the due share at which a weight counts as visible."""
TASK_SECONDS = 0.01
SLOTS = 20
NEWCOMERS = 10
"""Least number of new keys in each part of a run."""
MOST_SECONDS = 120.0
EXTRA = 20_000
"""Tasks more of the key that gets the weight, with --equal."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", choices=["postgres", "sqlite"], default="postgres")
    parser.add_argument("--tasks", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--equal", action="store_true")
    paths = parser.add_mutually_exclusive_group()
    paths.add_argument("--tenants", action="store_true")
    paths.add_argument("--inside", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        url = f"sqlite:///{folder}/tasks.db"
        if given.store == "postgres":
            server = stack.enter_context(PostgresServer())
            url = server.create_database()
        found = asyncio.run(measure(url, given))
    if given.json:
        print(json.dumps(found))
    return 0


class Starts:
    """The starts of the worker's tasks."""

    def __init__(self) -> None:
        self.count = 0
        self.last: deque[str] = deque(maxlen=WINDOW)
        self.of_heavy = 0
        self.waits: list[float] = []

    def note(self, key: str, submitted_at: float) -> None:
        """Note a start. `submitted_at`: seconds since the epoch, of a newcomer; else 0."""
        self.count += 1
        self.last.append(key)
        self.of_heavy += key == HEAVY
        if submitted_at:
            self.waits.append(time.time() - submitted_at)


async def measure(url: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one run."""
    tasks, keys = given.tasks, given.keys
    app = fairlead.App(url)
    app.migrate()
    app.queue("q", partitions=1)
    starts = Starts()

    @app.task(queue="q")
    async def work(key: str, submitted_at: float) -> None:
        starts.note(key, submitted_at)
        await asyncio.sleep(TASK_SECONDS)

    found: dict[str, Any] = {"tasks": tasks, "keys": keys}

    def show(**figures: Any) -> None:
        found.update(figures)
        if not given.json:
            print(*(f"{name}={value}" for name, value in figures.items()), flush=True)

    inside = "acme/" if given.inside else ""
    began = time.monotonic()
    for batch in _batches(tasks, keys, given.equal):
        named = [
            (key, f"{key}/{n % 10}" if given.tenants else inside + key)
            for n, key in enumerate(batch)
        ]
        await asyncio.to_thread(
            app.submit_many,
            [
                work.options(fairness_key=name).draft(key=key, submitted_at=0.0)
                for key, name in named
            ],
        )
    show(submit_seconds=round(time.monotonic() - began, 1), before_mb=_rss_mb())

    async def newcomers(name: str, is_over: Callable[[], bool] = lambda: True) -> int:
        starts.waits.clear()
        number = 0
        while number < NEWCOMERS or not is_over():
            options = work.options(fairness_key=f"{inside}{name} {number}")
            await options.submit_async(key=name, submitted_at=time.time())
            number += 1
            await asyncio.sleep(1.0)
        with suppress(TimeoutError):
            async with asyncio.timeout(MOST_SECONDS):
                while len(starts.waits) < number:
                    await asyncio.sleep(0.05)
        waits = sorted([*starts.waits, *[MOST_SECONDS] * (number - len(starts.waits))])
        show(
            **{
                f"{name}_newcomers": number,
                f"{name}_not_started": number - len(starts.waits),
                f"{name}_p50": round(statistics.median(waits), 3),
                f"{name}_p95": round(waits[math.ceil(0.95 * number) - 1], 3),
                f"{name}_longest": round(waits[-1], 3),
            }
        )
        return number

    async with running(app, concurrency=SLOTS, drain=0.0) as node:
        began = time.monotonic()
        came = await newcomers("first_read", lambda: not _is_read_first(node))
        show(first_read_seconds=round(time.monotonic() - began, 1))
        came += await newcomers("later", lambda: starts.count > 1.2 * keys)
        show(memory_mb=_rss_mb())
        weight = keys / 100
        due = weight / (weight + keys + came)
        show(share_before=round(starts.of_heavy / starts.count, 4), started=starts.count)
        starts.last.clear()
        changed = time.monotonic()
        app.management.set_weight("q", inside + HEAVY, weight)
        meanwhile = asyncio.create_task(newcomers("while_weighed"))
        share, until = 0.0, changed + MOST_SECONDS
        while share < VISIBLE * due and time.monotonic() < until:
            await asyncio.sleep(0.05)
            if len(starts.last) == WINDOW:
                share = starts.last.count(HEAVY) / WINDOW
        seconds, of_heavy, count = time.monotonic() - changed, starts.of_heavy, starts.count
        show(weight_seconds=round(seconds, 2), due_share=round(due, 4), share=share)
        await meanwhile
        later = (starts.of_heavy - of_heavy) / max(1, starts.count - count)
        show(share_later=round(later, 4), starts=starts.count, peak_mb=_rss_mb())
    app.close()
    return found


def _batches(tasks: int, keys: int, are_equal: bool) -> Iterator[list[str]]:
    """Yield the fairness keys or tenants of the tasks, in batches."""
    every = [f"big {n}" for n in range(BIG)] + [f"key {n}" for n in range(keys - BIG)]
    for first in range(0, tasks, CHUNK):
        numbers = range(first, min(tasks, first + CHUNK))
        if are_equal:
            yield [every[n % keys] for n in numbers]
        else:
            yield [every[n // 2 % keys] if n % 2 else every[n // 2 % BIG] for n in numbers]
    if are_equal:
        yield [HEAVY] * EXTRA


def _is_read_first(node: Any) -> bool:
    """Return whether the node has not found all keys of the lane yet."""
    readers = [found.keyed for found in node.parts.context.channel._lanes.values()]
    return any(keyed is None or keyed._walk is not None or keyed._is_scanning for keyed in readers)


def _rss_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main())
