"""The LCG trace, pushed at once, under limits: how far any task runs beyond its fair position.

python bench/lcg_limits.py [--trace ../shared/data/lcg-2005.swf.gz] [--jobs N] [--json]

One worker with 200 slots on SQLite runs every job as a task of 2 ms under each limit. A task is due
at the position that fair shares give it; the excess is the number of starts by which it came later.
Aim: a worst excess of 0 under each limit. Starts that pass a key whose own limit is full do not
count, because no order could have let it run: with_full_keys is the excess with them. That excess
is above 0 where runs take different times, as on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Hashable, Iterable
from functools import cache
from itertools import islice

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "src")]

from lcg_trace import read_trace  # noqa: E402

import fairlead  # noqa: E402
from fairlead.core.limits.limits import ConcurrencyPolicy, Full  # noqa: E402
from fairlead.model import Trigger  # noqa: E402
from fairlead.testing import running, settled  # noqa: E402

TRACE = ROOT.parent / "shared" / "data" / "lcg-2005.swf.gz"
SLOTS = 200
TASK_SECONDS = 0.002


class Lateness:
    """Starts by which tasks come after their fair positions, if all are pushed first and all keys
    have one weight: the n-th task of a key is due at the sum over keys of min(tasks of the key, n).
    """

    def __init__(self, keys: Iterable[str], own_limit: int | None = None) -> None:
        """`keys`: those of all tasks. `own_limit`: number of tasks of each key that run at once."""
        self._tasks = Counter(keys)
        self._own_limit = own_limit
        self._running = Counter[str]()
        self._began = Counter[str]()
        self._full_since: dict[str, int] = {}
        """Number of starts when the own limit of a key became full."""
        self._passed = Counter[str]()
        """Starts of other keys while the own limit of a key was full."""
        self.starts = 0
        self.worst = 0
        """Greatest excess, without starts that passed a key whose own limit was full."""
        self.worst_of_all = 0
        """Greatest excess."""
        self._due = cache(lambda n: sum(min(count, n) for count in self._tasks.values()))

    def start(self, key: str) -> None:
        """Note that a task of the key starts."""
        self.starts += 1
        self._began[key] += 1
        self._running[key] += 1
        excess = self.starts - self._due(self._began[key])
        self.worst_of_all = max(self.worst_of_all, excess)
        self.worst = max(self.worst, excess - self._passed[key])
        if self._running[key] == self._own_limit:
            self._full_since[key] = self.starts

    def end(self, key: str) -> None:
        """Note that a task of the key ends."""
        self._running[key] -= 1
        if (since := self._full_since.pop(key, None)) is not None:
            self._passed[key] += self.starts - since


class WatchedTree(fairlead.LimitTree):
    """A limit of all tasks and of each key that notes when tasks acquire and release their slots,
    which is when the table chooses the next ones."""

    def __init__(self, keys: Iterable[str], total: int, of_key: int) -> None:
        super().__init__(total, per_fairness_key=of_key)
        self.lateness = Lateness(keys, of_key)

    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        full = super().acquire(trigger, now)
        if full is None:
            self.lateness.start(trigger.fairness_key)
        return full

    def release(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        self.lateness.end(trigger.fairness_key)
        return super().release(trigger, now)

    cancel = release


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=pathlib.Path, default=TRACE)
    parser.add_argument("--jobs", type=int, help="only the first jobs of the trace")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    keys = [job.tenant for job in islice(read_trace(given.trace), given.jobs)]
    found = []
    limits: dict[str, ConcurrencyPolicy | None] = {
        "slots of the node": None,
        "Limit(50)": fairlead.Limit(50),
        "RateLimit(2000, per=1)": fairlead.RateLimit(2000, per=1),
        "LimitTree(50, per_fairness_key=20)": WatchedTree(keys, 50, 20),
    }
    for name, limit in limits.items():
        began = time.monotonic()
        lateness = asyncio.run(run(keys, limit))
        seconds = round(time.monotonic() - began, 1)
        worst = {"worst_excess": lateness.worst, "with_full_keys": lateness.worst_of_all}
        found.append({"limit": name, "jobs": len(keys), **worst, "seconds": seconds})
        if not given.json:
            print(*(f"{key}={value}" for key, value in found[-1].items()), flush=True)
    if given.json:
        print(json.dumps(found))
    return 0 if all(run["worst_excess"] == 0 for run in found) else 1


async def run(keys: list[str], limit: ConcurrencyPolicy | None) -> Lateness:
    """Run a task of each of these keys; return how late they came."""
    is_watched = isinstance(limit, WatchedTree)
    lateness = limit.lateness if isinstance(limit, WatchedTree) else Lateness(keys)
    with tempfile.TemporaryDirectory() as folder:
        app = fairlead.App(f"sqlite:///{folder}/tasks.db")
        app.migrate()
        app.queue("q", partitions=1, concurrency=limit)

        @app.task(queue="q")
        async def work(key: str) -> None:
            if not is_watched:
                lateness.start(key)
            await asyncio.sleep(TASK_SECONDS)

        app.submit_many([work.options(fairness_key=key).draft(key=key) for key in keys])
        async with running(app, concurrency=SLOTS) as node:
            await settled(app, node, timeout=3600.0)
        app.close()
    assert lateness.starts == len(keys)
    return lateness


if __name__ == "__main__":
    sys.exit(main())
