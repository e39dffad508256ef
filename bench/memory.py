"""The memory of a worker before a great backlog: its peak resident size must not depend on the
backlog.

python bench/memory.py [--backlog 1000000] [--drain 100000] [--only sqlite,postgres] [--json]

Exit code 1 if a worker needed 150 MB or more, or did not drain its tasks.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "src")]

from peers_fairlead import counts, paths, peak_rss_mb, start, stop  # noqa: E402

GOAL_MB = 150
CHUNK = 20_000
MOST_SECONDS = 300
MODULES = {"sqlite": "tasks_fairlead_sqlite", "postgres": "tasks_fairlead_pg"}


def measure(store: str, backlog: int, drain: int) -> dict[str, Any]:
    """Fill the queue, let one worker drain some tasks, and return its memory."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"memory-{store}-"))
    os.environ["PROBE_DIR"] = str(folder)
    workers = []
    try:
        sys.path[:0] = paths()
        module = __import__(MODULES[store])
        module.app.migrate()
        began = time.perf_counter()
        for low in range(0, backlog, CHUNK):
            module.noop.submit_many([{}] * min(CHUNK, backlog - low))
        submit_seconds = time.perf_counter() - began
        workers = [start(MODULES[store], folder, 0)]
        end = time.monotonic() + MOST_SECONDS
        while time.monotonic() < end and workers[0].poll() is None:
            steps = counts(folder)
            if steps and steps[-1][1] >= drain:
                break
            time.sleep(0.2)
        steps = counts(folder)
        drained = steps[-1][1] if steps else 0
        seconds = steps[-1][0] - steps[0][0] if len(steps) > 1 else 0.0
        peak = peak_rss_mb(workers[0].pid) if workers[0].poll() is None else None
        module.app.close()
        return {
            "store": store,
            "backlog": backlog,
            "submit_per_s": round(backlog / submit_seconds),
            "drained": drained,
            "done_per_s": round(drained / seconds) if seconds else 0,
            "peak_rss_mb": peak,
            "is_met": drained >= drain and peak is not None and peak < GOAL_MB,
        }
    finally:
        stop(workers)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backlog", type=int, default=1_000_000)
    parser.add_argument("--drain", type=int, default=100_000)
    parser.add_argument("--only", default=",".join(MODULES))
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    stores = wanted.only.split(",")
    if set(stores) - set(MODULES) or not 1000 <= wanted.drain <= wanted.backlog:
        parser.error(f"--only: of {', '.join(MODULES)}; --drain: from 1000 to --backlog")
    found = []
    with contextlib.ExitStack() as services:
        if "postgres" in stores and "PG_DSN" not in os.environ:
            from services.postgres import PostgresServer

            os.environ["PG_DSN"] = services.enter_context(PostgresServer()).create_database()
        for store in stores:
            result = measure(store, wanted.backlog, wanted.drain)
            found.append(result)
            if not wanted.json:
                print(
                    f"{store}: backlog {result['backlog']:,}, submitted at"
                    f" {result['submit_per_s']:,}/s; drained {result['drained']:,} at"
                    f" {result['done_per_s']:,}/s; peak RSS of the worker {result['peak_rss_mb']}"
                    f" MB (goal: below {GOAL_MB})",
                    flush=True,
                )
    if wanted.json:
        print(json.dumps(found, indent=1))
    return 0 if all(result["is_met"] for result in found) else 1


if __name__ == "__main__":
    sys.exit(main())
