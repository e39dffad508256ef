"""Whether people see what is wrong in a sick system: many tasks wait, hung tasks hold a limit, and
the database stops for a while.

python bench/sick_system.py [URL] [--tasks 320000] [--blip 12] [--after 120]

20 tenants wait in one queue for the limit `warehouse` of 4 slots, of which two are held by hung
tasks of globex. Prints what the overview, the tenant and the doctor say, how long each read takes,
and the incidents that are open `--after` seconds after writes to the database were locked for
`--blip` seconds. Exits with 1 if people do not learn which task to cancel, or if a false incident
is left.
"""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, TypeVar

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "src")]

import fairlead  # noqa: E402
from fairlead.operate.doctor import examine  # noqa: E402
from fairlead.operate.facts import read_facts  # noqa: E402
from fairlead.operate.summary import summary  # noqa: E402
from fairlead.operate.tenants import tenant  # noqa: E402
from fairlead.testing import running  # noqa: E402

T = TypeVar("T")

TENANTS = ["acme", "globex", *(f"tenant-{n}" for n in range(18))]
HANGING_SECONDS = 75.0
"""Seconds after which hung tasks have run for far longer than usual."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", nargs="?", help="PostgreSQL or SQLite; a temporary file by default")
    parser.add_argument("--tasks", type=int, default=320_000)
    parser.add_argument("--blip", type=float, default=12.0, help="seconds")
    parser.add_argument("--after", type=float, default=120.0, help="seconds after the blip")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite:///{folder}/tasks.db"
        (app, pack), (other, _) = application(url), application(url)
        app.migrate()
        return asyncio.run(examine_sick(app, other, pack, given.tasks, given.blip, given.after))


def application(url: str) -> tuple[fairlead.App, Any]:
    """Return an application and its task."""
    app = fairlead.App(url)
    limit = fairlead.ClusterLimit(4, name="warehouse")

    @app.task(queue="orders", name="pack", concurrency=limit)
    async def pack(hangs: bool = False) -> None:
        await asyncio.sleep(3600.0 if hangs else 0.02)

    return app, pack


async def examine_sick(
    app: fairlead.App, other: fairlead.App, pack: Any, tasks: int, blip: float, after: float
) -> int:
    """Make the system sick, and return 0 if people see what is wrong and nothing else."""
    hung = pack.options(fairness_key="globex", priority=0).submit_many([{"hangs": True}] * 2)
    for name in TENANTS:
        pack.options(fairness_key=name).submit_many([{}] * (tasks // len(TENANTS)))
    async with running(app, concurrency=50), running(other, concurrency=50):
        await asyncio.sleep(HANGING_SECONDS)
        context = app.operate_context
        facts = await timed("facts", lambda: read_facts(context))
        found = await timed("overview", lambda: summary(context, facts=facts))
        print(f"running {found.totals.processing}, ready about {found.totals.backlog:,}")
        lines = [each.what for each in found.attention]
        acme = await timed("tenant", lambda: tenant(context, "acme", facts=facts))
        page = await timed("list", lambda: app.management.page(state="PROCESSING", tenant="globex"))
        cures = [each.cure or "" for each in await examine(context, facts=facts)]
        print(*lines, *(f"acme: {each.what}; {each.cure}" for each in acme.why), sep="\n")
        is_seen = all(
            any(each.id in text for text in texts)
            for each in hung
            for texts in (lines, [cause.what for cause in acme.why], cures)
        )
        is_listed = {each.id for each in hung} <= {task.id for task in page.tasks}
        with app.store.database.connection() as connection:
            is_postgres = app.store.database.dialect == "postgres"
            connection.execute("BEGIN" if is_postgres else "BEGIN IMMEDIATE")
            if is_postgres:
                connection.execute("LOCK TABLE fairlead_heartbeats, fairlead_tasks")
            await asyncio.sleep(blip)
            connection.execute("ROLLBACK")
        await asyncio.sleep(after)
        for each in hung:
            await asyncio.to_thread(app.management.cancel, each.id)
        facts = await asyncio.to_thread(read_facts, context)
        left = [each for each in facts.incidents if each.subject not in {one.id for one in hung}]
        print(f"seen {is_seen}, listed {is_listed}, false incidents {len(left)}")
        print(*(f"{each.kind} of {each.subject}" for each in left), sep="\n")
        return 0 if is_seen and is_listed and not left else 1


async def timed(what: str, read: Callable[[], T]) -> T:
    """Return what `read` returns; print the time that it takes."""
    began = time.monotonic()
    found = await asyncio.to_thread(read)
    print(f"{what}: {(time.monotonic() - began) * 1000:.0f} ms")
    return found


if __name__ == "__main__":
    sys.exit(main())
