"""Bulk retry of many tasks: rate, memory, and an interruption half-way from which another process
goes on; prints a line of JSON for each store.

python bench/actions.py [--tasks 1000000] [--only sqlite|postgres]

The tasks wait for a retry, beside as many that do not match. Each line has the tasks per second of
both halves, the seconds from the interruption to the end of the running batch, the longest batch,
and the growth of the resident memory of the process that performs the action. The exit code is 1 if
a task was changed twice, or a count is wrong.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fairlead import App  # noqa: E402
from fairlead.operate.changes import Retry  # noqa: E402
from fairlead.ports.action_store import ActionState, BulkAction  # noqa: E402
from fairlead.ports.statements import Statement, Steps  # noqa: E402
from services.postgres import PostgresServer  # noqa: E402

PIECE = 50_000


def app_on(url: str) -> tuple[App, Any]:
    """Return an application and its task."""
    app = App(url)

    @app.task(name="pay")
    async def pay(n: int) -> None: ...

    return app, pay


@contextmanager
def store(kind: str) -> Iterator[str]:
    """Yield the URL of a new store."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == "sqlite":
            yield f"sqlite:///{folder}/tasks.db"
            return
        with PostgresServer() as server:
            yield server.url


def fill(url: str, count: int) -> None:
    """Submit the tasks to retry, and as many of another key."""
    app, pay = app_on(url)
    app.migrate()
    later = datetime.now(UTC) + timedelta(days=1)
    for start in range(0, count, PIECE):
        numbers = [{"n": n} for n in range(start, min(start + PIECE, count))]
        for key in ("acme", "other"):
            pay.options(run_at=later, fairness_key=key).submit_many(numbers)
    app.close()


def resident_kb() -> int:
    """Return the resident memory of this process."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * 4


def perform(url: str, id: int | None) -> None:
    """Perform the action in this process, and print what it cost. Without an id, start it, and
    interrupt it half-way."""
    app, _ = app_on(url)
    management = app.management
    actions, where = management.actions, management.where(fairness_key="acme")
    action = actions.start(Retry(), where) if id is None else actions.resume(id)
    first, began = action.looked, time.perf_counter()
    count = int(sys.argv[sys.argv.index("--tasks") + 1])
    last, longest, asked, stopped = began, 0.0, 0.0, 0.0
    before = most = resident_kb()

    def on_batch(now: BulkAction) -> None:
        nonlocal last, longest, asked, stopped, most
        at, most = time.perf_counter(), max(most, resident_kb())
        last, longest = at, max(longest, at - last)
        if now.state == ActionState.INTERRUPTED:
            stopped = at
        elif id is None and not asked and now.looked >= count // 2:
            actions.interrupt(now.id)
            asked = time.perf_counter()

    done = actions.perform(action, on_batch=on_batch)
    seconds = time.perf_counter() - began
    report = {
        "id": done.id,
        "state": done.state,
        "looked": done.looked,
        "changed": done.changed,
        "tasks_per_s": round((done.looked - first) / seconds),
        "longest_batch_ms": round(longest * 1000),
        "stop_ms": round((stopped - asked) * 1000) if asked else None,
        "memory_growth_mb": round((most - before) / 1024, 1),
    }
    print(json.dumps(report))
    app.close()


def in_process(url: str, count: int, id: int | None) -> dict[str, int]:
    words = [sys.executable, __file__, "--tasks", str(count), "--perform", url]
    done = subprocess.run(
        [*words, *([] if id is None else ["--id", str(id)])],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    report: dict[str, int] = json.loads(done.stdout)
    return report


def events() -> Steps[tuple[int, int]]:
    rows = yield Statement("SELECT count(*), count(DISTINCT task_id) FROM fairlead_events")
    return rows[0][0], rows[0][1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--only", choices=["sqlite", "postgres"])
    parser.add_argument("--perform", metavar="URL")
    parser.add_argument("--id", type=int)
    given = parser.parse_args()
    if given.perform:
        perform(given.perform, given.id)
        return
    is_right = True
    for kind in ("sqlite", "postgres") if given.only is None else (given.only,):
        with store(kind) as url:
            fill(url, given.tasks)
            first = in_process(url, given.tasks, None)
            second = in_process(url, given.tasks, first["id"])
            app, _ = app_on(url)
            changes = app.operate_context.store.database.read_now(events())
            app.close()
            wanted = (given.tasks, given.tasks)
            is_right = is_right and changes == wanted
            is_right = is_right and (second["looked"], second["changed"]) == wanted
            print(json.dumps({"store": kind, "first": first, "second": second, "events": changes}))
    raise SystemExit(not is_right)


if __name__ == "__main__":
    main()
