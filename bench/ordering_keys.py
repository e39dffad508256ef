"""Measure a worker whose ordering keys are held back: stalls of its event loop, idle cost, memory.

    python bench/ordering_keys.py                  # 20,000 and 100,000 keys on SQLite
    python bench/ordering_keys.py --store postgres --order fifo --head ERROR

The first task of each key cannot run for an hour, and others wait behind it. `--head DUE` measures
the drain of one key with as many tasks instead. Each size runs in a process of its own, and prints
one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.queues import Stalls, Statements, measure_each  # noqa: E402
from fairlead import App  # noqa: E402
from fairlead.clock import MICROS, SYSTEM_CLOCK  # noqa: E402
from fairlead.ports.statements import Statement, Steps  # noqa: E402
from fairlead.testing import running  # noqa: E402

SIZES = (20_000, 100_000)
IDLE_SECONDS = 45.0
"""Three sweeps."""
QUIET_SECONDS = 20.0
"""Seconds without a lost claim after which the worker knows every held key."""
PATIENCE = 120.0
"""Seconds for which a task of another key may wait behind the held ones."""
ONE_KEY_TASKS = 2000
"""Number of tasks to drain of a long key; the others stay."""

HOLD = {
    "WAITING": "state = 'WAITING', ready_seq = NULL, ready_at = NULL, {due} run_at = {at}",
    "ERROR": "state = 'ERROR', ready_seq = NULL, ready_at = NULL",
    "PROCESSING": "state = 'PROCESSING', node = 'elsewhere', stuck_at = {at}",
}


class Asked:
    """The number of calls by which a worker asks about ordering keys, and of keys in them."""

    def __init__(self, store: Any) -> None:
        self.calls = self.keys = 0
        for name in ("ordered", "changed"):
            setattr(store, name, self._counting(getattr(store, name)))

    def _counting(self, method: Any) -> Any:
        def counted(asked: Any, *rest: Any) -> Any:
            self.calls += 1
            self.keys += len(asked)
            return method(asked, *rest)

        return counted


def hold(dialect: str, state: str, heads: str) -> Steps[None]:
    """Move the first tasks of the keys to a state in which they hold their keys for an hour."""
    at = SYSTEM_CLOCK.now() + 3600 * MICROS
    due = f"due_at = {at}," if dialect == "postgres" else ""
    changes = HOLD[state].format(at=at, due=due)
    yield Statement(
        f"UPDATE fairlead_tasks SET {changes}, version = version + 1, attempt = 1, tries = 1"
        f" WHERE fairness_key = '{heads}'",
        (),
    )


async def measure(url: str, given: argparse.Namespace) -> dict[str, Any]:
    """Start a worker on held keys, wait until it is idle, and watch it."""
    app = App(url)
    app.queue("q", order=given.order, partitions=1)
    done = 0
    has_run, is_drained = asyncio.Event(), asyncio.Event()

    @app.task(queue="q")
    async def step() -> None:
        nonlocal done
        done += 1
        if done >= ONE_KEY_TASKS:
            is_drained.set()

    @app.task(queue="q")
    async def other() -> None:
        has_run.set()

    app.migrate()
    keys = given.keys[0]
    if given.head == "DUE":
        step.options(ordering_key="one").submit_many([{}] * keys)
    else:
        for fairness_key, tasks in (("heads", 1), ("behind", given.behind)):
            options = [
                step.options(ordering_key=f"key-{n}", fairness_key=fairness_key)
                for n in range(keys)
            ]
            for _ in range(tasks):
                app.submit_many([each.draft() for each in options])
        app.store.database.run(hold(app.store.database.dialect, given.head, "heads"))
    if app.store.database.dialect == "postgres":
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
    statements, stalls, asked = Statements(), Stalls(), Asked(app.store)
    watching = asyncio.create_task(stalls.watch())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    async with running(app) as node:
        result: dict[str, Any] = {"keys": keys, "order": given.order, "head": given.head}
        if given.head == "DUE":
            used = time.process_time()
            await is_drained.wait()
            result["tasks_of_one_key_per_second"] = round(done / (time.monotonic() - began))
            result["cpu_ms_per_task"] = round(1000 * (time.process_time() - used) / done, 2)
            result["longest_stall_s"] = round(stalls.longest, 3)
            watching.cancel()
            return result
        await other.submit_async()
        try:
            async with asyncio.timeout(PATIENCE):
                await has_run.wait()
            result["other_task_s"] = round(time.monotonic() - began, 2)
        except TimeoutError:
            result["other_task_s"] = None
        result["settled_s"] = round(await settle(node, began), 1)
        result["longest_stall_at_start_s"] = round(stalls.longest, 3)
        stalls.longest = 0.0
        await asyncio.sleep(IDLE_SECONDS)
        result["longest_stall_idle_s"] = round(stalls.longest, 3)
        watching.cancel()  # which uses the processor itself
        count, used = statements.count, time.process_time()
        asked.calls = asked.keys = 0
        await asyncio.sleep(IDLE_SECONDS)
        used, count = time.process_time() - used, statements.count - count
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        return result | {
            "idle_cpu_percent": round(100 * used / IDLE_SECONDS, 2),
            "idle_statements_per_15_s": round(count * 15 / IDLE_SECONDS, 1),
            "of_these_about_keys": round(asked.calls * 15 / IDLE_SECONDS, 1),
            "keys_asked_per_15_s": round(asked.keys * 15 / IDLE_SECONDS),
            "memory_per_key_bytes": grown * 1024 // keys,
            "triggers_in_memory": len(node.parts.context.table),
            "done": done,
        }


async def settle(node: Any, began: float) -> float:
    """Wait until no key has been newly held for a while; return the seconds since the start."""
    held, changed_at = -1, time.monotonic()
    while time.monotonic() - changed_at < QUIET_SECONDS:
        await asyncio.sleep(1.0)
        now = len(node.parts.ordering._partitions)
        if now != held:
            held, changed_at = now, time.monotonic()
    return changed_at - began


def main() -> None:
    """Measure each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--keys", type=int, nargs="*", default=SIZES)
    parser.add_argument("--order", choices=["fair", "fifo"], default="fair")
    parser.add_argument("--head", choices=[*HOLD, "DUE"], default="WAITING")
    parser.add_argument("--behind", type=int, default=1, help="tasks behind each held one")
    parser.add_argument("--only", metavar="URL")
    given = parser.parse_args()
    if given.only:
        print(json.dumps(asyncio.run(measure(given.only, given))), flush=True)
        return
    options = ["--order", given.order, "--head", given.head, "--behind", str(given.behind)]
    measure_each(given.store, given.keys, [__file__, *options, "--keys"])


if __name__ == "__main__":
    main()
