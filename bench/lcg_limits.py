"""The LCG trace, pushed at once, under limits: how far any task runs beyond its fair position.

python bench/lcg_limits.py [--trace ../shared/data/lcg-2005.swf.gz] [--jobs N] [--json]

One worker with 200 slots on SQLite runs every job as a task of 2 ms under each limit. A task is due
at the position that fair shares give it; the excess is the number of starts by which it came later.
Aim: a worst excess of 0 under each limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src")]

import fairlead  # noqa: E402
from fairlead.core.limits.limits import ConcurrencyPolicy  # noqa: E402
from fairlead.lab.history import HistoryRun  # noqa: E402
from fairlead.lab.replay.positions import positions  # noqa: E402
from fairlead.lab.trace import Tenants, first_jobs  # noqa: E402
from fairlead.testing import running, settled  # noqa: E402

TRACE = ROOT.parent / "shared" / "data" / "lcg-2005.swf.gz"
SLOTS = 200
TASK_SECONDS = 0.002


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=pathlib.Path, default=TRACE)
    parser.add_argument("--jobs", type=int, help="only the first jobs of the trace")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    keys = [job.tenant(Tenants.USER) for job in first_jobs(given.trace, given.jobs)]
    found = []
    limits: dict[str, ConcurrencyPolicy | None] = {
        "slots of the node": None,
        "Limit(50)": fairlead.Limit(50),
        "RateLimit(2000, per=1)": fairlead.RateLimit(2000, per=1),
        "LimitTree(50, per_fairness_key=20)": fairlead.LimitTree(50, per_fairness_key=20),
    }
    for name, limit in limits.items():
        began = time.monotonic()
        excess = asyncio.run(worst_excess(keys, limit))
        seconds = round(time.monotonic() - began, 1)
        found.append({"limit": name, "jobs": len(keys), "worst_excess": excess, "seconds": seconds})
        if not given.json:
            print(*(f"{key}={value}" for key, value in found[-1].items()), flush=True)
    if given.json:
        print(json.dumps(found))
    return 0 if all(run["worst_excess"] == 0 for run in found) else 1


async def worst_excess(keys: list[str], limit: ConcurrencyPolicy | None) -> int:
    """Return the greatest number of starts by which a task of these keys was late."""
    with tempfile.TemporaryDirectory() as folder:
        app = fairlead.App(f"sqlite:///{folder}/tasks.db")
        app.migrate()
        app.queue("q", partitions=1, concurrency=limit)
        started: list[str] = []

        @app.task(queue="q")
        async def work(key: str) -> None:
            started.append(key)
            await asyncio.sleep(TASK_SECONDS)

        app.submit_many([work.options(fairness_key=key).draft(key=key) for key in keys])
        async with running(app, concurrency=SLOTS) as node:
            await settled(app, node, timeout=3600.0)
        app.close()
    runs = [
        HistoryRun(str(number), 1, 0, key, "", "", None, number, number)
        for number, key in enumerate(started)
    ]
    judged = positions(runs)
    assert judged is not None and len(runs) == len(keys)
    return judged.most_beyond_bound


if __name__ == "__main__":
    sys.exit(main())
