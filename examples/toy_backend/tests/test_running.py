"""An application whose tasks live in the toy."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead import App, ConfigurationError, Limit, Retry
from fairlead.errors import NotSupported
from fairlead.testing import drain


@pytest.mark.parametrize("order", ["fair", "fifo"])
async def test_tasks_run_retry_and_keep_the_order_of_their_keys(order: str) -> None:
    app = App(f"toy://running-{order}")
    app.queue("default", order=order)
    ran: list[int] = []
    tries: dict[int, int] = {}

    @app.task(concurrency=Limit(5))
    async def work(n: int) -> None:
        tries[n] = tries.get(n, 0) + 1
        await asyncio.sleep(0)
        if n % 10 == 0 and tries[n] == 1:
            raise Retry(after=0.01)
        ran.append(n)

    ordered = work.options(ordering_key="o", fairness_key="a")
    handles = ordered.submit_many([{"n": n} for n in range(1, 20)])
    work.options(fairness_key="b").submit_many([{"n": n} for n in range(20, 1500)])
    await drain(app)
    assert len({handle.id for handle in handles}) == 19
    assert sorted(ran) == list(range(1, 1500))
    assert [n for n in ran if n < 20] == list(range(1, 20))
    assert all(tries[n] == 1 + (n % 10 == 0) for n in tries)


async def test_a_flood_of_one_key_does_not_delay_another() -> None:
    app = App("toy://flood")
    ran: list[str] = []

    @app.task
    async def work(key: str) -> None:
        ran.append(key)

    for key, count in (("flood", 500), ("small", 20)):
        work.options(fairness_key=key).submit_many([{"key": key}] * count)
    await drain(app, concurrency=1)
    assert ran[:60].count("small") == 20


async def test_a_worker_runs_tasks_of_another_application_on_the_same_name() -> None:
    submitting, working = App("toy://shared"), App("toy://shared")
    ran = []

    @working.task(name="note")
    async def note(n: int) -> None:
        ran.append(n)

    @submitting.task(name="note")
    async def same(n: int) -> None: ...

    await same.submit_async(n=1)
    await drain(working)
    assert ran == [1]


async def test_a_worker_runs_again_what_an_earlier_one_held_when_it_died() -> None:
    app = App("toy://died")
    ran = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    await note.submit_async(n=1)
    (lane,) = app.store.database.run(app.store.lanes())
    triggers = app.store.database.run(app.store.ready(lane, 0, 10))
    died = app.node().settings.name
    assert await app.store.claim(died, triggers, 0, {})
    await drain(app)
    assert ran == [1]


def test_a_forked_child_that_ends_leaves_the_queues_of_its_parent_alone() -> None:
    script = (
        "import os, sys\n"
        "from fairlead import App\n"
        "app = App('toy://forked')\n"
        "path = app.connections.cluster.database.path\n"
        "if not os.fork():\n"
        "    sys.exit()\n"
        "os.wait()\n"
        "print(path.parent, path.parent.exists())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    folder, is_there = done.stdout.split()
    assert is_there == "True"
    assert not Path(folder).exists()  # the parent itself has ended


def test_a_url_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="toy://any-name"):
        _ = App("toy://").store


def results(app: App) -> None:
    @app.task(keep_result=True)
    def add() -> int:
        return 1

    app.node()


def transactions(app: App) -> None:
    @app.task(transactional=True)
    def pay(connection: Any) -> None: ...

    app.node()


def periodic_tasks(app: App) -> None:
    @app.periodic("* * * * *")
    def tick() -> None: ...

    app.node()


def people(app: App) -> None:
    app.management.find()


def a_pause(app: App) -> None:
    app.management.pause("default")


@pytest.mark.parametrize("use", [results, transactions, periodic_tasks, people, a_pause])
def test_what_needs_more_than_tasks_is_refused_and_the_missing_port_named(
    use: Callable[[App], None],
) -> None:
    with pytest.raises(NotSupported, match=r"toy://more .* lacks the port .*SqlStore.*sqlite://"):
        use(App("toy://more"))


def test_on_incident_needs_more_than_tasks() -> None:
    with pytest.raises(NotSupported, match=r"SqlStore, .* on_incident"):
        App("toy://more", on_incident=print).node()


def test_an_ordered_queue_needs_a_sql_database() -> None:
    app = App("toy://more")
    app.queue("payouts", kind="ordered")
    with pytest.raises(NotSupported, match="no ordered queues: they need a SQL database"):
        app.node()


def test_a_store_with_tasks_only_has_no_other_channel() -> None:
    with pytest.raises(ConfigurationError, match=r"channel='kafka://host:9092': .* leave it out"):
        _ = App("toy://more", channel="kafka://host:9092").connections


def test_several_workers_need_more_than_tasks(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from fairlead import App\napp = App('toy://more')\n")
    command = [sys.executable, "-m", "fairlead", "worker", "shop:app", "--workers", "2"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode != 0
    assert "SqlStore" in ended.stderr and "several workers" in ended.stderr
